package nbd

import "testing"

// TestBudgetWaitersAreBounded: who waits asks again each second, for as long as devices hang.
func TestBudgetWaitersAreBounded(t *testing.T) {
	b := budget{}
	first := b.take(1)
	for range 1000 {
		if b.take(1) != first {
			t.Fatal("each try to take from an empty budget leaves something behind until the next release")
		}
	}
	b.give(1)
	select {
	case <-first:
	default:
		t.Fatal("a release wakes nobody")
	}
	if b.take(1) != nil {
		t.Fatal("what was released is not there")
	}
}
