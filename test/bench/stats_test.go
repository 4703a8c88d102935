package main

import (
	"math"
	"testing"
)

func TestMedian(t *testing.T) {
	for _, tc := range []struct {
		in   []float64
		want float64
	}{
		{nil, 0},
		{[]float64{3}, 3},
		{[]float64{9, 1, 4}, 4},
		{[]float64{4, 1, 9, 2}, 3},
		{[]float64{1, 1, 1, 100}, 1},
	} {
		in := append([]float64(nil), tc.in...)
		if got := median(tc.in); got != tc.want {
			t.Errorf("median(%v) = %v, want %v", tc.in, got, tc.want)
		}
		for i := range in {
			if tc.in[i] != in[i] {
				t.Errorf("median changed its argument: %v, want %v", tc.in, in)
			}
		}
	}
}

func TestGeomean(t *testing.T) {
	for _, tc := range []struct {
		in   []float64
		want float64
	}{
		{nil, 0},
		{[]float64{2}, 2},
		{[]float64{0.5, 2}, 1},
		{[]float64{1, 10, 100}, 10},
		{[]float64{1, 0, 5}, 0},
	} {
		if got := geomean(tc.in); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("geomean(%v) = %v, want %v", tc.in, got, tc.want)
		}
	}
}

func rates(iops ...float64) []sample {
	out := make([]sample, len(iops))
	for i, v := range iops {
		out[i].IOPS = v
	}
	return out
}

func TestPaired(t *testing.T) {
	for _, tc := range []struct {
		name         string
		ours, theirs []sample
		want         ratio
	}{
		{"odd", rates(10, 30, 40), rates(10, 10, 20), ratio{2, 1, 3}},
		// The medians of the rates would say 2.5; pairs say 1.5.
		{"by round, not by median", rates(100, 10), rates(50, 10), ratio{1.5, 1, 2}},
		{"a round is missing", rates(10, 20), rates(5), ratio{2, 2, 2}},
		{"a peer did nothing", rates(10, 20), rates(0, 5), ratio{4, 4, 4}},
		{"nothing", nil, nil, ratio{}},
	} {
		if got := paired(tc.ours, tc.theirs); got != tc.want {
			t.Errorf("%s: paired = %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestMiddle(t *testing.T) {
	got := middle([]sample{
		{IOPS: 1, Bytes: 30, Mean: 5, P99: 9, CPU: 2},
		{IOPS: 2, Bytes: 10, Mean: 7, P99: 1, CPU: 3},
		{IOPS: 3, Bytes: 20, Mean: 6, P99: 5, CPU: 1},
	})
	if want := (sample{IOPS: 2, Bytes: 20, Mean: 6, P99: 5, CPU: 2}); got != want {
		t.Errorf("middle = %v, want %v", got, want)
	}
}
