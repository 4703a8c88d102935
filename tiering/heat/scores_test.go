package heat

import (
	"testing"

	"tierd/tiering/extent"
)

// TestScores: what is told of many extents at once is what is told of each, wherever the
// range lies to chunks and segments, touched or not.
func TestScores(t *testing.T) {
	tr := newTracker(t, testParams())
	const extents = 3*segmentLen + 100
	v := tr.AddVolume(1, extents)
	touched := []extent.Index{0, 1, chunkLen - 1, chunkLen, 3*chunkLen + 7, 2*segmentLen - 1, 2 * segmentLen, extents - 1}
	for n, i := range touched {
		for range n + 1 {
			v.Access(int64(i)*mib, 4096, false)
		}
	}
	tr.Drain(start)
	v.Moved(3*chunkLen + 7)
	for _, tt := range []struct {
		first extent.Index
		ask   int
		want  int
	}{
		{0, 1, 1},
		{1, chunkLen, chunkLen},
		{chunkLen - 1, 2, 2},
		{3*chunkLen + 5, 2*chunkLen + 9, 2*chunkLen + 9},
		{segmentLen - 3, segmentLen + 7, segmentLen + 7}, // over a segment never touched at first
		{extents - 50, 4096, 50},
		{extents, 5, 0},
	} {
		out := make([]Score, tt.ask)
		for i := range out {
			out[i] = Score{Heat: -1}
		}
		got := v.Scores(tt.first, out, start)
		if got != tt.want {
			t.Errorf("from %d: got %d scores, want %d", tt.first, got, tt.want)
		}
		for k, s := range out {
			want := Score{Heat: -1} // left alone
			if k < tt.want {
				want = v.Heat(tt.first+extent.Index(k), start)
			}
			if s != want {
				t.Errorf("from %d: extent %d is %+v, want %+v", tt.first, k, s, want)
				break
			}
		}
	}
}
