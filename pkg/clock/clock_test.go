package clock

import (
	"testing"
	"time"
)

func TestFake(t *testing.T) {
	start := time.Unix(1000, 0)
	f := NewFake(start)
	early, late := f.After(time.Second), f.After(3*time.Second)
	f.Advance(2 * time.Second)
	select {
	case got := <-early:
		if want := start.Add(2 * time.Second); !got.Equal(want) {
			t.Errorf("fired at %v, want %v", got, want)
		}
	default:
		t.Error("a due channel did not fire")
	}
	select {
	case <-late:
		t.Error("a channel fired early")
	default:
	}
	if got := f.Waiters(); got != 1 {
		t.Errorf("Waiters = %d, want 1", got)
	}
	if got := len(f.After(0)); got != 1 {
		t.Error("After(0) did not fire at once")
	}
}
