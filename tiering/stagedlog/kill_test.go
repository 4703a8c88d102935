package stagedlog

import (
	"bytes"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"tierd/tiering/extent"
)

// replay applies recs to a copy of the map.
func replay(m map[extent.Key]extent.Location, recs []Record) map[extent.Key]extent.Location {
	m = maps.Clone(m)
	for _, r := range recs {
		for i := r.First; i < r.First+r.Count; i++ {
			k := extent.Key{Volume: r.Volume, Index: i}
			if r.To.IsZero() {
				delete(m, k)
			} else {
				m[k] = r.To
			}
		}
	}
	return m
}

// TestKillAnywhere runs random histories with rounds of single volumes, and at
// many moments kills the daemon at every 32nd byte of the write in progress.
// The replay on the committed map must give the map of the last whole record.
func TestKillAnywhere(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	path := mustCreate(t, 2*(minHalf+blockSize))
	id := testID()
	l := mustOpen(t, path, id, 1, 1)
	const volumes, extents = 3, 20

	type write struct {
		off  int64
		data []byte
	}
	var writes []write
	l.pwrite = func(fd int, p []byte, off int64) (int, error) {
		writes = append(writes, write{off, bytes.Clone(p)})
		return unix.Pwrite(fd, p, off)
	}

	committed := make(map[extent.Key]extent.Location)
	current := make(map[extent.Key]extent.Location)
	var commit, seq uint64 = 1, 0
	var staged [volumes + 1]uint64 // first sequence of a volume that is not committed
	round := func(v extent.VolumeID) {
		maps.DeleteFunc(committed, func(k extent.Key, _ extent.Location) bool { return k.Volume == v })
		for k, l := range current {
			if k.Volume == v {
				committed[k] = l
			}
		}
		commit++
		staged[v] = 0
		retired := seq
		for _, s := range staged {
			if s != 0 {
				retired = min(retired, s-1)
			}
		}
		if err := l.Retire(retired, commit); err != nil {
			t.Fatal(err)
		}
	}
	kills, halves := 0, 0
	for step := range 500 {
		var recs []Record
		for range 1 + rng.IntN(4) {
			seq += uint64(1 + rng.IntN(3))
			r := Record{Seq: seq, Kind: Kind(1 + rng.IntN(4)), Volume: extent.VolumeID(1 + rng.IntN(volumes)), First: extent.Index(rng.IntN(extents)), Count: 1}
			switch r.Kind {
			case Map, Move:
				r.To = extent.Location{Backing: extent.BackingID(1 + rng.IntN(3)), Slot: extent.Slot(rng.IntN(1000))}
			case UnmapRange:
				r.Count = extent.Index(1 + rng.IntN(5))
			}
			recs = append(recs, r)
		}
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		writes = nil
		err = l.Append(recs)
		if errors.Is(err, ErrFull) {
			if l.Fill() < 0.5 {
				t.Fatalf("full at %v", l.Fill())
			}
			for v := range extent.VolumeID(volumes) {
				round(v + 1)
			}
			err = l.Append(recs)
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(writes) > 1 {
			halves++
		}

		if len(writes) > 1 || step%10 == 0 {
			for w := range writes {
				for n := 0; n <= len(writes[w].data); n += 32 {
					image := bytes.Clone(before)
					for _, done := range writes[:w] {
						copy(image[done.off:], done.data)
					}
					copy(image[writes[w].off:], writes[w].data[:n])
					// Only whole records of the last write count, behind the instances if it begins a half.
					whole := 0
					if w == len(writes)-1 {
						whole = max(0, n/recordSize-(len(writes[w].data)/recordSize-len(recs)))
					}
					got, reason, err := read(bytes.NewReader(image), int64(len(image)), id, commit)
					if err != nil || reason != "" {
						t.Fatalf("step %d, killed at byte %d of write %d: %q, %v", step, n, w, reason, err)
					}
					want := replay(current, recs[:whole])
					if m := replay(committed, got); !reflect.DeepEqual(m, want) {
						t.Fatalf("step %d, killed at byte %d of write %d: replay = %v\nwant %v", step, n, w, m, want)
					}
					if again := replay(replay(committed, got), got); !reflect.DeepEqual(again, want) {
						t.Fatalf("step %d: a second replay differs", step)
					}
					kills++
				}
			}
		}
		current = replay(current, recs)
		for _, r := range recs {
			if staged[r.Volume] == 0 {
				staged[r.Volume] = r.Seq
			}
		}
		if rng.IntN(12) == 0 {
			round(extent.VolumeID(1 + rng.IntN(volumes)))
		}
	}
	t.Logf("%d kills, %d changes of half", kills, halves)
	if kills < 500 || halves < 3 {
		t.Error("too little was tried")
	}
}
