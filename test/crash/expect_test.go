package crash

import (
	"slices"
	"testing"
)

// TestExpectation: what a history lets be found, at each of its instants.
func TestExpectation(t *testing.T) {
	h := newHistory()
	for _, o := range []op{
		{kind: opCreate, begin: 1, end: 2, n: sector},
		{kind: opWrite, begin: 3, end: 4, n: sector, content: 7},
		{kind: opFlush, begin: 5, end: 8},
		{kind: opWrite, begin: 6, end: 7, n: sector, content: 8}, // beside that flush
		{kind: opWrite, begin: 9, end: 10, n: sector, content: 9, fua: true},
		{kind: opGrow, begin: 11, end: 12, n: 2 * sector},
		{kind: opWrite, begin: 13, end: 0, n: sector, content: 10}, // without an answer
		{kind: opDelete, begin: 15, end: 16},
	} {
		h.add("v", o)
	}
	for _, tt := range []struct {
		at        int64
		cut, kill []content
	}{
		{2, []content{0}, []content{0}},
		{3, []content{0, 7}, []content{0, 7}},
		{4, []content{0, 7}, []content{7}},
		{6, []content{0, 7, 8}, []content{7, 8}},
		{7, []content{0, 7, 8}, []content{8}},
		{8, []content{7, 8}, []content{8}},
		{9, []content{7, 8, 9}, []content{8, 9}},
		{10, []content{9}, []content{9}},
		{14, []content{9, 10}, []content{9, 10}},
	} {
		for how, want := range map[opKind][]content{opCut: tt.cut, opKill: tt.kill} {
			if got := h.expect("v", tt.at, how).sectors[0]; !slices.Equal(got, want) {
				t.Errorf("%v at %d: %v, want %v", how, tt.at, got, want)
			}
		}
	}
	for at, want := range map[int64][2]bool{0: {false, false}, 1: {true, false}, 2: {true, true}, 15: {true, false}, 16: {false, false}} {
		if x := h.expect("v", at, opKill); [2]bool{x.may, x.must} != want {
			t.Errorf("at %d: may and must exist: %v %v, want %v", at, x.may, x.must, want)
		}
	}
	if x := h.expect("v", 11, opKill); !slices.Equal(x.sizes, []int64{sector, 2 * sector}) {
		t.Errorf("sizes while it grows: %v", x.sizes)
	}
	// A cut takes what a kill after it cannot bring back; the process that comes next
	// can make it durable.
	after := h.after(7, opCut)
	after.add("v", op{kind: opFlush, begin: 20, end: 21})
	if got := after.expect("v", 22, opKill).sectors[0]; !slices.Equal(got, []content{0, 7, 8}) {
		t.Errorf("after the cut: %v", got)
	}
	after = h.after(7, opKill)
	after.add("v", op{kind: opFlush, begin: 20, end: 21})
	if got := after.expect("v", 22, opCut).sectors[0]; !slices.Equal(got, []content{8}) {
		t.Errorf("after kill and flush: %v, want what was answered", got)
	}
}

// TestIdentify: bytes are known by who wrote them and where, and those of two
// writers in one sector by nobody.
func TestIdentify(t *testing.T) {
	c := newContent()
	p := c.bytes(4*sector, 2*sector)
	for i := range int64(2) {
		if got, err := identify(p[i*sector:(i+1)*sector], 4+i); got != c || err != nil {
			t.Errorf("identify = %d, %v, want %d", got, err, c)
		}
	}
	if _, err := identify(p[:sector], 5); err == nil {
		t.Error("a sector in the wrong place was taken for good")
	}
	p[100]++
	if _, err := identify(p[:sector], 4); err == nil {
		t.Error("a sector with a wrong byte was taken for good")
	}
	if got, err := identify(make([]byte, sector), 4); got != 0 || err != nil {
		t.Errorf("identify of zeroes = %d, %v", got, err)
	}
}
