package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tierd/nbd/client"
	"tierd/pkg/control"
)

// volume returns a volume as the daemon lists it.
func (s *site) volume(name string) volumeInfo {
	s.t.Helper()
	for _, v := range s.volumes() {
		if v.Name == name {
			return v
		}
	}
	s.t.Fatalf("there is no volume %q", name)
	return volumeInfo{}
}

func (s *site) volumes() (list []volumeInfo) {
	s.t.Helper()
	s.ctlJSON(&list, "volume", "list")
	return list
}

func (s *site) status() (st poolStatus) {
	s.t.Helper()
	s.ctlJSON(&st, "pool", "status")
	return st
}

// healed waits until the slot tables are in line with the map after a kill: a stop
// before that cannot be marked as clean.
func (s *site) healed() {
	s.t.Helper()
	eventually(s.t, "the slot tables are healed", 30*time.Second, func() bool { return !s.status().Healing })
}

func (s *site) locate(volume string, off int64) (l location) {
	s.t.Helper()
	s.ctlJSON(&l, "locate", volume, fmt.Sprint(off))
	return l
}

func TestVolumesThroughTheirLife(t *testing.T) {
	t.Parallel()
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 32MiB}"})

	// Create, first dry: nothing has happened then.
	s.ctl("volume", "create", "work", "100MiB", "--policy", "lowest", "--dry-run")
	if n := len(s.volumes()); n != 1 {
		t.Fatalf("a dry run left %d volumes", n)
	}
	var ch volumeChange
	s.ctlJSON(&ch, "volume", "create", "work", "100MiB", "--policy", "lowest")
	if ch.Volume.Name != "work" || ch.Volume.SizeBytes != 100*mib || ch.Volume.Policy != "lowest" || ch.Volume.UUID == "" || ch.DryRun {
		t.Errorf("volume create answered %+v", ch)
	}
	s.ctlFails(1, `tierctl: volume work: exists already`, "volume", "create", "work", "1MiB")

	// Over-commit is shown: 132 MiB on 70.8 MiB.
	if st := s.status(); st.ProvisionedBytes != 132*mib || st.OverCommitRatio < 1.8 || st.OverCommitRatio > 1.9 {
		t.Errorf("provisioned %d, %.2f times the capacity of %d", st.ProvisionedBytes, st.OverCommitRatio, st.CapacityBytes)
	}
	if out := s.ctl("pool", "status"); !strings.Contains(out, "1.86 times the capacity") {
		t.Errorf("pool status does not show the over-commit:\n%s", out)
	}

	// The policy decides where the first write goes.
	w, h := s.dial("work"), s.dial("home")
	w.write(0, mib, 1)
	h.write(0, mib, 2)
	if l := s.locate("work", 0); l.Tier != "sata" || !l.Mapped {
		t.Errorf("lowest put an extent on %q: %+v", l.Tier, l)
	}
	if l := s.locate("home", 1000); l.Tier != "ssd" || l.BackingPath != s.backingPath("ssd", 0) {
		t.Errorf("auto put an extent on %q: %+v", l.Tier, l)
	}
	if l := s.locate("home", 31*mib); l.Mapped || l.Tier != "" {
		t.Errorf("an extent that was never written is mapped: %+v", l)
	}
	if v := s.volume("work"); v.AllocatedBytes != mib || v.Connections != 1 {
		t.Errorf("volume list: %+v", v)
	}

	// Grow: the connection keeps the size it saw, the next one sees the new one.
	s.ctl("volume", "grow", "work", "+28MiB")
	s.ctlFails(2, "tierctl: volume work has 134217728 bytes and cannot shrink to 67108864", "volume", "grow", "work", "64MiB")
	if err := w.WriteAt(make([]byte, 512), 100*mib, false); err == nil {
		t.Error("an old connection can write past the size it saw")
	}
	w2 := s.dial("work")
	if w2.Size() != 128*mib {
		t.Errorf("the next connection sees %d bytes", w2.Size())
	}
	w2.write(128*mib-4096, 4096, 3)
	w2.check(0, mib, 1)

	// Rename: clients stay, the old name is free.
	uuid := s.volume("work").UUID
	s.ctl("volume", "rename", "work", "archive 2")
	w2.check(128*mib-4096, 4096, 3)
	a := s.dial("archive 2")
	a.check(0, mib, 1)
	if v := s.volume("archive 2"); v.UUID != uuid {
		t.Errorf("the rename changed the UUID from %s to %s", uuid, v.UUID)
	}
	if _, err := client.Dial(t.Context(), s.uri("work")); err == nil {
		t.Error("the old name still opens")
	}
	s.ctlFails(1, "tierctl: volume home: exists already", "volume", "rename", "archive 2", "home")

	// Set: extents follow at once; no cycle is due. One that is skipped follows the next time.
	s.ctl("volume", "set", "archive 2", "--policy", "highest")
	s.ctlFails(2, `tierctl: ...policy..."gold"...`, "volume", "set", "archive 2", "--policy", "gold")
	eventually(t, "extents have followed the policy", time.Minute, func() bool {
		s.ctl("volume", "set", "archive 2", "--policy", "highest")
		return s.locate("archive 2", 0).Tier == "ssd"
	})
	a.check(0, mib, 1)

	// Delete: refused while in use, and the space comes back.
	s.ctlFails(1, "tierctl: volume archive 2 has 3 connections", "volume", "delete", "archive 2")
	for _, c := range []disk{w, w2, a} {
		c.hangUp()
	}
	eventually(t, "connections are gone", 10*time.Second, func() bool { return s.volume("archive 2").Connections == 0 })
	s.ctl("volume", "delete", "archive 2", "--dry-run")
	s.volume("archive 2")
	s.ctl("volume", "delete", "archive 2")
	eventually(t, "the space is back", 20*time.Second, func() bool { return s.status().UsedBytes == mib })
	eventually(t, "the volume is gone from the list", 10*time.Second, func() bool { return len(s.volumes()) == 1 })
	s.ctlFails(1, `tierctl: volume "archive 2": not found`, "volume", "delete", "archive 2")

	// With --force, clients are cut off, and nobody else gets their data.
	s.ctl("volume", "delete", "home", "--force")
	if err := h.ReadAt(make([]byte, 512), 0); err == nil {
		t.Error("a deleted volume still reads")
	}
	s.ctl("volume", "create", "home", "32MiB")
	s.dial("home").check(0, mib, 0)
	eventually(t, "the space is back", 20*time.Second, func() bool { return s.status().UsedBytes == 0 })
	d.stop()
	s.checkPool(true)

	// All of it is there after a restart.
	d = s.start()
	if v := s.volume("home"); v.SizeBytes != 32*mib {
		t.Errorf("after a restart: %+v", v)
	}
	d.stop()
}

func TestRelocationByHand(t *testing.T) {
	t.Parallel()
	s, d := running(t, layout{
		tiers: twoTiers(), volumes: "{name: home, size: 48MiB}",
		relocation: "{cycle: 1h, hysteresis: 10%, budget: {rate: 500MiB/s}}", extra: "heat: {short_half_life: 30s, long_half_life: 5m, short_weight: 0.8}",
	})
	c := s.dial("home")
	// The first extents fill the fast tier, so the last ones live in the slow one.
	for off := int64(0); off < 48*mib; off += mib {
		c.write(off, mib, 1)
	}
	const hot = 40 * mib
	if l := s.locate("home", hot); l.Tier != "sata" {
		t.Fatalf("the last extents are on %s", l.Tier)
	}
	s.ctl("relocation", "pause")
	// Random reads of one MiB, in an order that is no run.
	heat := func() {
		for i := range int64(4000) {
			c.check(hot+i*7919%256*4096, 4096, 1)
		}
	}
	heat()
	// Paused, a cycle counts heat and moves nothing.
	s.ctlFails(1, "tierctl: relocation is paused", "relocation", "run", "--wait")
	heat()
	var p relocationPlan
	s.ctlJSON(&p, "relocation", "plan", "--limit", "5")
	if p.Summary.PromotionBytes == 0 {
		t.Errorf("the plan does not promote what is hot: %+v", p)
	}
	if len(p.Moves) == 0 || len(p.Moves) > 5 || p.Moves[0].Reason == "" || p.Moves[0].Volume != "home" {
		t.Errorf("plan: %+v", p)
	}
	if out := s.ctl("relocation", "plan"); !strings.Contains(out, "hot") || !strings.Contains(out, "home") {
		t.Errorf("plan as a table:\n%s", out)
	}

	// Programs may send what tierctl does not let through.
	_, planErr := control.Dial(s.admin).RelocationPlan(t.Context(), control.RelocationPlanRequest{Limit: -1})
	_, heatErr := control.Dial(s.admin).Heat(t.Context(), control.HeatRequest{Volume: "home", Limit: -1})
	if !errors.Is(planErr, control.ErrUsage) || !errors.Is(heatErr, control.ErrUsage) {
		t.Errorf("negative limits: %v, %v", planErr, heatErr)
	}

	var st relocationStatus
	s.ctlJSON(&st, "relocation", "status")
	if st.State != control.RelocationPaused || len(st.Moved) != 0 {
		t.Errorf("while paused: %+v", st)
	}
	s.ctl("relocation", "run", "--dry-run")
	if l := s.locate("home", hot); l.Tier != "sata" {
		t.Errorf("a dry run moved an extent to %s", l.Tier)
	}
	s.ctlJSON(&st, "relocation", "resume")
	if st.State != control.RelocationRunning {
		t.Errorf("after resume: %+v", st)
	}
	eventually(t, "the hot extent has moved up", 30*time.Second, func() bool {
		heat()
		s.ctl("relocation", "run", "--wait")
		return s.locate("home", hot).Tier == "ssd"
	})
	l := s.locate("home", hot)
	if l.LastMovedAt.IsZero() || l.Heat <= 0 || l.Why == "" || !strings.HasPrefix(l.BackingPath, s.dir) {
		t.Errorf("locate after the move: %+v", l)
	}
	for off := int64(0); off < 48*mib; off += mib {
		c.check(off, mib, 1)
	}
	s.ctlJSON(&st, "relocation", "status")
	up := int64(0)
	for _, m := range st.Moved {
		if m.Direction == "promotion" && m.From == "sata" && m.To == "ssd" {
			up = m.Extents
		}
	}
	if up == 0 || d.metric("tierd_relocation_moved_extents_total", "from=sata", "to=ssd") < float64(up) {
		t.Errorf("promoted extents: status says %d, metrics %g", up, d.metric("tierd_relocation_moved_extents_total", "from=sata", "to=ssd"))
	}

	// What the move says of the place is true: the bytes are there.
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	l = s.locate("home", hot+12345)
	f, err := os.Open(l.BackingPath)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, 1000)
	if _, err := f.ReadAt(got, l.DeviceOffset); err != nil {
		t.Fatal(err)
	}
	if want := content(hot, mib, 1)[12345:13345]; string(got) != string(want) {
		t.Errorf("%d of %s does not hold what byte %d of the volume reads as", l.DeviceOffset, l.BackingPath, hot+12345)
	}

	// Heat knows the hot spot.
	var m heatMap
	s.ctlJSON(&m, "heat", "home", "--limit", "3")
	if len(m.Hottest) != 3 || m.Hottest[0].Offset < hot || m.Hottest[0].Offset >= hot+mib || int64(len(m.Levels)) != m.Extents {
		t.Errorf("the hottest extents are %+v", m.Hottest)
	}
	if out := s.ctl("heat", "home"); !strings.Contains(out, "@") {
		t.Errorf("heat as a map:\n%s", out)
	}

	// So does the curve: one MiB of 48 has far more than its share of the load.
	const spot = 1. / 48
	for _, args := range [][]string{{"heat", "home", "--skew"}, {"heat", "--all"}} {
		var k control.Skew
		s.ctlJSON(&k, args...)
		at := slices.IndexFunc(k.Points, func(p control.SkewPoint) bool { return p.Extents >= spot-1e-9 })
		if k.Extents*k.ExtentSizeBytes != 48*mib || at < 0 || k.Points[at].Heat < 10*spot || k.Points[len(k.Points)-1] != (control.SkewPoint{Extents: 1, Heat: 1}) || len(k.Needs) == 0 {
			t.Errorf("tierctl %q: %+v", args, k)
			continue
		}
		extents, served, best := int64(0), 0.0, 0.0
		for _, tier := range k.Tiers {
			extents, served, best = extents+tier.Extents, served+tier.Heat, best+tier.BestHeat
		}
		if extents != k.Extents || math.Abs(served-1) > 1e-6 || math.Abs(best-1) > 1e-6 || k.Tiers[0].Heat < 10*spot || k.Tiers[0].BestHeat < k.Tiers[0].Heat-0.05 {
			t.Errorf("tierctl %q: the tiers have %d extents, %v and at best %v of the load: %+v", args, extents, served, best, k.Tiers)
		}
	}
	s.ctlFails(1, "tierctl: volume \"nobody\": not found", "heat", "nobody", "--skew")
	d.stop()
	s.checkPool(true)
}

// Every verb has a table and JSON, and JSON is nothing but JSON.
func TestEveryVerbPrintsTableAndJSON(t *testing.T) {
	t.Parallel()
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 32MiB}"})
	c := s.dial("home")
	c.write(0, mib, 1)
	verbs := [][]string{
		{"pool", "status"}, {"tier", "list"}, {"backing", "list"}, {"volume", "list"}, {"volume", "create", "a", "1MiB"},
		{"volume", "grow", "a", "2MiB"}, {"volume", "rename", "a", "b"}, {"volume", "set", "b", "--policy", "ssd"},
		{"volume", "delete", "b"}, {"relocation", "status"}, {"relocation", "plan"}, {"relocation", "run"}, {"relocation", "pause"},
		{"relocation", "resume"}, {"locate", "home", "0"}, {"heat", "home"}, {"heat", "home", "--skew"}, {"heat", "--all"}, {"version"},
		{"bench", "--uri", s.uri("home"), "--ops", "100"},
	}
	for _, o := range []string{"table", "json"} {
		for _, v := range verbs {
			r := s.tierctl(append(v, "-o", o)...)
			if r.code != 0 || r.stdout == "" || r.stderr != "" {
				t.Errorf("tierctl %q -o %s: %+v", v, o, r)
			}
			if isJSON := json.Valid([]byte(r.stdout)); isJSON != (o == "json") {
				t.Errorf("tierctl %q -o %s printed\n%s", v, o, r.stdout)
			}
		}
	}
	var tiers []tierInfo
	s.ctlJSON(&tiers, "tier", "list")
	if len(tiers) != 2 || tiers[0].Name != "ssd" || tiers[0].UsedBytes != mib || tiers[1].Media != "hdd" {
		t.Errorf("tiers: %+v", tiers)
	}
	var backings []backingInfo
	s.ctlJSON(&backings, "backing", "list")
	if len(backings) != 2 || backings[0].UsedSlots != 16 || backings[0].State != control.BackingOK || backings[1].Path != s.backingPath("sata", 0) {
		t.Errorf("backings: %+v", backings)
	}
	d.stop()
	// Without a daemon each says so in one line.
	for _, v := range verbs[:4] {
		s.ctlFails(1, "tierctl: ...daemon is not running...", v...)
	}
	// The offline verbs are refused while a daemon serves.
	d = s.start()
	s.ctlFails(1, "tierctl: check pool: ...metadata "+s.path("pool.db")+": metadata file is in use, by tierd, process ...", "pool", "check")
	d.stop()
	for _, o := range []string{"table", "json"} {
		if r := s.tierctl("pool", "check", "-o", o); r.code != 0 || json.Valid([]byte(r.stdout)) != (o == "json") {
			t.Errorf("pool check -o %s: %+v", o, r)
		}
	}
}

func TestNewExtentsSpreadOverTheBackingsOfATier(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.write(layout{tiers: []tierLayout{{name: "ssd", media: "ssd", size: "24MiB", files: 4}}, volumes: "{name: home, size: 64MiB}"})
	// The last backing is twice as large.
	s.edit(fmt.Sprintf("%s, size: 24MiB", s.backingPath("ssd", 3)), fmt.Sprintf("%s, size: 48MiB", s.backingPath("ssd", 3)))
	s.ctl("pool", "create")
	d := s.start()
	c := s.dial("home")
	for off := int64(0); off < 30*mib; off += mib {
		c.write(off, mib, 1)
	}
	var list []backingInfo
	s.ctlJSON(&list, "backing", "list")
	for _, b := range list {
		fill := float64(b.UsedSlots) / float64(b.Slots)
		if fill < 0.30 || fill > 0.40 {
			t.Errorf("%s is filled to %.0f%%, all of them together to about 35%%", filepath.Base(b.Path), fill*100)
		}
	}
	c.hangUp()
	d.stop()
	s.checkPool(true)
}

// A client that leaves without a word does no harm, and its connection goes.
func TestClientThatDies(t *testing.T) {
	t.Parallel()
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 32MiB}"})
	c := s.dial("home")
	c.write(0, mib, 1)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	eventually(t, "the connection is gone", 10*time.Second, func() bool { return s.volume("home").Connections == 0 })
	again, err := client.Dial(ctx, s.uri("home"))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	disk{again, t}.check(0, mib, 1)
	d.stop()
}
