package model

import (
	"encoding/binary"
	"fmt"
	"sync"
)

// A ledger knows, of every sector of a volume, which contents a crash may leave
// there. Changes are numbered in the order in which they got in line, and a write
// puts its number, with the number of the sector and of the volume, into all of
// the sectors it covers: what is read tells which change it is from.
type ledger struct {
	uid uint32

	mu      sync.Mutex
	sectors [][]*change // changes of each sector in their order; the first is older than all that matters
	changes []*change   // since the last resume
	flushes []span      // those answered well
}

// span is when something went on, in ticks of the run. It has no end if nobody was
// told of one.
type span struct{ begun, ended uint64 }

// change is a write, trim or zeroing.
type change struct {
	span
	seq     uint64
	zero    bool
	fua     bool
	commit  uint64 // number of the last commit when it began
	durable uint64 // tick from which on no crash takes it back; 0: not yet
}

func newLedger(uid uint32, size int64, now uint64) *ledger {
	l := &ledger{uid: uid}
	l.grow(size, now)
	return l
}

// grow adds sectors that read as zeroes.
func (l *ledger) grow(size int64, now uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for int64(len(l.sectors))*sector < size {
		l.sectors = append(l.sectors, []*change{{zero: true, durable: 1, span: span{0, 1}}})
	}
}

func (l *ledger) size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(len(l.sectors)) * sector
}

// begin notes a change of [off, off+n) and calls enter, which puts it in line.
func (l *ledger) begin(off, n int64, c *change, enter func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := off / sector; i*sector < off+n; i++ {
		l.sectors[i] = append(l.sectors[i], c)
	}
	l.changes = append(l.changes, c)
	enter()
}

// answered notes that c was answered well, at tick now.
func (l *ledger) answered(c *change, now uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.ended = now
	if c.fua {
		c.durable = now
	}
}

func (l *ledger) flushed(begun, ended uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flushes = append(l.flushes, span{begun, ended})
	for _, c := range l.changes {
		if c.ended != 0 && c.ended < begun && (c.durable == 0 || c.durable > ended) {
			c.durable = ended
		}
	}
}

// fill makes the content of n bytes at off by the change seq.
func (l *ledger) fill(p []byte, off int64, seq uint64) {
	for i := 0; i < len(p); i += 16 {
		at := uint32((off+int64(i))/sector) + 1
		binary.LittleEndian.PutUint32(p[i:], l.uid)
		binary.LittleEndian.PutUint32(p[i+4:], at)
		binary.LittleEndian.PutUint64(p[i+8:], seq)
	}
}

// seqOf returns the change that a sector's content is from; 0: it is all zero.
func (l *ledger) seqOf(p []byte, i int) (uint64, error) {
	uid, at, seq := binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint32(p[4:]), binary.LittleEndian.Uint64(p[8:])
	for k := 16; k < len(p); k += 16 {
		if [16]byte(p[k:]) != [16]byte(p) {
			return 0, fmt.Errorf("sector %d is torn: %x and %x", i, p[:16], p[k:k+16])
		}
	}
	if uid == 0 && at == 0 && seq == 0 {
		return 0, nil
	}
	if uid != l.uid || at != uint32(i)+1 {
		return 0, fmt.Errorf("sector %d of volume %d reads as sector %d of volume %d", i, l.uid, int64(at)-1, uid)
	}
	return seq, nil
}

// rule says what a reader may rely on: the newest change for which must holds, or a
// later one for which may holds.
type rule struct{ must, may func(*change) bool }

// judge returns the place in sector i's list of the change that its content is from.
// It is an error if it may not be from that. l.mu is held.
func (l *ledger) judge(i int, p []byte, r rule) (int, error) {
	seq, err := l.seqOf(p, i)
	if err != nil {
		return 0, err
	}
	list := l.sectors[i]
	low := 0
	for k, c := range list {
		if k == 0 || r.must(c) {
			low = k
		}
	}
	found := -1
	for k := low; k < len(list); k++ {
		if c := list[k]; (k == low || r.may(c)) && (seq == 0 && c.zero || seq != 0 && c.seq == seq) {
			found = k
		}
	}
	if found < 0 {
		return 0, fmt.Errorf("sector %d of volume %d is of change %d (0: zeroes), and must be of change %d (zero %v) or later; %s",
			i, l.uid, seq, list[low].seq, list[low].zero, l.describe(list))
	}
	return found, nil
}

func (l *ledger) describe(list []*change) string {
	text := "known:"
	for _, c := range list[max(0, len(list)-8):] {
		text += fmt.Sprintf(" [%d zero %v fua %v begun %d ended %d durable %d]", c.seq, c.zero, c.fua, c.begun, c.ended, c.durable)
	}
	return text
}

// check judges p, read at off.
func (l *ledger) check(p []byte, off int64, r rule) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k := int64(0); k < int64(len(p)); k += sector {
		if _, err := l.judge(int((off+k)/sector), p[k:k+sector], r); err != nil {
			return err
		}
	}
	return nil
}

// lost reports whether a sector of p is older than the newest change of it that was
// answered before tick before.
func (l *ledger) lost(p []byte, before uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := rule{func(c *change) bool { return c.ended != 0 && c.ended < before }, func(*change) bool { return true }}
	for i := range min(len(l.sectors), len(p)/sector) {
		if _, err := l.judge(i, p[i*sector:(i+1)*sector], r); err != nil {
			return true
		}
	}
	return false
}

// adopt judges p, all of the volume after a crash at tick crash, and forgets what has
// not come of it. What was found counts as answered at tick now, when the next open
// begins.
func (l *ledger) adopt(p []byte, r rule, crash, now uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sectors = l.sectors[:len(p)/sector]
	for _, c := range l.changes {
		if c.ended >= crash {
			c.ended = 0
		}
		if c.durable >= crash {
			c.durable = 0
		}
	}
	l.changes, l.flushes = nil, nil
	seen := make(map[*change]*change)
	for i := range l.sectors {
		k, err := l.judge(i, p[i*sector:(i+1)*sector], r)
		if err != nil {
			return err
		}
		// What is found may be a part of a change that is lost elsewhere: it is a
		// change of its own from now on.
		list := l.sectors[i][:k+1]
		old := list[k]
		c := seen[old]
		if c == nil {
			cc := *old
			c = &cc
			if c.ended == 0 {
				c.ended = now
			}
			seen[old] = c
			l.changes = append(l.changes, c)
		}
		low := 0
		for j := range list {
			if list[j].durable != 0 && r.must(list[j]) {
				low = j
			}
		}
		l.sectors[i] = append(append([]*change(nil), list[low:k]...), c)
	}
	return nil
}

// settled notes that all that is there is durable from tick now on.
func (l *ledger) settled(now uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.changes {
		if c.durable == 0 || c.durable > now {
			c.durable = now
		}
	}
}
