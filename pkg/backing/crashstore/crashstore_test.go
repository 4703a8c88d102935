package crashstore_test

import (
	"bytes"
	"context"
	"testing"

	"pgregory.net/rapid"

	"tierd/pkg/backing"
	"tierd/pkg/backing/crashstore"
	"tierd/pkg/backing/storetest"
)

var ctx = context.Background()

func TestSuite(t *testing.T) {
	storetest.Run(t, func(t *testing.T, size int64) backing.Store { return crashstore.New(size) })
}

func fill(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n) }

type failer interface {
	Helper()
	Fatalf(string, ...any)
}

func must(t failer, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("unexpected error: %v", err)
	}
}

func content(t failer, s backing.Store) []byte {
	t.Helper()
	p := make([]byte, s.Size())
	must(t, s.ReadAt(ctx, p, 0))
	return p
}

func TestCrashKeepsSynced(t *testing.T) {
	s := crashstore.New(4096)
	must(t, s.WriteAt(ctx, fill(1, 1024), 0))
	must(t, s.Sync(ctx))
	must(t, s.WriteAt(ctx, fill(2, 1024), 512))
	must(t, s.Zero(ctx, 0, 512))
	if got := s.Unsynced(); got != 2 {
		t.Errorf("Unsynced = %d, want 2", got)
	}

	none := append(fill(1, 1024), make([]byte, 3072)...)
	all := append(append(make([]byte, 512), fill(2, 1024)...), make([]byte, 2560)...)
	for seed := range int64(20) {
		if got := content(t, s.Crash(crashstore.Cut{Seed: seed})); !bytes.Equal(got, none) {
			t.Fatalf("seed %d: a cut that keeps nothing has other than the synced bytes", seed)
		}
		if got := content(t, s.Crash(crashstore.Cut{Seed: seed, Keep: 1})); !bytes.Equal(got, all) {
			t.Fatalf("seed %d: a cut that keeps everything lost some", seed)
		}
	}
	if got := content(t, s.Reopen()); !bytes.Equal(got, all) {
		t.Error("a kill lost bytes")
	}
}

func TestCrashAtIsJoint(t *testing.T) {
	rec := crashstore.NewRecorder()
	a, b := rec.NewStore(512), rec.NewStore(512)
	must(t, a.WriteAt(ctx, fill(1, 512), 0)) // 1
	must(t, b.WriteAt(ctx, fill(2, 512), 0)) // 2
	must(t, a.Sync(ctx))                     // 3, 4
	must(t, b.Sync(ctx))                     // 5, 6
	for _, tt := range []struct {
		n    int64
		keep float64
		a, b byte
	}{
		{0, 1, 0, 0}, {1, 1, 1, 0}, {2, 0, 0, 0}, {2, 1, 1, 2},
		{3, 0, 0, 0}, {3, 1, 1, 2}, {4, 0, 1, 0}, {5, 0, 1, 0}, {6, 0, 1, 2},
	} {
		after := rec.CrashAt(tt.n, crashstore.Cut{Keep: tt.keep}).Stores()
		if ga, gb := content(t, after[0])[0], content(t, after[1])[0]; ga != tt.a || gb != tt.b {
			t.Errorf("CrashAt(%d) keeping %v has a=%d b=%d, want %d, %d", tt.n, tt.keep, ga, gb, tt.a, tt.b)
		}
	}
	if got := rec.Now(); got != 6 {
		t.Errorf("Now = %d, want 6", got)
	}
}

// TestCrashShowsEveryFate: over the seeds, each of two sectors of an unsynced
// write is found kept and lost on its own, and torn if asked for.
func TestCrashShowsEveryFate(t *testing.T) {
	s := crashstore.New(1024)
	must(t, s.WriteAt(ctx, fill(7, 1024), 0))
	seen := map[string]bool{}
	for seed := range int64(200) {
		p := content(t, s.Crash(crashstore.Cut{Seed: seed, Keep: 0.5, Torn: 0.5}))
		fate := ""
		for _, sector := range [][]byte{p[:512], p[512:]} {
			switch bytes.Count(sector, []byte{7}) {
			case 0:
				fate += "lost "
			case 512:
				fate += "kept "
			default:
				fate += "torn "
			}
		}
		seen[fate] = true
		if again := content(t, s.Crash(crashstore.Cut{Seed: seed, Keep: 0.5, Torn: 0.5})); !bytes.Equal(p, again) {
			t.Fatalf("seed %d gives two outcomes", seed)
		}
	}
	if len(seen) != 9 {
		t.Errorf("saw the fates %v, want all 9", seen)
	}
}

// TestAgainstModel: after any run of operations and a cut, each sector is what
// it was at the last sync, or what some later change made it.
func TestAgainstModel(t *testing.T) {
	const sectors, size = 8, 8 * 512
	rapid.Check(t, func(t *rapid.T) {
		s := crashstore.New(size)
		possible := [sectors]map[byte]bool{}
		live := [sectors]byte{}
		settle := func() {
			for i := range possible {
				possible[i] = map[byte]bool{live[i]: true}
			}
		}
		settle()
		for step := range rapid.IntRange(0, 30).Draw(t, "steps") {
			from := rapid.IntRange(0, sectors-1).Draw(t, "from")
			n := rapid.IntRange(1, sectors-from).Draw(t, "sectors")
			value := byte(step + 1)
			switch rapid.SampledFrom([]string{"write", "write", "zero", "sync", "forget"}).Draw(t, "op") {
			case "write":
				must(t, s.WriteAt(ctx, fill(value, n*512), int64(from*512)))
			case "zero":
				value = 0
				must(t, s.Zero(ctx, int64(from*512), int64(n*512)))
			case "sync":
				must(t, s.Sync(ctx))
				settle()
				continue
			default:
				s.Recorder().Forget()
				continue
			}
			for i := from; i < from+n; i++ {
				live[i] = value
				possible[i][value] = true
			}
		}
		cut := crashstore.Cut{Seed: rapid.Int64().Draw(t, "seed"), Keep: rapid.Float64Range(0, 1).Draw(t, "keep")}
		got := content(t, s.Crash(cut))
		for i := range possible {
			sector := got[i*512 : (i+1)*512]
			if v := sector[0]; !possible[i][v] || bytes.Count(sector, []byte{v}) != 512 {
				t.Fatalf("sector %d is %d, want whole and one of %v", i, v, possible[i])
			}
		}
	})
}

func TestForget(t *testing.T) {
	s := crashstore.New(512)
	must(t, s.WriteAt(ctx, fill(1, 512), 0))
	must(t, s.Sync(ctx))
	must(t, s.WriteAt(ctx, fill(2, 512), 0))
	rec := s.Recorder()
	rec.Forget()
	if got := rec.Now(); got != 4 {
		t.Errorf("Now after Forget = %d, want 4", got)
	}
	if got := s.Unsynced(); got != 1 {
		t.Errorf("Unsynced after Forget = %d, want 1", got)
	}
	for keep, want := range map[float64]byte{0: 1, 1: 2} {
		if got := content(t, s.Crash(crashstore.Cut{Keep: keep}))[0]; got != want {
			t.Errorf("a cut that keeps %v has %d, want %d", keep, got, want)
		}
	}
	must(t, s.Sync(ctx))
	if got := content(t, s.Crash(crashstore.Cut{}))[0]; got != 2 || s.Unsynced() != 0 {
		t.Errorf("after a sync a cut has %d and %d are unsynced, want 2 and 0", got, s.Unsynced())
	}
	defer func() {
		if recover() == nil {
			t.Error("CrashAt an instant that was forgotten did not panic")
		}
	}()
	rec.CrashAt(3, crashstore.Cut{})
}

// TestSyncUnderWay: a sync that has not returned promises nothing, and what is
// written while it runs is not covered by it.
func TestSyncUnderWay(t *testing.T) {
	s := crashstore.New(1024)
	must(t, s.WriteAt(ctx, fill(1, 512), 0))
	end := s.BeginSync()
	must(t, s.WriteAt(ctx, fill(2, 512), 512))
	rec := s.Recorder()
	during := rec.Now()
	rec.Forget()
	end()
	for _, tt := range []struct {
		what string
		n    int64
		keep float64
		want [2]byte
	}{
		{"during, nothing kept", during, 0, [2]byte{0, 0}},
		{"during, all kept", during, 1, [2]byte{1, 2}},
		{"after, nothing kept", rec.Now(), 0, [2]byte{1, 0}},
	} {
		got := content(t, rec.CrashAt(tt.n, crashstore.Cut{Keep: tt.keep}).Stores()[0])
		if got := [2]byte{got[0], got[512]}; got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.what, got, tt.want)
		}
	}
	if got := rec.UnsyncedAt(rec.Now()); got != 1 {
		t.Errorf("UnsyncedAt = %d, want 1", got)
	}
}

// TestKillAt: after a kill all is there, and what was unsynced still is, also for
// the power cut that comes next.
func TestKillAt(t *testing.T) {
	n := int64(100)
	rec := crashstore.NewRecorderOn(func() int64 { n += 10; return n })
	s := rec.NewStore(1024)
	must(t, s.WriteAt(ctx, fill(1, 512), 0))
	must(t, s.Sync(ctx))
	must(t, s.WriteAt(ctx, fill(2, 512), 0))
	at := rec.Now()
	must(t, s.WriteAt(ctx, fill(3, 512), 512)) // never happened

	after := rec.KillAt(at)
	k := after.Stores()[0]
	if got := content(t, k); got[0] != 2 || got[512] != 0 {
		t.Errorf("after the kill: %d and %d, want 2 and 0", got[0], got[512])
	}
	if got := content(t, after.Crash(crashstore.Cut{}).Stores()[0])[0]; got != 1 {
		t.Errorf("after the kill and a cut: %d, want 1", got)
	}
	must(t, k.Sync(ctx))
	if got := content(t, after.Crash(crashstore.Cut{}).Stores()[0])[0]; got != 2 {
		t.Errorf("after kill, sync and cut: %d, want 2", got)
	}
	if got := after.Now(); got != n {
		t.Errorf("Now = %d, want %d, of the common counter", got, n)
	}
}
