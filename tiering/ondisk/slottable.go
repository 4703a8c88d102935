package ondisk

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"tierd/pkg/backing"
	"tierd/tiering/extent"
)

// Kind says what an entry of the slot table records.
type Kind uint8

const (
	Free      Kind = iota // nothing: all zero
	Owner                 // the extent that lives in the slot
	Tombstone             // the extent that lived there last, unmapped with this sequence
)

func (k Kind) String() string {
	if int(k) < 3 {
		return [...]string{"free", "owner", "tombstone"}[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// SlotEntry is what the table says of one slot. The zero SlotEntry is Free.
type SlotEntry struct {
	Kind Kind
	Key  extent.Key
	Seq  uint64 // incarnation<<40 | counter; the higher one of two is the later
}

// SlotUpdate is one entry to be written.
type SlotUpdate struct {
	Slot  extent.Slot
	Entry SlotEntry
}

// SlotTable reads and writes the slot table of one backing, in whole blocks of
// 4 KiB. It is safe for concurrent use; its lock orders the overlapping reads
// and writes of the blocks.
type SlotTable struct {
	st     backing.Store
	layout Layout
	seed   uint32 // CRC of pool, backing and its id, which those of the entries continue

	mu sync.Mutex

	// recent are blocks as they were last read or written, by number: a round that
	// adds to a block needs no read of it, which on a busy disk waits as long as a
	// write does.
	recentMu sync.Mutex
	recent   map[uint32][]byte
}

// recentBlocks is how many blocks are kept in memory: 1 MiB.
const recentBlocks = 256

// NewSlotTable returns the table of a backing. Nothing is read yet.
func NewSlotTable(st backing.Store, poolID, backingUUID uuid.UUID, id extent.BackingID, l Layout) *SlotTable {
	var e encoder
	e.uuid(poolID)
	e.uuid(backingUUID)
	e.u16(uint16(id))
	return &SlotTable{st: st, layout: l, seed: crc32.Checksum(e.b, castagnoli), recent: make(map[uint32][]byte)}
}

// encode writes e, the entry of slot, into b of 32 bytes; see doc.go.
func (t *SlotTable) encode(b []byte, slot extent.Slot, e SlotEntry) {
	clear(b[:entrySize])
	if e.Kind == Free {
		return
	}
	b[0] = byte(e.Kind)
	binary.LittleEndian.PutUint32(b[4:], uint32(e.Key.Volume))
	binary.LittleEndian.PutUint64(b[8:], uint64(e.Key.Index))
	binary.LittleEndian.PutUint64(b[16:], e.Seq)
	binary.LittleEndian.PutUint32(b[28:], t.crc(b, slot))
}

func (t *SlotTable) crc(b []byte, slot extent.Slot) uint32 {
	var n [4]byte
	binary.LittleEndian.PutUint32(n[:], uint32(slot))
	return crc32.Update(crc32.Update(t.seed, castagnoli, n[:]), castagnoli, b[:28])
}

// decode returns the entry of slot in b, and whether it is valid.
func (t *SlotTable) decode(b []byte, slot extent.Slot) (e SlotEntry, valid bool) {
	b = b[:entrySize]
	if b[0] == byte(Free) {
		return SlotEntry{}, allZero(b)
	}
	if b[0] > byte(Tombstone) || binary.LittleEndian.Uint32(b[28:]) != t.crc(b, slot) {
		return SlotEntry{}, false
	}
	return SlotEntry{
		Kind: Kind(b[0]),
		Key: extent.Key{
			Volume: extent.VolumeID(binary.LittleEndian.Uint32(b[4:])),
			Index:  extent.Index(binary.LittleEndian.Uint64(b[8:])),
		},
		Seq: binary.LittleEndian.Uint64(b[16:]),
	}, true
}

// Write writes the updates; of two for one slot the later one wins. It does
// not sync. Entries beside the updated ones are kept as they are, valid or
// not. After an error some blocks may have been written.
//
// The slice is not changed. Neighbouring blocks are read and written in one
// call each, and such runs of blocks side by side: on a busy disk each call
// waits behind what others have asked for.
func (t *SlotTable) Write(ctx context.Context, updates []SlotUpdate) error {
	_, err := t.WriteIf(ctx, updates, nil)
	return err
}

// WriteIf is Write of those updates alone that still wants, knowing what the
// table holds by now; nil wants all. It returns how many these were. still is
// called from several goroutines and must not use the table.
func (t *SlotTable) WriteIf(ctx context.Context, updates []SlotUpdate, still func(u SlotUpdate, now SlotEntry, valid bool) bool) (int, error) {
	sorted := slices.Clone(updates)
	slices.SortStableFunc(sorted, func(a, b SlotUpdate) int { return cmp.Compare(a.Slot, b.Slot) })
	if n := len(sorted); n > 0 && uint32(sorted[n-1].Slot) >= t.layout.TableSlots {
		return 0, fmt.Errorf("write slot table: %w: slot %d of %d", ErrTooLarge, sorted[n-1].Slot, t.layout.TableSlots)
	}
	for _, u := range sorted {
		if u.Entry.Kind > Tombstone {
			return 0, fmt.Errorf("write slot table: %w: %v", ErrTooLarge, u.Entry.Kind)
		}
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	var (
		wg      sync.WaitGroup
		written atomic.Int64
		failure atomic.Pointer[error]
		places  = make(chan struct{}, writeRuns)
	)
	for len(sorted) > 0 {
		// A run is a row of blocks that each have an update.
		first := uint32(sorted[0].Slot) / EntriesPerBlock
		last, n := first, 0
		for n < len(sorted) {
			b := uint32(sorted[n].Slot) / EntriesPerBlock
			if b > last+1 || b >= first+runBlocks {
				break
			}
			last = b
			n++
		}
		run := sorted[:n]
		sorted = sorted[n:]
		places <- struct{}{}
		if failure.Load() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-places }()
			n, err := t.writeRun(ctx, first, last, run, still)
			written.Add(int64(n))
			if err != nil {
				failure.CompareAndSwap(nil, &err)
			}
		})
	}
	wg.Wait()
	if err := failure.Load(); err != nil {
		return int(written.Load()), fmt.Errorf("write slot table: %w", *err)
	}
	return int(written.Load()), nil
}

// writeRun writes the updates of the blocks from first to last. mu is held.
func (t *SlotTable) writeRun(ctx context.Context, first, last uint32, updates []SlotUpdate, still func(SlotUpdate, SlotEntry, bool) bool) (int, error) {
	run := alignedBytes(int(last-first+1) * blockSize)
	off := t.layout.SlotTableOffset + int64(first)*blockSize
	if !t.recall(first, run) {
		if err := t.st.ReadAt(ctx, run, off); err != nil {
			return 0, fmt.Errorf("read entries beside: %w", err)
		}
	}
	n := 0
	for _, u := range updates {
		b := run[int64(u.Slot)*entrySize-int64(first)*blockSize:]
		if still != nil {
			if now, valid := t.decode(b, u.Slot); !still(u, now, valid) {
				continue
			}
		}
		t.encode(b, u.Slot, u.Entry)
		n++
	}
	if n == 0 {
		return 0, nil
	}
	if err := t.st.WriteAt(ctx, run, off); err != nil {
		t.forget(first, last) // nobody knows what is there
		return n, err
	}
	t.remember(first, run)
	return n, nil
}

// recall fills run, blocks from first on, from memory if all of them are there.
func (t *SlotTable) recall(first uint32, run []byte) bool {
	t.recentMu.Lock()
	defer t.recentMu.Unlock()
	for i := 0; i < len(run); i += blockSize {
		b, ok := t.recent[first+uint32(i/blockSize)]
		if !ok {
			return false
		}
		copy(run[i:], b)
	}
	return true
}

// remember keeps the blocks of run, the first of which is first, in place of any
// others.
func (t *SlotTable) remember(first uint32, run []byte) {
	t.recentMu.Lock()
	defer t.recentMu.Unlock()
	for i := 0; i < len(run); i += blockSize {
		block := first + uint32(i/blockSize)
		if _, ok := t.recent[block]; !ok && len(t.recent) >= recentBlocks {
			for old := range t.recent {
				delete(t.recent, old)
				break
			}
		}
		t.recent[block] = append(t.recent[block][:0], run[i:i+blockSize]...)
	}
}

func (t *SlotTable) forget(first, last uint32) {
	t.recentMu.Lock()
	defer t.recentMu.Unlock()
	for b := first; b <= last; b++ {
		delete(t.recent, b)
	}
}

// writeRuns is how many runs of blocks are written at once.
const writeRuns = 32

// runBlocks is the most blocks that a call of Write or Scan takes at once: 1 MiB.
const runBlocks = 256

// Read returns the entry of one slot, and whether it is valid.
func (t *SlotTable) Read(ctx context.Context, slot extent.Slot) (e SlotEntry, valid bool, err error) {
	if uint32(slot) >= t.layout.TableSlots {
		return e, false, fmt.Errorf("read slot table: %w: slot %d of %d", ErrTooLarge, slot, t.layout.TableSlots)
	}
	b := alignedBytes(blockSize)
	at := int64(slot) * entrySize
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.st.ReadAt(ctx, b, t.layout.SlotTableOffset+at/blockSize*blockSize); err != nil {
		return e, false, fmt.Errorf("read slot table: %w", err)
	}
	e, valid = t.decode(b[at%blockSize:], slot)
	return e, valid, nil
}

// Scan calls fn for each slot of the backing, in order, free ones included,
// until fn returns false. An entry that is not valid comes as the zero entry:
// its slot is to be kept out of use. The table may be written meanwhile, by fn
// too; an entry is seen before or after. The room for later slots is not
// looked at.
func (t *SlotTable) Scan(ctx context.Context, fn func(slot extent.Slot, e SlotEntry, valid bool) bool) error {
	return t.ScanRange(ctx, 0, t.layout.Slots, fn)
}

// ScanRange is Scan of up to n slots from this one on.
func (t *SlotTable) ScanRange(ctx context.Context, from extent.Slot, n uint32, fn func(slot extent.Slot, e SlotEntry, valid bool) bool) error {
	end := min(int64(from)+int64(n), int64(t.layout.Slots))
	first := int64(from) / EntriesPerBlock * EntriesPerBlock
	buf := alignedBytes(min(runBlocks*blockSize, roundUp(int(max(end-first, 0))*entrySize)))
	for ; first < end; first += runBlocks * EntriesPerBlock {
		n := min(end-first, runBlocks*EntriesPerBlock)
		run := buf[:roundUp(int(n)*entrySize)]
		t.mu.Lock()
		err := t.st.ReadAt(ctx, run, t.layout.SlotTableOffset+first*entrySize)
		t.mu.Unlock()
		if err != nil {
			return fmt.Errorf("scan slot table: %w", err)
		}
		for i := range n {
			slot := extent.Slot(first + i)
			if slot < from {
				continue
			}
			e, valid := t.decode(run[i*entrySize:], slot)
			if !fn(slot, e, valid) {
				return nil
			}
		}
	}
	return nil
}

// Salvage is Scan of a table of which parts may be unreadable: it goes on behind them.
// unread is called for each block that cannot be read, with the slots whose entries
// are there. The error is that of ctx.
func (t *SlotTable) Salvage(ctx context.Context, fn func(slot extent.Slot, e SlotEntry, valid bool) bool, unread func(first extent.Slot, n uint32, err error)) error {
	goOn := true
	visit := func(s extent.Slot, e SlotEntry, valid bool) bool {
		goOn = fn(s, e, valid)
		return goOn
	}
	const run = runBlocks * EntriesPerBlock
	for from, end := int64(0), int64(t.layout.Slots); from < end && goOn; from += run {
		// A run is read in one call, before its first slot is looked at.
		if t.ScanRange(ctx, extent.Slot(from), run, visit) == nil {
			continue
		}
		for at := from; at < min(from+run, end) && goOn; at += EntriesPerBlock {
			err := t.ScanRange(ctx, extent.Slot(at), EntriesPerBlock, visit)
			if err := ctx.Err(); err != nil {
				return err
			}
			if err != nil {
				unread(extent.Slot(at), uint32(min(EntriesPerBlock, end-at)), err)
			}
		}
	}
	return ctx.Err()
}

// Zero makes all entries free, the room for later slots included. It does not
// sync.
func (t *SlotTable) Zero(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.recent)
	if err := t.st.Zero(ctx, t.layout.SlotTableOffset, t.layout.slotTableSize()); err != nil {
		return fmt.Errorf("clear slot table: %w", err)
	}
	return nil
}
