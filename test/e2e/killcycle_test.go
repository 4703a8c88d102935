package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// killCycle kills the daemon again and again, in the same boot, under loads that know
// what was answered, and goes on with what is there.
type killCycle struct {
	t   *testing.T
	s   *site
	rnd *rand.Rand

	kills    int // in all
	starting int // of these, while the daemon started
	checks   int // offline checks between
	units    int64
	ops      int64
	changes  int // of volumes, answered
	moved    float64
	volumes  map[string]*cycleVolume
	next     int
}

// cycleVolume is a volume that the cycle makes, grows and deletes.
type cycleVolume struct {
	size, most int64 // bytes: answered, and asked for
	there      bool  // its creation was answered
	going      bool  // its deletion was asked for
	gone       bool  // and answered
}

// loads are what the cycle picks from: everything that can be asked of a volume.
var cycleLoads = [][]string{
	{"--bs", "4KiB", "--pattern", "zipf", "--grain", "64KiB", "--trim", "3%", "--zero", "3%", "--depth", "8"},
	{"--bs", "96KiB", "--flush-every", "40", "--trim", "10%", "--zero", "5%", "--depth", "4"},
	{"--bs", "16KiB", "--fua", "--trim", "2%", "--depth", "4"},
	{"--bs", "64KiB", "--trim", "20%", "--zero", "10%", "--flush-every", "100", "--depth", "8"},
}

// TestKillCycle is the promise that an answered change survives the death of the
// daemon: under changes of all kinds over several connections and volumes, moves and
// changes of volumes, and also when the daemon is killed while it starts or recovers.
func TestKillCycle(t *testing.T) {
	t.Parallel()
	k := &killCycle{t: t, rnd: seeded(t), volumes: make(map[string]*cycleVolume)}
	k.s = newPool(t, layout{
		tiers: movingTiers(), volumes: "{name: home, size: 48MiB}, {name: mail, size: 16MiB}", relocation: mover, extra: shortHeat,
	})
	d := k.s.start()
	continuity := k.s.status().ContinuityID
	for k.kills < *killCount {
		k.round(d)
		for k.rnd.IntN(3) == 0 {
			k.killStarting()
		}
		if k.rnd.IntN(4) == 0 {
			k.s.checkPool(false) // what the next start puts right is no damage
			k.checks++
		}
		d = k.s.start()
		k.verify()
		if t.Failed() {
			t.FailNow()
		}
	}
	if now := k.s.status().ContinuityID; now != continuity {
		t.Error("the continuity id changed, though nothing was lost")
	}
	k.s.healed()
	d.stop()
	k.s.checkPool(true)
	d = k.s.start()
	k.verify()
	d.stop()
	t.Logf("%d kills, %d of them while the daemon started; %d operations answered, %d units compared, %g extents moved, %d changes of volumes, %d offline checks: no violation",
		k.kills, k.starting, k.ops, k.units, k.moved, k.changes, k.checks)
	if k.ops == 0 || k.units == 0 {
		t.Error("the cycle shows nothing")
	}
}

// round puts load on the daemon for a while, and kills it.
func (k *killCycle) round(d *daemon) {
	k.t.Helper()
	var loads []*load
	for volume, connections := range map[string]string{"home": "4", "mail": "2"} {
		args := append([]string{"--read", "25%", "--verify", "--state", k.s.path("state-" + volume), "--connections", connections,
			"--time", "10m", "--seed", fmt.Sprint(k.rnd.Uint32())}, cycleLoads[k.rnd.IntN(len(cycleLoads))]...)
		loads = append(loads, k.s.startBench(volume, args...))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	rnd := rand.New(rand.NewPCG(k.rnd.Uint64(), 0))
	wg.Go(func() { k.changeVolumes(rnd, stop) })
	eventually(k.t, "the loads are connected", time.Minute, func() bool {
		return k.s.volume("home").Connections >= 4 && k.s.volume("mail").Connections >= 2
	})
	time.Sleep(time.Duration(100+k.rnd.IntN(500)) * time.Millisecond)
	if k.rnd.IntN(4) == 0 {
		k.moved += d.metric("tierd_relocation_moved_extents_total")
	}
	time.Sleep(time.Duration(k.rnd.IntN(50_000)) * time.Microsecond)
	d.kill()
	k.kills++
	close(stop)
	wg.Wait()
	for _, l := range loads {
		rep, code := l.wait()
		if code != 1 || rep.Verify != nil && rep.Verify.Mismatches != 0 {
			k.t.Fatalf("kill %d: the load ended with exit code %d, %+v, %+v\n%s", k.kills, code, rep.Errors, rep.Verify, &l.errOut)
		}
		k.ops += rep.Total.Ops
	}
}

// killStarting starts the daemon and kills it at some moment before or after it serves.
func (k *killCycle) killStarting() {
	k.t.Helper()
	d := k.s.launch()
	time.Sleep(time.Duration(k.rnd.IntN(80_000)) * time.Microsecond)
	select {
	case <-d.ended:
		k.t.Fatalf("the daemon refused to start: %v\n%s", d.cmd.ProcessState, d.log.String())
	default:
	}
	d.kill()
	k.kills++
	k.starting++
}

// changeVolumes makes, grows and deletes volumes until the daemon is gone.
func (k *killCycle) changeVolumes(rnd *rand.Rand, stop chan struct{}) {
	try := func(args ...string) bool {
		err := exec.Command(filepath.Join(*binDir, "tierctl"), append([]string{"--config", k.s.config, "volume"}, args...)...).Run()
		if err == nil {
			k.changes++
		}
		return err == nil
	}
	for {
		select {
		case <-stop:
			return
		default:
		}
		name, v := k.some(rnd)
		switch kind := rnd.IntN(3); {
		case v == nil || kind == 0 && len(k.volumes) < 6:
			k.next++
			v = &cycleVolume{size: mib, most: mib}
			name = fmt.Sprintf("extra%d", k.next)
			k.volumes[name] = v
			v.there = try("create", name, "1MiB")
		case kind == 1:
			v.most = v.size + mib
			if try("grow", name, fmt.Sprint(v.most)) {
				v.size = v.most
			}
		default:
			v.going = true
			v.gone = try("delete", name)
		}
	}
}

// some returns a volume that is known to be there, if there is one.
func (k *killCycle) some(rnd *rand.Rand) (string, *cycleVolume) {
	for name, v := range k.volumes {
		if v.there && !v.going && v.size == v.most && rnd.IntN(2) == 0 {
			return name, v
		}
	}
	return "", nil
}

// verify compares everything with what was answered.
func (k *killCycle) verify() {
	k.t.Helper()
	for _, volume := range []string{"home", "mail"} {
		r, code := k.s.startBench(volume, "--verify-only", "--state", k.s.path("state-"+volume), "--connections", "2").wait()
		if code != 0 || r.Verify == nil || r.Verify.Mismatches != 0 {
			text, _ := json.Marshal(r.Verify)
			k.t.Fatalf("kill %d: answered changes of %s are not there: exit code %d\n%s", k.kills, volume, code, text)
		}
		k.units += r.Verify.Checked
	}
	found := make(map[string]volumeInfo)
	for _, v := range k.s.volumes() {
		if v.State == "ok" {
			found[v.Name] = v
		}
	}
	for name, v := range k.volumes {
		f, there := found[name]
		switch {
		case v.gone && there:
			k.t.Errorf("kill %d: volume %s was deleted, and is back", k.kills, name)
		case !there && v.there && !v.going:
			k.t.Errorf("kill %d: volume %s was made, and is gone", k.kills, name)
		case there && (f.SizeBytes < v.size || f.SizeBytes > v.most):
			k.t.Errorf("kill %d: volume %s has %d bytes, and must have from %d to %d", k.kills, name, f.SizeBytes, v.size, v.most)
		}
		if !there {
			delete(k.volumes, name)
			continue
		}
		*v = cycleVolume{size: f.SizeBytes, most: f.SizeBytes, there: true}
	}
}
