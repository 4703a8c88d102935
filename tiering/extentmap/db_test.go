package extentmap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"tierd/tiering/extent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testState is a pool of two tiers, two backings and two volumes.
func testState() State {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	id := func(b byte) uuid.UUID { return uuid.UUID{0: b, 15: 1} }
	return State{
		Pool: PoolRecord{
			ID: id(1), FormatVersion: FormatVersion, ExtentSize: 1 << 20, State: PoolActive, Created: at,
			Incarnation: 3, LogIncarnation: 2, MaxSeq: 3<<40 | 9, Continuity: id(2), CleanStop: true,
			NextVolume: 3, NextBacking: 3, BootID: "boot", VolumeGeneration: 4,
		},
		Tiers: []TierRecord{{ID: 0, Name: "ssd", Media: "ssd"}, {ID: 1, Name: "sata", Media: "hdd"}},
		Members: []Member{
			{ID: 1, UUID: id(3), Tier: 0, Path: "/a", Size: 1 << 30, Slots: 1000, State: MemberOK, Incarnation: 3, Instance: "8:1/5"},
			{ID: 2, UUID: id(4), Tier: 1, Path: "/b", Size: 1 << 40, Slots: 1 << 20, State: MemberFailed, Error: "sync: input/output error"},
		},
		Volumes: []Volume{
			{ID: 1, UUID: id(5), Name: "home", Size: 1 << 40, Policy: "auto", State: VolumeActive, Created: at},
			{ID: 2, UUID: id(6), Name: "old", Size: 1 << 30, Policy: "lowest", State: VolumeDeleting, Created: at, ReadOnly: true},
		},
	}
}

func mustCreate(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pool.db")
	if err := Create(path, testState()); err != nil {
		t.Fatal(err)
	}
	return path
}

func mustOpen(t testing.TB, path string, o Options) *DB {
	t.Helper()
	d, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func mustCommit(t testing.TB, d *DB, c *Changes) uint64 {
	t.Helper()
	n, err := d.Commit(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func loc(b, s int) extent.Location {
	return extent.Location{Backing: extent.BackingID(b), Slot: extent.Slot(s)}
}

func change(v, i, b, s int) MapChange {
	return MapChange{Key: extent.Key{Volume: extent.VolumeID(v), Index: extent.Index(i)}, To: loc(b, s)}
}

// loadAll returns the mapped extents of the volumes.
func loadAll(t testing.TB, d *DB, vols ...extent.VolumeID) map[extent.Key]extent.Location {
	t.Helper()
	m := make(map[extent.Key]extent.Location)
	for _, v := range vols {
		err := d.LoadMap(v, func(first extent.Index, locs []extent.Location) error {
			for i, l := range locs {
				if !l.IsZero() {
					m[extent.Key{Volume: v, Index: first + extent.Index(i)}] = l
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func TestCreateOpen(t *testing.T) {
	path := mustCreate(t)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, %v, want 0600", info.Mode(), err)
	}
	if _, err := os.Stat(path + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("temporary file is left: %v", err)
	}
	if err := Create(path, testState()); !errors.Is(err, ErrExists) {
		t.Errorf("second Create: %v, want ErrExists", err)
	}
	for _, ro := range []bool{false, true} {
		d := mustOpen(t, path, Options{ReadOnly: ro})
		if got, want := d.State(), testState(); !reflect.DeepEqual(got, want) {
			t.Errorf("State = %+v\nwant %+v", got, want)
		}
		if err := errors.Join(d.Close(), d.Close()); err != nil {
			t.Error(err)
		}
		if _, err := d.Commit(context.Background(), &Changes{}); err == nil {
			t.Error("Commit after Close: no error")
		}
	}
	if p, err := Check(path); err != nil || len(p) != 0 {
		t.Errorf("Check = %q, %v", p, err)
	}
}

func TestCreateAfterInterruption(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pool.db")
	if err := os.WriteFile(path+".new", bytes.Repeat([]byte("half"), 5000), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Create(path, testState()); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, path, Options{})
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	edited := func(name string, edit func(*bbolt.Tx) error) string {
		p := filepath.Join(dir, name)
		if err := Create(p, testState()); err != nil {
			t.Fatal(err)
		}
		b, err := bbolt.Open(p, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(b.Update(edit), b.Close()); err != nil {
			t.Fatal(err)
		}
		return p
	}
	putPool := func(json string) func(*bbolt.Tx) error {
		return func(tx *bbolt.Tx) error { return tx.Bucket(bucketPool).Put(keyRecord, []byte(json)) }
	}
	good, err := os.ReadFile(edited("good", func(*bbolt.Tx) error { return nil }))
	if err != nil {
		t.Fatal(err)
	}
	badRoots := bytes.Clone(good)
	for _, page := range []int{0, 4096} {
		badRoots[page+40] ^= 1 // within the root page id: the checksum is wrong
	}

	tests := []struct {
		name, path string
		readOnly   bool
		want       error
	}{
		{"missing", filepath.Join(dir, "missing"), false, ErrNotExist},
		{"folder", dir, true, ErrNotBolt},
		{"empty", file("empty", nil), false, ErrNotBolt},
		{"short text", file("text", []byte("tiers: []\n")), false, ErrNotBolt},
		{"long text", file("long", bytes.Repeat([]byte("tiers: []\n"), 10000)), false, ErrNotBolt},
		{"zeroes", file("zeroes", make([]byte, 1<<20)), false, ErrNotBolt},
		{"both roots damaged", file("roots", badRoots), false, ErrCorrupt},
		{"cut short", file("short", good[:3*4096]), false, ErrCorrupt},
		{"another bbolt file", edited("other", func(tx *bbolt.Tx) error { return tx.DeleteBucket(bucketMap) }), false, ErrNotBolt},
		{"no pool record", edited("norec", func(tx *bbolt.Tx) error { return tx.Bucket(bucketPool).Delete(keyRecord) }), false, ErrCorrupt},
		{"bad json", edited("json", putPool(`{"id":`)), false, ErrCorrupt},
		{"newer version", edited("newer", putPool(`{"format_version":2,"id":7}`)), true, ErrNewerFormat},
		{"incompatible", edited("incompat", putPool(`{"format_version":1,"features":{"incompat":4},"id":7}`)), true, ErrNewerFormat},
		{"read-only feature", edited("rofeature", putPool(`{"format_version":1,"features":{"read_only_compat":4},"state":"active"}`)), false, ErrReadOnlyFormat},
		{"read-only feature, reading", filepath.Join(dir, "rofeature"), true, nil},
		{"compatible feature", edited("compat", putPool(`{"format_version":1,"features":{"compat":4},"state":"active"}`)), false, nil},
		{"foreign key", edited("key", func(tx *bbolt.Tx) error {
			b := tx.Bucket(bucketVolumes)
			return b.Put(idKey(extent.VolumeID(9)), bytes.Clone(b.Get(idKey(extent.VolumeID(1)))))
		}), false, ErrCorrupt},
		{"backing in no tier", edited("tier", func(tx *bbolt.Tx) error {
			return putRecord(tx, bucketMembers, idKey(extent.BackingID(1)), Member{ID: 1, Tier: 4, State: MemberOK})
		}), false, ErrCorrupt},
		{"forgotten backing in no tier", edited("forgotten", func(tx *bbolt.Tx) error {
			return putRecord(tx, bucketMembers, idKey(extent.BackingID(1)), Member{ID: 1, Tier: 4, State: MemberForgotten})
		}), false, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before, _ := os.ReadFile(tt.path)
			d, err := Open(tt.path, Options{ReadOnly: tt.readOnly, Slack: -1})
			if err == nil {
				d.Close()
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("Open = %v, want %v", err, tt.want)
			}
			if after, _ := os.ReadFile(tt.path); !bytes.Equal(before, after) {
				t.Error("Open changed the file")
			}
		})
	}
}

func TestLocked(t *testing.T) {
	path := mustCreate(t)
	d := mustOpen(t, path, Options{})
	short := Options{LockTimeout: time.Millisecond}
	if _, err := Open(path, short); !errors.Is(err, ErrLocked) {
		t.Errorf("second Open = %v, want ErrLocked", err)
	}
	d.Close()
	ro := mustOpen(t, path, Options{ReadOnly: true})
	mustOpen(t, path, Options{ReadOnly: true})
	if _, err := Open(path, short); !errors.Is(err, ErrLocked) {
		t.Errorf("Open beside a reader = %v, want ErrLocked", err)
	}
	if _, err := ro.Commit(context.Background(), &Changes{}); !errors.Is(err, ErrReadOnly) {
		t.Errorf("Commit = %v, want ErrReadOnly", err)
	}
}

func TestCommitRecords(t *testing.T) {
	path := mustCreate(t)
	d := mustOpen(t, path, Options{})
	want := testState()

	failed := want.Members[0]
	failed.State, failed.Error = MemberFailed, "sync failed"
	third := Volume{ID: 3, Name: "new", Size: 1, State: VolumeActive, Created: want.Pool.Created}
	n := mustCommit(t, d, &Changes{
		Pool:    func(p *PoolRecord) { p.NextVolume = 4; p.CleanStop = false; p.Commit = 77; p.ID = uuid.Nil },
		Tiers:   []TierRecord{{ID: 2, Name: "tape", Media: "hdd"}},
		Members: []Member{failed}, DropMembers: []extent.BackingID{2},
		Volumes: []Volume{third}, DropVolumes: []extent.VolumeID{2},
	})
	if n != 1 {
		t.Errorf("first commit is number %d, want 1", n)
	}
	want.Pool.NextVolume, want.Pool.CleanStop, want.Pool.Commit = 4, false, 1
	want.Tiers = append(want.Tiers, TierRecord{ID: 2, Name: "tape", Media: "hdd"})
	want.Members = []Member{failed}
	want.Volumes = []Volume{want.Volumes[0], third}
	for _, when := range []string{"now", "reopened"} {
		if got := d.State(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: State = %+v\nwant %+v", when, got, want)
		}
		if got := d.Pool(); !reflect.DeepEqual(got, want.Pool) {
			t.Errorf("%s: Pool = %+v\nwant %+v", when, got, want.Pool)
		}
		d.Close()
		d = mustOpen(t, path, Options{})
	}
}

func TestUnknownFieldsAreKept(t *testing.T) {
	path := mustCreate(t)
	b, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	key := idKey(extent.VolumeID(1))
	err = b.Update(func(tx *bbolt.Tx) error {
		raw, err := unseal(bucketVolumes, key, tx.Bucket(bucketVolumes).Get(key))
		if err != nil {
			return err
		}
		text := append([]byte(`{"later":[1,2],`), raw[1:]...)
		return tx.Bucket(bucketVolumes).Put(key, seal(bucketVolumes, key, text))
	})
	if err := errors.Join(err, b.Close()); err != nil {
		t.Fatal(err)
	}
	d := mustOpen(t, path, Options{})
	v := d.State().Volumes[0]
	v.Name = "renamed"
	mustCommit(t, d, &Changes{Volumes: []Volume{v}})
	d.Close()

	b, err = bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	err = b.View(func(tx *bbolt.Tx) error {
		raw := tx.Bucket(bucketVolumes).Get(key)
		if !bytes.Contains(raw, []byte(`"later":[1,2]`)) || !bytes.Contains(raw, []byte(`"renamed"`)) {
			t.Errorf("record = %s", raw)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// One bit of a record is another size, name or state.
func TestEveryBitOfARecordCounts(t *testing.T) {
	key := idKey(extent.VolumeID(1))
	raw := seal(bucketVolumes, key, []byte(`{"id":1,"name":"v","size":4096}`))
	for at := range raw {
		for bit := range 8 {
			flipped := bytes.Clone(raw)
			flipped[at] ^= 1 << bit
			if err := unmarshal(bucketVolumes, key, flipped, new(Volume)); !errors.Is(err, ErrCorrupt) {
				t.Errorf("byte %d, bit %d: %q is taken for a record: %v", at, bit, flipped, err)
			}
		}
	}
	if err := unmarshal(bucketVolumes, idKey(extent.VolumeID(2)), raw, new(Volume)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("under another key: %v", err)
	}
	if err := unmarshal(bucketVolumes, key, raw[:len(raw)-sealBytes], new(Volume)); err != nil {
		t.Errorf("a record of an earlier program: %v", err)
	}
}

func TestInvalidChanges(t *testing.T) {
	d := mustOpen(t, mustCreate(t), Options{})
	bad := map[string]*Changes{
		"volume 0":      {Map: []MapChange{change(0, 1, 1, 1)}},
		"index":         {Map: []MapChange{{Key: extent.Key{Volume: 1, Index: maxIndex + 1}}}},
		"backing":       {Map: []MapChange{change(1, 1, 1024, 1)}},
		"half zero":     {Map: []MapChange{change(1, 1, 0, 1)}},
		"member id":     {Members: []Member{{ID: 0, State: MemberOK}}},
		"member state":  {Members: []Member{{ID: 1}}},
		"volume record": {Volumes: []Volume{{ID: 0, State: VolumeActive}}},
		"volume state":  {Volumes: []Volume{{ID: 1, State: 9}}},
		"volume time":   {Volumes: []Volume{{ID: 1, State: VolumeActive, Created: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}}},
		"pool state":    {Pool: func(p *PoolRecord) { p.State = 0 }},
		"pool version":  {Pool: func(p *PoolRecord) { p.FormatVersion = 2 }},
		"pool panic":    {Pool: func(p *PoolRecord) { panic("edit") }},
	}
	for name, c := range bad {
		if _, err := d.Commit(context.Background(), c); !errors.Is(err, ErrInvalidChange) {
			t.Errorf("%s: Commit = %v, want ErrInvalidChange", name, err)
		}
	}
	if got, want := d.State(), testState(); !reflect.DeepEqual(got, want) {
		t.Errorf("State = %+v, want %+v", got, want)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := d.Commit(ctx, &Changes{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Commit = %v, want context.Canceled", err)
	}
	if n := mustCommit(t, d, &Changes{}); n != 1 {
		t.Errorf("commit after refused ones is number %d, want 1", n)
	}
}

// TestMapModel compares random commits, drops and reopenings with a Go map.
func TestMapModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	path := mustCreate(t)
	d := mustOpen(t, path, Options{})
	model := make(map[extent.Key]extent.Location)
	vols := []extent.VolumeID{1, 2, 1 << 31}
	for step := range 120 {
		var c Changes
		for range rng.IntN(300) {
			k := extent.Key{Volume: vols[rng.IntN(len(vols))], Index: extent.Index(rng.IntN(40000))}
			if rng.IntN(20) == 0 {
				k.Index = maxIndex - extent.Index(rng.IntN(300))
			}
			l := loc(1+rng.IntN(1023), rng.IntN(1<<32))
			if rng.IntN(3) == 0 {
				l = extent.Location{}
			}
			c.Map = append(c.Map, MapChange{Key: k, To: l})
			if l.IsZero() {
				delete(model, k)
			} else {
				model[k] = l
			}
		}
		if rng.IntN(10) == 0 {
			v := vols[rng.IntN(len(vols))]
			c.DropVolumes = append(c.DropVolumes, v)
			for k := range model {
				if k.Volume == v {
					delete(model, k)
				}
			}
		}
		if n := mustCommit(t, d, &c); n != uint64(step+1) {
			t.Fatalf("commit number %d, want %d", n, step+1)
		}
		if rng.IntN(20) == 0 {
			d.Close()
			d = mustOpen(t, path, Options{})
		}
	}
	if got := loadAll(t, d, vols...); !reflect.DeepEqual(got, model) {
		t.Errorf("the map differs from the model: %d extents, want %d", len(got), len(model))
	}
	// All unmapped: nothing may be left in the bucket.
	var c Changes
	for k := range model {
		c.Map = append(c.Map, MapChange{Key: k})
	}
	mustCommit(t, d, &c)
	for _, v := range vols {
		err := d.LoadMap(v, func(first extent.Index, _ []extent.Location) error {
			return fmt.Errorf("a chunk is left at extent %d of volume %d", first, v)
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestCommitsMerge holds the owner inside one commit while others queue.
func TestCommitsMerge(t *testing.T) {
	inside, leave := make(chan struct{}), make(chan struct{})
	d := mustOpen(t, mustCreate(t), Options{Fault: func(p FaultPoint, n uint64) error {
		if p == FaultBefore && n == 1 {
			close(inside)
			<-leave
		}
		return nil
	}})
	var wg sync.WaitGroup
	wg.Go(func() { mustCommit(t, d, &Changes{}) })
	<-inside
	numbers := make([]uint64, 20)
	queued := func() int {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.queue)
	}
	for i := range numbers {
		wg.Go(func() {
			numbers[i] = mustCommit(t, d, &Changes{
				Map:  []MapChange{change(1, 5, 1, i), change(1, 1000+i, 1, i)},
				Pool: func(p *PoolRecord) { p.MaxSeq = uint64(i) },
			})
		})
		for queued() <= i {
			time.Sleep(10 * time.Microsecond)
		}
	}
	close(leave)
	wg.Wait()
	for i, n := range numbers {
		if n != 2 {
			t.Errorf("request %d is in commit %d, want 2", i, n)
		}
	}
	m := loadAll(t, d, 1)
	if got, want := m[extent.Key{Volume: 1, Index: 5}], loc(1, 19); got != want || len(m) != 21 {
		t.Errorf("extent 5 in %v, want the last one queued, %v; %d extents", got, want, len(m))
	}
	if p := d.State().Pool; p.MaxSeq != 19 || p.Commit != 2 {
		t.Errorf("MaxSeq = %d, Commit = %d, want 19 and 2", p.MaxSeq, p.Commit)
	}
}

func TestSlackIsAllocated(t *testing.T) {
	path := mustCreate(t)
	d := mustOpen(t, path, Options{Slack: 8 << 20})
	mustCommit(t, d, &Changes{Map: []MapChange{change(1, 0, 1, 0)}})
	if d.reserved == 0 {
		t.Skip("the file system of the temporary folder does not allocate ahead")
	}
	if got := allocated(t, path); got < 8<<20 {
		t.Errorf("%d bytes are allocated, want 8 MiB beyond what is used", got)
	}
}
