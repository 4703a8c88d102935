package tiering

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"tierd/pkg/backing"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// judgeBackings decides which backings are used, and what becomes of the others.
func (r *rebuild) judgeBackings() error {
	s := r.survey
	for _, o := range s.Others {
		r.judgeOther(o)
	}
	r.newest = s.Newest()
	if r.newest == nil {
		if len(r.refuse) > 0 {
			return refuse("%s", strings.Join(r.refuse, "; "))
		}
		return refuse("none of the %d backings belongs to a pool that can be used", len(r.o.Backings))
	}
	sb := r.newest.Superblock
	if err := sb.Features.Check(false); err != nil {
		return fmt.Errorf("backing %s: %w", r.newest.Spec.Path, err)
	}
	var err error
	if r.size, err = extent.NewSize(sb.Layout.ExtentSize); err != nil {
		return fmt.Errorf("backing %s: %w", r.newest.Spec.Path, err)
	}
	r.report.Pool, r.report.ExtentSize, r.report.Incarnation = s.Pool, r.size.Bytes(), sb.Incarnation
	for _, t := range sb.Tiers {
		r.state.Tiers = append(r.state.Tiers, extentmap.TierRecord{ID: t.ID, Name: t.Name, Media: t.Media})
	}
	r.checkNames()
	stop := r.cleanStop()
	listed := make(map[extent.BackingID]bool)
	for _, rec := range sb.Members {
		listed[rec.ID] = true
		r.judgeMember(rec, stop)
	}
	for _, m := range s.Members {
		if !listed[m.ID()] {
			r.found.warning(FoundForeign, m.Spec.Path, "", "backing %d is not in the pool any more, by the newest list of members, which is on %s; it is left alone", m.ID(), r.newest.Spec.Path)
		}
	}
	if len(r.refuse) > 0 {
		return refuse("%s", strings.Join(r.refuse, "; "))
	}
	return nil
}

// judgeOther notes a backing that is not known to be of the pool. One that could be
// read if somebody looked after it keeps the pool from being rebuilt without it.
func (r *rebuild) judgeOther(o SurveyOther) {
	switch {
	case o.Pool != uuid.Nil:
		r.found.warning(FoundForeign, o.Path, "", "it belongs to pool %s", o.Pool)
	case errors.Is(o.Err, ondisk.ErrNoSuperblock):
		r.found.warning(FoundForeign, o.Path, "", "it carries no superblock, and is not part of a pool")
	case errors.Is(o.Err, ondisk.ErrNewerFormat), errors.Is(o.Err, backing.ErrInUse):
		r.refuse = append(r.refuse, fmt.Sprintf("backing %s: %v", o.Path, o.Err))
	default:
		// If it is a member, that is told as well.
		r.found.warning(FoundUnreadable, o.Path, "", "%v", o.Err)
	}
}

// cleanStop returns the number of the commit by which the pool was stopped, 0 if it
// was not stopped cleanly in the newest incarnation.
func (r *rebuild) cleanStop() (commit uint64) {
	for _, m := range r.survey.Members {
		if m.Stamp.Clean && m.Stamp.Incarnation == r.newest.Superblock.Incarnation {
			commit = max(commit, m.Stamp.Commit)
		}
	}
	r.report.Clean = commit != 0
	return commit
}

// judgeMember decides about one backing of the newest list of members.
func (r *rebuild) judgeMember(rec ondisk.MemberRecord, stop uint64) {
	m := extentmap.Member{
		ID: rec.ID, UUID: rec.UUID, Tier: rec.Tier, State: extentmap.MemberState(rec.State), Incarnation: rec.Incarnation,
	}
	if rec.State == ondisk.MemberCreating {
		r.found.note(FoundCreating, r.name(rec), "", "backing %d was being added and holds nothing yet; it is left out", rec.ID)
		return
	}
	here := r.find(rec)
	keep := func() {
		r.state.Members = append(r.state.Members, m)
		r.list(m)
	}
	accept := func(list []string) bool {
		return slices.ContainsFunc(list, func(s string) bool { return r.isMember(s, rec, here) })
	}
	no := func(format string, args ...any) { r.refuse = append(r.refuse, fmt.Sprintf(format, args...)) }

	switch {
	case rec.State == ondisk.MemberForgotten && (here == nil || !accept(r.o.AcceptStale)):
		if here != nil {
			r.found.warning(FoundForeign, here.Spec.Path, "", "backing %d was forgotten; it is left alone", rec.ID)
		}
		keep()
		return
	case here == nil && accept(r.o.AcceptMissing):
		r.found.damage(FoundMissing, r.name(rec), "", "backing %d is given up: what was there reads as zeroes, and nobody can tell what it was", rec.ID)
		m.State = extentmap.MemberForgotten
		keep()
		return
	case here == nil:
		no("backing %d of tier %s is missing (%s); attach it and name its path (--backing), or give it up with all that is on it (--accept-missing %[1]d)", rec.ID, r.tierName(rec.Tier), rec.UUID)
		return
	}
	path := here.Spec.Path
	sb := here.Superblock
	if here.Short != nil {
		no("backing %s: %v", path, here.Short)
		return
	}
	if sb.Layout.ExtentSize != r.size.Bytes() {
		no("backing %s has extents of %d bytes, %s of %d", path, sb.Layout.ExtentSize, r.newest.Spec.Path, r.size.Bytes())
		return
	}
	if why := r.stale(here, rec, stop); why != "" {
		if !accept(r.o.AcceptStale) {
			no("backing %s is stale: %s; attach the right one, or use it as it is (--accept-stale %d)", path, why, rec.ID)
			return
		}
		r.found.damage(FoundStale, path, "", "backing %d is used although %s: what it missed is lost, and what was given up there may be back", rec.ID, why)
	} else if rec.Incarnation < r.newest.Superblock.Incarnation && sb.Incarnation < r.newest.Superblock.Incarnation {
		r.found.warning(FoundStale, path, "", "backing %d was away since incarnation %d: extents on it that were trimmed meanwhile may be back, and answered writes may be lost in extents that were moving there when it went away", rec.ID, rec.Incarnation)
	}
	switch rec.State {
	case ondisk.MemberFailed:
		if !accept(r.o.AcceptFailed) {
			no("backing %s has failed: what it was to hold may be missing there; use it all the same (--accept-failed %d), or take it away and give it up (--accept-missing %[2]d)", path, rec.ID)
			return
		}
		m.Error = "it had failed before the metadata was rebuilt"
		r.found.damage(FoundFailed, path, "", "backing %d has failed: answered writes may be missing there, and elsewhere in extents that were moving there or away; extents that have left it since, or were trimmed, may be back as it has them", rec.ID)
	case ondisk.MemberForgotten:
		m.State = extentmap.MemberOK
	}
	m.Path, m.Size, m.Slots, m.Instance, m.Incarnation = path, sb.Layout.Size, sb.Layout.Slots, here.Instance, sb.Incarnation
	keep()
	r.used = append(r.used, here)
	r.noteCopies(here)
}

// list adds a member to the report.
func (r *rebuild) list(m extentmap.Member) {
	r.report.Members = append(r.report.Members, RebuiltMember{
		ID: m.ID, UUID: m.UUID, Tier: r.tierName(m.Tier), Path: m.Path, State: m.State.String(),
		Incarnation: m.Incarnation, Slots: int64(m.Slots),
	})
}

// noteCopies tells of copies on a backing that is used that cannot be used themselves.
func (r *rebuild) noteCopies(m *SurveyMember) {
	path := m.Spec.Path
	note := func(what string, at int64, state ondisk.CopyState, err error) {
		if err == nil && state == ondisk.CopyDamaged {
			err = ondisk.ErrCorrupt
		}
		if err != nil {
			r.found.note(FoundSuperblockCopy, path, mendStart, "the copy of the %s at byte %d: %v; the other one is used", what, at, err)
		}
	}
	for _, c := range m.Copies {
		note("superblock", c.Offset, c.State, c.Err)
	}
	for _, c := range m.VolumeCopies {
		note("volume table", c.Offset, c.State, c.Err)
	}
	if m.StampErr != nil {
		r.found.damage(FoundStamp, path, mendRepair, "%v", m.StampErr)
	}
}

// isMember reports whether a name in the options means this backing.
func (r *rebuild) isMember(name string, rec ondisk.MemberRecord, here *SurveyMember) bool {
	return name == fmt.Sprint(rec.ID) || strings.EqualFold(name, rec.UUID.String()) || here != nil && name == here.Spec.Path
}

// checkNames refuses names that mean no backing: they are meant to, and are wrong.
func (r *rebuild) checkNames() {
	for _, list := range [][]string{r.o.AcceptStale, r.o.AcceptFailed, r.o.AcceptMissing} {
		for _, name := range list {
			if !slices.ContainsFunc(r.newest.Superblock.Members, func(rec ondisk.MemberRecord) bool {
				return r.isMember(name, rec, nil) || slices.ContainsFunc(r.survey.Members, func(m *SurveyMember) bool { return r.isMember(name, rec, m) && m.ID() == rec.ID })
			}) {
				r.refuse = append(r.refuse, fmt.Sprintf("%s is no backing of the pool", name))
			}
		}
	}
}

// find returns the surveyed backing of a record, nil if it is not there. Copies are
// a reason against the rebuild, and so is one with another's id.
func (r *rebuild) find(rec ondisk.MemberRecord) (here *SurveyMember) {
	for _, m := range r.survey.Members {
		switch {
		case m.ID() != rec.ID || m.Superblock.State == ondisk.BackingRemoved:
		case m.Superblock.BackingUUID != rec.UUID:
			r.refuse = append(r.refuse, fmt.Sprintf("backing %s has the id of another one (%d, %s instead of %s); take it away", m.Spec.Path, rec.ID, m.Superblock.BackingUUID, rec.UUID))
		case here != nil:
			r.refuse = append(r.refuse, fmt.Sprintf("backings %s and %s are copies of each other (id %d); take one away", here.Spec.Path, m.Spec.Path, rec.ID))
		default:
			here = m
		}
	}
	return here
}

// stale says why a backing is an old copy, "" if it is not. A member that was away
// for a while is none: the list has the incarnation that it was last seen in.
func (r *rebuild) stale(m *SurveyMember, rec ondisk.MemberRecord, stop uint64) string {
	now := r.newest.Superblock.Incarnation
	switch {
	case rec.State == ondisk.MemberForgotten:
		return "it was forgotten"
	case m.Superblock.Incarnation < rec.Incarnation:
		return fmt.Sprintf("it is of incarnation %d, and was written to in %d by %s", m.Superblock.Incarnation, rec.Incarnation, r.newest.Spec.Path)
	case stop == 0 || rec.Incarnation < now || rec.State == ondisk.MemberFailed || m.StampErr != nil:
		return ""
	case m.Stamp.Incarnation < now || m.Stamp.Commit+1 < stop:
		return fmt.Sprintf("it is of commit %d, and was there when the pool was stopped after %d", m.Stamp.Commit, stop)
	}
	return ""
}

func (r *rebuild) tierName(id extent.TierID) string {
	for _, t := range r.state.Tiers {
		if t.ID == id {
			return t.Name
		}
	}
	return fmt.Sprint(id)
}

// name is where a finding about a member is that may not be there.
func (r *rebuild) name(rec ondisk.MemberRecord) string {
	return fmt.Sprintf("backing %d of tier %s", rec.ID, r.tierName(rec.Tier))
}
