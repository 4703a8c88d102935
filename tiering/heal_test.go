package tiering

import (
	"testing"

	"tierd/tiering/extent"
	"tierd/tiering/ondisk"
)

func TestFirstBlocks(t *testing.T) {
	var all []ondisk.SlotUpdate
	for _, s := range []extent.Slot{0, 1, 127, 128, 300, 301, 900} {
		all = append(all, ondisk.SlotUpdate{Slot: s})
	}
	for n, want := range map[int]int{1: 3, 2: 4, 3: 6, 4: 7, 5: 7} {
		if got := len(firstBlocks(all, n)); got != want {
			t.Errorf("%d blocks have %d of the updates, want %d", n, got, want)
		}
	}
	if got := len(firstBlocks(all[3:], 1)); got != 1 {
		t.Errorf("the first block has %d of the updates from slot 128 on, want 1", got)
	}
}
