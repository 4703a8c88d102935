package nbd

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// A memDevice is a Device in memory. Changes of the whole device run in the
// order of Begin, which is the strictest order a Device may keep.
type memDevice struct {
	mu   sync.Mutex
	cond *sync.Cond
	data []byte
	next int // ticket of the next Begin
	turn int // ticket that may run

	// Knobs.
	miss      atomic.Bool                     // TryRead declines
	readGate  func(off int64) <-chan struct{} // ReadAt waits for it
	runGate   func(off int64) <-chan struct{} // Run waits for it, in its turn
	readErr   func(off int64) error
	runErr    func(off int64) error
	flushErr  error
	panicAt   int64 // offset at which everything panics; 0 is never
	onFlush   func()
	flushGate <-chan struct{}

	holes, fastZero bool
	promoteErr      error
	promoted        atomic.Int64

	begun, run, dropped, flushes, fuas, noHoles, closes atomic.Int64
}

func newMemDevice(size int) *memDevice {
	d := &memDevice{data: make([]byte, size)}
	d.cond = sync.NewCond(&d.mu)
	return d
}

func (d *memDevice) Size() int64 { return int64(len(d.data)) }

func (d *memDevice) check(off int64) {
	if d.panicAt != 0 && off == d.panicAt {
		panic("the device was told to panic")
	}
}

func (d *memDevice) TryRead(p []byte, off int64) bool {
	d.check(off)
	if d.miss.Load() || d.readErr != nil && d.readErr(off) != nil || d.readGate != nil && d.readGate(off) != nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(p, d.data[off:off+int64(len(p))])
	return true
}

func (d *memDevice) ReadAt(ctx context.Context, p []byte, off int64) error {
	d.check(off)
	if d.readGate != nil {
		if gate := d.readGate(off); gate != nil {
			select {
			case <-gate:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	if d.readErr != nil {
		if err := d.readErr(off); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(p, d.data[off:off+int64(len(p))])
	return nil
}

type memMutation struct {
	d      *memDevice
	ticket int
	kind   byte
	off, n int64
	ran    bool
}

func (d *memDevice) beginMutation(kind byte, off, n int64) Mutation {
	d.begun.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	m := &memMutation{d: d, ticket: d.next, kind: kind, off: off, n: n}
	d.next++
	return m
}

func (d *memDevice) BeginWrite(off, n int64) Mutation { return d.beginMutation('w', off, n) }
func (d *memDevice) BeginTrim(off, n int64) Mutation  { return d.beginMutation('t', off, n) }
func (d *memDevice) BeginWriteZeroes(off, n int64, noHole, fast bool) Mutation {
	if noHole {
		d.noHoles.Add(1)
	}
	kind := byte('z')
	if fast && !d.fastZero {
		kind = '-'
	}
	return d.beginMutation(kind, off, n)
}

// memExtent is the unit of the holes of a memDevice.
const memExtent = 64 << 10

// Span tells extents of zeroes as holes, if the device has holes, and the others
// as on tier 1 and 2 in turns.
func (d *memDevice) Span(off, n int64) Span {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.stateLocked(off / memExtent)
	end := (off/memExtent + 1) * memExtent
	for end < off+n && d.stateLocked(end/memExtent) == s {
		end += memExtent
	}
	s.Len = min(end, off+n) - off
	return s
}

func (d *memDevice) stateLocked(i int64) Span {
	if d.holes && !slices.ContainsFunc(d.data[i*memExtent:min((i+1)*memExtent, int64(len(d.data)))], func(b byte) bool { return b != 0 }) {
		return Span{Hole: true}
	}
	return Span{Tier: 1 + int(i%2)}
}

func (d *memDevice) Promote(_ context.Context, off, n int64) error {
	d.promoted.Add(n)
	return d.promoteErr
}

func (m *memMutation) Run(ctx context.Context, p []byte, fua bool) (err error) {
	d := m.d
	if m.ran {
		panic("a mutation was run twice")
	}
	m.ran = true
	d.run.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.turn != m.ticket {
		d.cond.Wait()
	}
	defer func() {
		d.turn++
		d.cond.Broadcast()
	}()
	d.check(m.off)
	if d.runGate != nil {
		if gate := d.runGate(m.off); gate != nil {
			d.mu.Unlock()
			<-gate
			d.mu.Lock()
		}
	}
	if err := ctx.Err(); err != nil {
		d.dropped.Add(1)
		return err
	}
	if d.runErr != nil {
		if err := d.runErr(m.off); err != nil {
			return err
		}
	}
	if fua {
		d.fuas.Add(1)
	}
	if m.kind == '-' {
		return ErrNotSupported
	}
	if m.kind == 'w' {
		copy(d.data[m.off:m.off+m.n], p)
	} else {
		clear(d.data[m.off : m.off+m.n])
	}
	return nil
}

func (d *memDevice) Flush(ctx context.Context) error {
	if d.flushGate != nil {
		<-d.flushGate
	}
	if d.onFlush != nil {
		d.onFlush()
	}
	d.flushes.Add(1)
	return d.flushErr
}

func (d *memDevice) Close() error { d.closes.Add(1); return nil }

// memExports are named memDevices.
type memExports struct {
	mu    sync.Mutex
	infos []ExportInfo
	devs  map[string]Device
	def   string
	opens map[string]int
	err   error // of Open
	panic bool
}

func newMemExports() *memExports {
	return &memExports{devs: map[string]Device{}, opens: map[string]int{}}
}

func (e *memExports) add(info ExportInfo, d Device) *memExports {
	info.Size = d.Size()
	e.infos = append(e.infos, info)
	e.devs[info.Name] = d
	return e
}

func (e *memExports) List() []ExportInfo {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]ExportInfo(nil), e.infos...)
}

func (e *memExports) Info(name string) (ExportInfo, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.panic {
		panic("the exports were told to panic")
	}
	if name == "" {
		name = e.def
	}
	for _, info := range e.infos {
		if info.Name == name {
			return info, nil
		}
	}
	return ExportInfo{}, ErrNoExport
}

func (e *memExports) Open(name string) (Device, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.opens[name]++
	if e.err != nil {
		return nil, e.err
	}
	return e.devs[name], nil
}

func (e *memExports) opened() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, m := range e.opens {
		n += m
	}
	return n
}
