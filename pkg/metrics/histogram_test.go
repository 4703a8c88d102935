package metrics

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

func TestHistogram(t *testing.T) {
	var h Histogram
	for _, d := range []time.Duration{0, time.Microsecond, 2 * time.Microsecond, 3 * time.Microsecond, time.Minute} {
		h.Observe(d)
	}
	if got := h.Count(); got != 5 {
		t.Errorf("Count = %d, want 5", got)
	}
	if got, want := h.Sum(), time.Minute+6*time.Microsecond; got != want {
		t.Errorf("Sum = %v, want %v", got, want)
	}
	var m dto.Metric
	if err := h.Metric(prometheus.NewDesc("x", "y", nil, nil)).Write(&m); err != nil {
		t.Fatal(err)
	}
	got := map[float64]uint64{}
	for _, b := range m.GetHistogram().GetBucket() {
		got[b.GetUpperBound()] = b.GetCumulativeCount()
	}
	for bound, want := range map[float64]uint64{2e-6: 3, 5e-6: 4, 30: 4} {
		if got[bound] != want {
			t.Errorf("bucket %v = %d, want %d", bound, got[bound], want)
		}
	}
	if n := m.GetHistogram().GetSampleCount(); n != 5 {
		t.Errorf("sample count = %d, want 5", n)
	}
}

func TestObserveDoesNotAllocate(t *testing.T) {
	var h Histogram
	if n := testing.AllocsPerRun(100, func() { h.Observe(time.Millisecond) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkObserve(b *testing.B) {
	var h Histogram
	for range b.N {
		h.Observe(100 * time.Microsecond)
	}
}
