package load

import (
	"bytes"
	"sync/atomic"
)

// sectorSize is what a disk writes as a whole, in bytes, also when the power is
// cut.
const sectorSize = 512

// durability remembers, for each unit, the last state that a FLUSH or FUA
// promised to keep through a power cut. A unit's part is used under its lock.
//
// Time is counted in epochs: a FLUSH ends one when it is sent, and covers the
// changes answered in it and before. What a unit was is noted when it is changed
// again, so a FLUSH touches no unit. The price is that the promised state can be
// told too old, never too new: if a unit changes again while the FLUSH that
// covers it is on its way.
type durability struct {
	synced  []word   // promised, as far as changed is above flushed
	changed []uint32 // epoch of the last change; 0: durable as it is
	epoch   atomic.Uint32
	flushed atomic.Uint32 // highest epoch that a FLUSH was answered for
	zeroed  atomic.Bool   // there were trims or zeroings at all
}

func (d *durability) init(units int64) {
	d.synced, d.changed = make([]word, units), make([]uint32, units)
	d.epoch.Store(1)
}

// change notes that unit u, which was w, is changed by an answered request.
func (d *durability) change(u int64, w word, durable bool) {
	if d.changed[u] <= d.flushed.Load() {
		d.synced[u] = w
	}
	d.changed[u] = d.epoch.Load()
	if durable {
		d.changed[u] = 0
	}
}

// durable returns the promised state of unit u, which is w now.
func (d *durability) durable(u int64, w word) word {
	if d.changed[u] <= d.flushed.Load() {
		return w
	}
	return d.synced[u]
}

// beginFlush returns the epoch that a FLUSH sent after it covers.
func (d *durability) beginFlush() uint32 { return d.epoch.Add(1) - 1 }

// endFlush notes that the FLUSH for an epoch was answered.
func (d *durability) endFlush(epoch uint32) {
	for {
		was := d.flushed.Load()
		if epoch <= was || d.flushed.CompareAndSwap(was, epoch) {
			return
		}
	}
}

// acceptCut reports whether b can be the unit at off after a power cut: the
// state low that was promised, or any later one, or sectors of several of them.
func (l *ledger) acceptCut(b []byte, off int64, low word) bool {
	u := off / l.unit
	high := l.words[u].gen()
	for _, d := range l.doubtsOf(u) {
		high = max(high, d.gen())
	}
	switch {
	case low == 0 && !l.expectZero:
		return true // nothing was promised, and what it was before is not known
	case low.gen() == high:
		return l.accept(b, off, low)
	}
	from := low.gen()
	if low.kind() == kindTrim {
		from = 1
	}
	if g := le.Uint32(b[24:]); g >= from && g > 0 && g <= high && isUnit(b, l.seed, off, g) {
		return true
	}
	// A zeroing between the two cannot be told from none, so one anywhere counts.
	zero := low.kind() != kindData || low == 0 || l.zeroed.Load()
	var left [][2]int
	for at := 0; at < len(b); at += sectorSize {
		if !zero || !isZero(b[at:at+sectorSize]) {
			left = append(left, [2]int{at, at + sectorSize})
		}
	}
	whole := make([]byte, len(b))
	for g := max(from, 1); g <= high && len(left) > 0; g++ {
		fillUnit(whole, l.seed, off, g)
		rest := left[:0]
		for _, s := range left {
			if !bytes.Equal(b[s[0]:s[1]], whole[s[0]:s[1]]) {
				rest = append(rest, s)
			}
		}
		left = rest
	}
	return len(left) == 0
}
