package ondisk

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"

	"tierd/tiering/extent"
)

// memStore is a Store of bytes that remembers what was written since the last
// Sync, so that a test can cut the power with any of those sectors lost.
type memStore struct {
	mu      sync.Mutex
	now     []byte
	durable []byte
	dirty   map[int64]bool   // sectors
	arrived map[int64][]byte // of a store after a cut: sectors that replace those of now
	syncs   int
	failAt  int                // the Sync or WriteAt that fails, counted down; 0: none
	onSync  func(st *memStore) // before a Sync takes effect
}

const sector = 512

var errInjected = errors.New("injected")

func newMem(size int64) *memStore {
	return &memStore{now: make([]byte, size), durable: make([]byte, size), dirty: make(map[int64]bool)}
}

func (m *memStore) Size() int64                                        { return int64(len(m.now)) }
func (m *memStore) TryReadAt([]byte, int64) bool                       { return false }
func (m *memStore) StartWriteback(int64, int64)                        {}
func (m *memStore) Instance() string                                   { return "mem" }
func (m *memStore) Close() error                                       { return nil }
func (m *memStore) Discard(context.Context, int64, int64) error        { return nil }
func (m *memStore) IsHole(context.Context, int64, int64) (bool, error) { return false, nil }

func (m *memStore) check(ctx context.Context, off int64, n int) error {
	if off < 0 || off+int64(n) > m.Size() {
		return errors.New("outside of the store")
	}
	if off%blockSize != 0 || n%blockSize != 0 {
		return errors.New("not whole blocks")
	}
	return ctx.Err()
}

func (m *memStore) ReadAt(ctx context.Context, p []byte, off int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.check(ctx, off, len(p)); err != nil {
		return err
	}
	copy(p, m.now[off:])
	for s := off / sector; len(m.arrived) > 0 && s < (off+int64(len(p)))/sector; s++ {
		if b, ok := m.arrived[s]; ok {
			copy(p[s*sector-off:], b)
		}
	}
	return nil
}

func (m *memStore) fail() error {
	if m.failAt > 0 {
		if m.failAt--; m.failAt == 0 {
			return errInjected
		}
	}
	return nil
}

func (m *memStore) WriteAt(ctx context.Context, p []byte, off int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := errors.Join(m.check(ctx, off, len(p)), m.fail()); err != nil {
		return err
	}
	copy(m.now[off:], p)
	for s := off / sector; s < (off+int64(len(p)))/sector; s++ {
		m.dirty[s] = true
	}
	return nil
}

func (m *memStore) Zero(ctx context.Context, off, n int64) error {
	// An area may be cut off by the end of a store that is no multiple of 4 KiB.
	m.mu.Lock()
	defer m.mu.Unlock()
	if off < 0 || off+n > m.Size() {
		return errors.New("outside of the store")
	}
	clear(m.now[off : off+n])
	for s := off / sector; s < (off+n+sector-1)/sector; s++ {
		m.dirty[s] = true
	}
	return ctx.Err()
}

func (m *memStore) Sync(ctx context.Context) error {
	if m.onSync != nil {
		m.onSync(m)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := errors.Join(ctx.Err(), m.fail()); err != nil {
		return err
	}
	m.syncs++
	for s := range m.dirty {
		copy(m.durable[s*sector:min((s+1)*sector, m.Size())], m.now[s*sector:])
	}
	clear(m.dirty)
	return nil
}

// cut returns the store after a power cut, when of the unsynced sectors those
// arrived that keep says. It is for reading alone, and shares m's bytes.
func (m *memStore) cut(keep func(i int, s int64) bool) *memStore {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &memStore{now: m.durable, arrived: make(map[int64][]byte)}
	for i, s := range slices.Sorted(maps.Keys(m.dirty)) {
		if keep(i, s) {
			c.arrived[s] = m.now[s*sector : min((s+1)*sector, m.Size())]
		}
	}
	return c
}

// clone returns a store with the same bytes, all of them synced.
func (m *memStore) clone() *memStore {
	c := newMem(0)
	c.now, c.durable = slices.Clone(m.now), slices.Clone(m.now)
	return c
}

// everyCut calls fn with the store after a cut, for prefixes and suffixes of
// the unsynced sectors, single ones kept or lost, and random subsets.
func (m *memStore) everyCut(rng *rand.Rand, fn func(c *memStore)) {
	n := len(m.dirty)
	step := max(1, n/20)
	for k := 0; k <= n; k += step {
		fn(m.cut(func(i int, _ int64) bool { return i < k }))
		fn(m.cut(func(i int, _ int64) bool { return i >= k }))
		fn(m.cut(func(i int, _ int64) bool { return i == k }))
		fn(m.cut(func(i int, _ int64) bool { return i != k }))
	}
	for range 10 {
		fn(m.cut(func(int, int64) bool { return rng.IntN(2) == 0 }))
	}
}

var bg = context.Background()

const testSize = 16 << 20

func mustSize(t testing.TB, n int64) extent.Size {
	t.Helper()
	s, err := extent.NewSize(n)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustLayout(t testing.TB, size, es int64) Layout {
	t.Helper()
	l, err := NewLayout(size, mustSize(t, es))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var (
	poolA = uuid.UUID{0: 0xAA, 15: 1}
	poolB = uuid.UUID{0: 0xBB, 15: 2}
	backA = uuid.UUID{0: 0xCC, 15: 3}
)

func testSuperblock(l Layout) *Superblock {
	return &Superblock{
		Version: FormatVersion, Features: Features{Compat: 1 << 63},
		PoolID: poolA, BackingUUID: backA, Backing: 2, Tier: 1, State: BackingActive,
		Layout: l, Incarnation: 7, NextBacking: 4,
		Tiers: []TierRecord{{0, "ssd", "ssd"}, {1, "sata", "hdd"}},
		Members: []MemberRecord{
			{ID: 1, UUID: uuid.UUID{1}, Tier: 0, State: MemberOK, Incarnation: 7},
			{ID: 2, UUID: backA, Tier: 1, State: MemberFailed, Incarnation: 6},
			{ID: 3, UUID: uuid.UUID{3}, Tier: 1, State: MemberForgotten, Incarnation: 2},
		},
	}
}

func seeded(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
