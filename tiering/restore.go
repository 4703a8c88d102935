package tiering

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// RestoreReport tells what Restore made of a dump.
type RestoreReport struct {
	RebuildReport
	// Whole: the dump is of the state in which the pool was stopped, and was taken
	// as it is. Else names and settings come from it, and the map from the
	// backings.
	Whole bool `json:"whole"`
	// Why it was not taken as it is; "" if it was.
	Why  string `json:"why"`
	Heat bool   `json:"heat"` // the heat of the extents was restored too
}

// Restore makes the metadata of a pool from a dump and its backings, under the
// rules of Rebuild.
//
// If the dump was made after a clean stop, of the commit that all backings know as
// the last one, the metadata are made as they were then, to the letter. Any other
// dump is older than the backings, or other than they are: slots may have changed
// owner since. The map is rebuilt then, and the dump gives names, policies and
// settings of the volumes that there still are. If no backing has a table of the
// volumes any more, the dump gives the volumes too.
func Restore(ctx context.Context, o RebuildOptions, dump io.ReadSeeker) (RestoreReport, error) {
	o.setDefaults()
	r := &rebuild{o: o}
	t := &restore{rebuild: r, dump: dump}
	err := t.run(ctx)
	if r.survey != nil {
		r.survey.Close()
	}
	r.report.Findings = r.found.all()
	t.report.RebuildReport = r.report
	return t.report, err
}

// restore is one run of Restore.
type restore struct {
	*rebuild
	report RestoreReport
	dump   io.ReadSeeker
	from   extentmap.State // of the dump
	heat   bytes.Buffer
}

func (t *restore) run(ctx context.Context) error {
	if err := t.begin(); err != nil {
		return err
	}
	// All of the dump is read before any of it is believed.
	err := t.read(DumpVisitor{
		State: func(s extentmap.State) error { t.from = s; return nil },
		Run:   func(DumpRun) error { return ctx.Err() },
		Heat:  func(b []byte) error { t.heat.Write(b); return nil },
	})
	if err != nil {
		return err
	}
	t.o.Pool = t.from.Pool.ID
	if t.rebuild.survey, err = OpenSurvey(ctx, t.o.survey()); err != nil {
		return err
	}
	if t.report.Why = t.outdated(); t.report.Why == "" {
		t.report.Whole = true
		return t.asItIs(ctx)
	}
	t.settings = &t.from
	if err := t.rebuild.work(ctx); err != nil {
		return err
	}
	return t.writeHeat()
}

func (t *restore) read(v DumpVisitor) error {
	if _, err := t.dump.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read dump: %w", err)
	}
	if err := ReadDump(t.dump, v); err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	return nil
}

// outdated says why the dump cannot be taken as it is, "" if it can: it was made
// after a clean stop, and nobody has opened the pool since. An open raises the
// incarnation on the backings before it writes anything else there.
func (t *restore) outdated() string {
	p := t.from.Pool
	if !p.CleanStop {
		return "it was not made after a clean stop"
	}
	found := make(map[extent.BackingID]*SurveyMember)
	var newest, stamp, generation uint64
	for _, m := range t.survey.Members {
		if found[m.ID()] != nil {
			return fmt.Sprintf("backing %d is there twice", m.ID())
		}
		found[m.ID()] = m
		newest, stamp = max(newest, m.Superblock.Incarnation), max(stamp, m.Stamp.Commit)
		generation = max(generation, m.Volumes.Generation, m.Stamp.VolumeGeneration)
	}
	for _, rec := range t.from.Members {
		if rec.State == extentmap.MemberForgotten && !rec.Emptying {
			continue
		}
		switch m := found[rec.ID]; {
		case m == nil:
			return fmt.Sprintf("backing %d is missing", rec.ID)
		case m.Short != nil || m.StampErr != nil || m.Superblock.BackingUUID != rec.UUID || m.Superblock.State != ondisk.BackingActive:
			return fmt.Sprintf("backing %s is damaged, or another one", m.Spec.Path)
		case m.Superblock.Incarnation != p.Incarnation || rec.Incarnation != p.Incarnation:
			return fmt.Sprintf("backing %s is of incarnation %d, and the dump of %d", m.Spec.Path, m.Superblock.Incarnation, p.Incarnation)
		case missedStop(p, rec, m.StampCopies):
			return fmt.Sprintf("backing %s is an old copy", m.Spec.Path)
		case m.Superblock.Layout.ExtentSize != p.ExtentSize || m.Superblock.Layout.Slots != rec.Slots:
			return fmt.Sprintf("backing %s is laid out otherwise", m.Spec.Path)
		}
	}
	switch {
	case newest > p.Incarnation:
		return fmt.Sprintf("the pool was opened since: the backings are of incarnation %d, and the dump of %d", newest, p.Incarnation)
	// Programs before this one did not stamp the clean stop itself.
	case stamp > p.Commit || stamp+1 < p.Commit:
		return fmt.Sprintf("the backings are of commit %d, and the dump of %d", stamp, p.Commit)
	case generation > p.VolumeGeneration: // tables that are older are damaged, and written anew
		return fmt.Sprintf("the volumes on the backings are of generation %d, and those of the dump of %d", generation, p.VolumeGeneration)
	}
	return ""
}

// asItIs makes the metadata that the dump was made of.
func (t *restore) asItIs(ctx context.Context) error {
	t.state = t.from
	out := &t.rebuild.report
	p := t.from.Pool
	out.Pool, out.ExtentSize, out.Incarnation, out.Commit, out.Clean = p.ID, p.ExtentSize, p.Incarnation, p.Commit, true
	for _, m := range t.from.Members {
		t.list(m)
	}
	size, err := extent.NewSize(p.ExtentSize)
	if err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	t.size = size
	if err := t.indexVolumes(); err != nil {
		return err
	}
	runs := func(each func(DumpRun) error) error {
		return t.read(DumpVisitor{Run: func(run DumpRun) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return each(run)
		}})
	}
	err = runs(func(run DumpRun) error {
		out.Extents += run.Count
		for i := range out.Members {
			if out.Members[i].ID == run.At.Backing {
				out.Members[i].Owners += run.Count
			}
		}
		out.Volumes[t.volumes[run.Volume].at].Extents += run.Count
		return nil
	})
	if err != nil || t.o.DryRun {
		return err
	}
	err = t.build(func(put func(extentmap.MapChange) error) error {
		return runs(func(run DumpRun) error {
			for i := range run.Count {
				key := extent.Key{Volume: run.Volume, Index: run.First + extent.Index(i)}
				if err := put(extentmap.MapChange{Key: key, To: extent.Location{Backing: run.At.Backing, Slot: run.At.Slot + extent.Slot(i)}}); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	return t.writeHeat()
}

// writeHeat restores the heat file, if the dump has one and there is none. It is a
// hint, so that it comes last, and may be missing after a cut.
func (t *restore) writeHeat() error {
	path := heatPath(t.o.Metadata)
	if t.heat.Len() == 0 || t.o.DryRun {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		_, err = f.Write(t.heat.Bytes())
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		return fmt.Errorf("restore heat %s: %w", filepath.Base(path), err)
	}
	t.report.Heat = true
	return nil
}

// applySettings gives the volumes the names and settings that a dump has for them.
// What the backings know of them otherwise is newer: that they exist, their sizes,
// and that they are being deleted.
func (r *rebuild) applySettings(dump *extentmap.State) {
	r.state.Pool.Created = dump.Pool.Created
	r.state.Pool.NextVolume = max(r.state.Pool.NextVolume, dump.Pool.NextVolume)
	var tiers []string
	for _, t := range r.state.Tiers {
		tiers = append(tiers, t.Name)
	}
	known := make(map[extent.VolumeID]*extentmap.Volume)
	for i := range r.state.Volumes {
		known[r.state.Volumes[i].ID] = &r.state.Volumes[i]
	}
	for _, d := range dump.Volumes {
		v := known[d.ID]
		where := "volume " + d.Name
		if v == nil || v.UUID != d.UUID {
			r.found.note(FoundNoVolume, where, "", "it was deleted after the dump was made")
			continue
		}
		if v.State != extentmap.VolumeActive {
			continue
		}
		if d.State == extentmap.VolumeActive && v.Name != d.Name {
			r.rename(v, d.Name)
		}
		if _, err := parsePolicy(d.Policy, tiers); err == nil {
			v.Policy = d.Policy
		} else {
			r.found.warning(FoundVolumeTable, where, "", "its policy by the dump, %s, makes no sense any more; it stays %s", d.Policy, v.Policy)
		}
		v.ReadOnly, v.Reservation, v.Quota, v.OnFullWait, v.Clients = d.ReadOnly, d.Reservation, d.Quota, d.OnFullWait, d.Clients
	}
}

// rename gives a volume its name by the dump, unless another one has it by now.
func (r *rebuild) rename(v *extentmap.Volume, name string) {
	for _, o := range r.state.Volumes {
		if o.ID != v.ID && o.State == extentmap.VolumeActive && o.Name == name {
			r.found.warning(FoundVolumeTable, "volume "+v.Name, "", "its name by the dump, %s, belongs to another volume by now", name)
			return
		}
	}
	r.found.note(FoundVolumeTable, "volume "+name, "", "it was called %s last", v.Name)
	v.Name = name
}
