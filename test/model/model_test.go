package model

import (
	"flag"
	"fmt"
	"testing"

	"go.uber.org/goleak"
)

var sequences = flag.Int("sequences", 170, "random sequences for each extent size, with and without power losses")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSequences compares the pool with the shadow over random sequences of
// everything one can do with it, restarts and kills included.
func TestSequences(t *testing.T) {
	for _, size := range []int64{64 << 10, 256 << 10, 1 << 20} {
		for _, cuts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%dKiB cuts=%v", size>>10, cuts), func(t *testing.T) {
				seed := Seed(t)
				for i := range *sequences {
					// Few slots: space runs out and slots are used again and again.
					cfg := Config{
						ExtentSize: size, Slots: [][]int{{5}, {4, 8}, {14}},
						Volumes: []int64{6*size + 4096, 9 * size},
					}
					NewRun(t, cfg, seed+uint64(i), cuts).Steps(40)
				}
			})
		}
	}
}
