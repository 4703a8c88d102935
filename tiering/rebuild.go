package tiering

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/google/uuid"

	"tierd/pkg/clock"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
	"tierd/tiering/stagedlog"
)

// RebuildOptions say of what Rebuild makes new metadata.
type RebuildOptions struct {
	Metadata string // path of the file to be made
	// Backings are where to look for the members. Those that the configuration
	// does not list have to be named too: nothing else remembers their paths.
	Backings []BackingSpec
	// Pool is the pool that is meant. Zero: the only one that is found.
	Pool uuid.UUID

	// The three lists name backings by id, UUID, or the path where one was found.
	//
	// AcceptStale names backings that are used although they are old copies, or
	// were forgotten: what they have missed is lost, and what was given up on them
	// may come back.
	AcceptStale []string
	// AcceptFailed names backings that are used although they had failed: writes
	// that were answered may be missing there. They stay failed.
	AcceptFailed []string
	// AcceptMissing names backings that are given up: what was there reads as
	// zeroes from now on, and nobody can tell what it was. They are forgotten.
	AcceptMissing []string

	// Replace allows metadata that are there already to be replaced. They are kept
	// under another name.
	Replace bool
	DryRun  bool // do everything but write

	OpenStore OpenStore
	Clock     clock.Clock
	// Progress is called now and then with how far a step is. Nil: not.
	Progress func(step string, done, total int64)
}

// RebuiltVolume is a volume as a rebuild found it.
type RebuiltVolume struct {
	ID       extent.VolumeID `json:"id"`
	UUID     uuid.UUID       `json:"uuid"`
	Name     string          `json:"name"`
	Size     int64           `json:"size_bytes"`
	Policy   string          `json:"policy"`
	Deleting bool            `json:"deleting"`
	Extents  int64           `json:"extents"` // that have a slot
}

// RebuiltMember is a backing as a rebuild found it.
type RebuiltMember struct {
	ID          extent.BackingID `json:"id"`
	UUID        uuid.UUID        `json:"uuid"`
	Tier        string           `json:"tier"`
	Path        string           `json:"path"` // "" if it was not found
	State       string           `json:"state"`
	Incarnation uint64           `json:"incarnation"`
	Slots       int64            `json:"slots"`
	Owners      int64            `json:"owners"`     // entries that say whose a slot is
	Tombstones  int64            `json:"tombstones"` // entries that say that an extent was unmapped
	Damaged     int64            `json:"damaged"`    // entries with a bad checksum
	Unreadable  int64            `json:"unreadable"` // entries that cannot be read
}

// RebuildReport tells what Rebuild found and made.
type RebuildReport struct {
	Pool        uuid.UUID       `json:"pool_id"`
	Metadata    string          `json:"metadata"`
	Kept        string          `json:"kept"` // the file that was replaced; "" if none was
	ExtentSize  int64           `json:"extent_size_bytes"`
	Incarnation uint64          `json:"incarnation"`
	Commit      uint64          `json:"commit"`
	Clean       bool            `json:"clean_stop"` // the backings saw a clean stop last
	Volumes     []RebuiltVolume `json:"volumes"`
	Members     []RebuiltMember `json:"members"`
	Extents     int64           `json:"extents"`
	Superseded  int64           `json:"superseded"` // entries that a later one of the same extent outdid
	Findings    []Finding       `json:"findings"`
	DryRun      bool            `json:"dry_run"`
}

// Damaged reports whether anything was found that may have cost data.
func (r RebuildReport) Damaged() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Severity == Damage })
}

// rebuild is one run of Rebuild.
type rebuild struct {
	o      RebuildOptions
	report RebuildReport
	found  findings
	refuse []string // reasons against it

	settings *extentmap.State // of a dump that is restored; nil if there is none

	survey  *Survey
	newest  *SurveyMember
	state   extentmap.State
	size    extent.Size
	used    []*SurveyMember
	volumes map[extent.VolumeID]*rebuiltVolume
	claims  []claim
	scanned int64 // slots
	// Volumes from this one on were made after what is known of the volumes.
	unknown extent.VolumeID
	highest extent.VolumeID // that slots belong to, or belonged
}

type rebuiltVolume struct {
	at        int          // index in state.Volumes and report.Volumes
	count     extent.Index // extents it has, mapped or not
	found     bool         // no table knows it
	stretched bool         // it has extents past the end that is known
}

// Rebuild makes the metadata of a pool anew from what is on its backings: tiers and
// members from the superblocks, volumes from the volume tables, and the map from
// the slot tables. What was flushed is where it was; what was not may be there or
// not, as after a power cut. The backings are not written to, so that it can be run
// again after it was cut short at any point; the file is there whole or not at all.
//
// Backings that are missing, old copies, failed or forgotten are not used, or done
// without, unless that is asked for by name: the error is ErrRefused then and names
// all reasons. The report is filled in as far as it went.
//
// The pool has another continuity id after it, no slot counts as clean, and the
// next open brings the slot tables into line.
func Rebuild(ctx context.Context, o RebuildOptions) (RebuildReport, error) {
	o.setDefaults()
	r := &rebuild{o: o}
	err := r.run(ctx)
	if r.survey != nil {
		r.survey.Close()
	}
	r.report.Findings = r.found.all()
	return r.report, err
}

func (o *RebuildOptions) setDefaults() {
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.Progress == nil {
		o.Progress = func(string, int64, int64) {}
	}
}

func (o *RebuildOptions) survey() SurveyOptions {
	return SurveyOptions{Backings: o.Backings, Pool: o.Pool, OpenStore: o.OpenStore}
}

func (r *rebuild) run(ctx context.Context) (err error) {
	if err := r.begin(); err != nil {
		return err
	}
	if r.survey, err = OpenSurvey(ctx, r.o.survey()); err != nil {
		return err
	}
	return r.work(ctx)
}

// begin refuses metadata that are in use, and those that are there already.
func (r *rebuild) begin() error {
	r.report.Metadata, r.report.DryRun = r.o.Metadata, r.o.DryRun
	pages, sound := extentmap.CheckPages(r.o.Metadata)
	if errors.Is(sound, extentmap.ErrLocked) {
		return lockedBy(r.o.Metadata, sound)
	}
	if !r.o.Replace {
		if _, err := os.Lstat(r.o.Metadata); err == nil {
			if sound == nil && len(pages.Problems) == 0 {
				return refuse("metadata %s: the file exists, and is whole: pool check tells whether the pool is; to make it anew all the same, move it away, or give --replace, which keeps it under another name", r.o.Metadata)
			}
			return refuse("metadata %s: the file exists; move it away, or give --replace, which keeps it under another name", r.o.Metadata)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("metadata: %w", err)
		}
	}
	return nil
}

// work makes the metadata of what the survey has found.
func (r *rebuild) work(ctx context.Context) error {
	if err := r.judgeBackings(); err != nil {
		return err
	}
	if err := r.takeVolumes(); err != nil {
		return err
	}
	if err := r.scan(ctx); err != nil {
		return err
	}
	r.resolve()
	if err := r.describePool(); err != nil {
		return err
	}
	return r.write(ctx)
}

// takeVolumes takes the volumes from the newest table, or from the dump if that is
// newer. Whether there was a newer one still, which cannot be read any more, is told
// by the stamps, and by the entries of the slot tables later on.
func (r *rebuild) takeVolumes() error {
	var newest ondisk.VolumeTable
	var stamped uint64 // the newest table that there was for sure
	for _, m := range r.survey.Members {
		stamped = max(stamped, m.Stamp.VolumeGeneration)
	}
	for _, m := range r.used {
		if m.VolumesErr != nil {
			r.found.note(FoundVolumeTable, m.Spec.Path, mendStart, "%v; that of another backing is used", m.VolumesErr)
		} else if m.Volumes.Generation > newest.Generation {
			newest = m.Volumes
		}
	}
	p := &r.state.Pool
	dump := r.settings
	switch {
	case newest.Generation > 0 && (dump == nil || dump.Pool.VolumeGeneration <= newest.Generation):
		p.VolumeGeneration, p.NextVolume = newest.Generation, newest.NextVolume
		for _, v := range newest.Volumes {
			r.state.Volumes = append(r.state.Volumes, volumeOf(v))
		}
		r.unknown = newest.NextVolume
		if dump != nil {
			r.applySettings(dump)
		}
		// Stamps of earlier programs do not tell. A cut tears a copy too, but not on a
		// backing that another change has reached.
		if stamped == 0 && !slices.ContainsFunc(r.used, func(m *SurveyMember) bool { return m.Volumes.Generation == newest.Generation && !m.tableInDoubt() }) {
			r.found.damage(FoundVolumeTable, "volumes", "", "every backing that has the newest table of the volumes that can be read (generation %d) has a damaged copy beside it, which may have been newer: the last change of the volumes may be missing", newest.Generation)
		}
	case dump != nil:
		r.found.damage(FoundVolumeTable, "volumes", mendStart, "no backing has a readable table of the volumes that is as new as the dump: they are those of the dump")
		r.state.Volumes = slices.Clone(dump.Volumes)
		p.Created, p.NextVolume, p.VolumeGeneration = dump.Pool.Created, dump.Pool.NextVolume, dump.Pool.VolumeGeneration
		r.unknown = dump.Pool.NextVolume
	default:
		return refuse("no backing has a readable table of the volumes; they can come from a dump, by pool restore")
	}
	if stamped > p.VolumeGeneration {
		r.oldVolumes("it is of generation %d, and there was one of %d", p.VolumeGeneration, stamped)
		p.VolumeGeneration = stamped
	}
	return r.indexVolumes()
}

// oldVolumes tells that what is known of the volumes is older than the pool.
func (r *rebuild) oldVolumes(format string, args ...any) {
	r.found.damage(FoundVolumeTable, "volumes", "pool restore with a later dump", "the newest table of the volumes is lost, and what is used instead is old (%s): volumes made since have no name any more or are missing; names, sizes and settings are what they were, and volumes deleted since are back",
		fmt.Sprintf(format, args...))
}

// indexVolumes prepares the report of the volumes and the search for them.
func (r *rebuild) indexVolumes() error {
	slices.SortFunc(r.state.Volumes, func(a, b extentmap.Volume) int { return int(a.ID) - int(b.ID) })
	r.volumes = make(map[extent.VolumeID]*rebuiltVolume)
	for _, v := range r.state.Volumes {
		if v.ID == 0 || v.Size <= 0 || r.volumes[v.ID] != nil {
			return fmt.Errorf("volume %q (id %d, %d bytes): %w", v.Name, v.ID, v.Size, ondisk.ErrCorrupt)
		}
		r.volumes[v.ID] = &rebuiltVolume{at: len(r.report.Volumes), count: r.size.Count(v.Size)}
		r.report.Volumes = append(r.report.Volumes, RebuiltVolume{
			ID: v.ID, UUID: v.UUID, Name: v.Name, Size: v.Size, Policy: v.Policy, Deleting: v.State == extentmap.VolumeDeleting,
		})
		r.state.Pool.NextVolume = max(r.state.Pool.NextVolume, v.ID+1)
	}
	return nil
}

// describePool makes the pool record. Its numbers are above all that is known to
// have been used, so that neither stamps nor the staged log are newer.
func (r *rebuild) describePool() error {
	p := &r.state.Pool
	sb := r.newest.Superblock
	p.ID, p.FormatVersion, p.Features = r.survey.Pool, extentmap.FormatVersion, extentmap.Features(sb.Features)
	p.ExtentSize, p.State = r.size.Bytes(), extentmap.PoolActive
	p.Continuity = uuid.New()
	p.NextBacking = sb.NextBacking
	p.VolumeGeneration++ // so that every backing gets the table anew
	for _, m := range r.survey.Members {
		p.Incarnation = max(p.Incarnation, m.Superblock.Incarnation, m.Stamp.Incarnation)
		p.Commit = max(p.Commit, m.Superblock.Commit, m.Stamp.Commit)
		p.NextBacking = max(p.NextBacking, m.ID()+1)
	}
	if p.Created.IsZero() {
		p.Created = r.o.Clock.Now().UTC()
		for _, v := range r.state.Volumes {
			if !v.Created.IsZero() && v.Created.Before(p.Created) {
				p.Created = v.Created // the pool is as old as its first volume, or older
			}
		}
	}
	commit, incarnation, err := stagedlog.LastUsed(stagedLogPath(r.o.Metadata), p.ID)
	if err != nil {
		return err
	}
	p.Incarnation = max(p.Incarnation, incarnation, p.MaxSeq>>seqBits)
	p.Commit = max(p.Commit, commit) + 2 // the mark that all know of a stop came after their stamps
	p.LogIncarnation = p.Incarnation + 1 // none: that log has records of changes that were never flushed
	r.report.Incarnation, r.report.Commit = p.Incarnation, p.Commit
	return nil
}

// write makes the metadata file from the claims.
func (r *rebuild) write(ctx context.Context) error {
	if r.o.DryRun {
		return nil
	}
	return r.build(func(put func(extentmap.MapChange) error) error {
		for i, c := range r.claims {
			if i%4096 == 0 {
				if err := ctx.Err(); err != nil {
					return err
				}
				r.o.Progress("write metadata", int64(i), int64(len(r.claims)))
			}
			if err := put(extentmap.MapChange{Key: c.key(), To: c.location()}); err != nil {
				return err
			}
		}
		return nil
	})
}

// build makes the metadata file with a map. What was there is kept.
func (r *rebuild) build(fill func(put func(extentmap.MapChange) error) error) (err error) {
	keep := ""
	if r.o.Replace {
		if _, err := os.Lstat(r.o.Metadata); err == nil {
			if keep, err = freeName(r.o.Metadata + ".old"); err != nil {
				return err
			}
		}
	}
	if err := extentmap.Build(r.o.Metadata, r.state, keep, fill); err != nil {
		return err
	}
	r.report.Kept = keep
	return nil
}

// freeName returns path, or path with the first number behind it that is not taken.
func freeName(path string) (string, error) {
	name := path
	for n := 2; ; n++ {
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			return name, nil
		} else if err != nil {
			return "", err
		}
		name = fmt.Sprintf("%s.%d", path, n)
	}
}
