package tiering

import (
	"time"

	"tierd/pkg/metrics"
)

// A waitCause says what a client's request was held up by.
type waitCause uint8

// The causes of waits.
const (
	waitPace      waitCause = iota // too much of the backing was unsynced
	waitExclusive                  // an earlier change of the same range, or the last moment of a move
	waitSlots                      // free slots that were not clean yet
	waitSpace                      // room in a full pool, or within a quota
	waitStagedLog                  // room in the staged log
	waitSync                       // FUA: a sync of the backing
	waitRound                      // FLUSH, and FUA behind a change of the mapping: a round of the volume
	waitCauses
)

var waitNames = [waitCauses]string{"pace", "exclusive", "slots", "space", "staged_log", "sync", "round"}

func (c waitCause) String() string { return waitNames[c] }

// foregroundWaits counts how long requests of clients waited, by cause. What did
// not have to wait is not counted.
type foregroundWaits [waitCauses]metrics.Histogram

// since counts a wait that began at start and is over.
func (w *foregroundWaits) since(c waitCause, start time.Time) { w[c].Observe(time.Since(start)) }
