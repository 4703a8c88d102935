package e2e

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// scrape reads the daemon's metrics.
func (d *daemon) scrape() string {
	d.site.t.Helper()
	c := http.Client{Timeout: 20 * time.Second}
	resp, err := c.Get("http://" + d.metrics + "/metrics")
	if err != nil {
		d.site.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		d.site.t.Fatalf("scrape: %s, %v\n%s", resp.Status, err, body)
	}
	return string(body)
}

// families parses the daemon's metrics.
func (d *daemon) families() map[string]*dto.MetricFamily {
	d.site.t.Helper()
	p := expfmt.NewTextParser(model.LegacyValidation)
	f, err := p.TextToMetricFamilies(strings.NewReader(d.scrape()))
	if err != nil {
		d.site.t.Fatal(err)
	}
	return f
}

// metric returns the sum of a metric over all series whose labels have the given
// values ("op=write"); of a histogram it is the number of observations.
func (d *daemon) metric(name string, labels ...string) float64 {
	d.site.t.Helper()
	f := d.families()[name]
	if f == nil {
		d.site.t.Fatalf("there is no metric %s", name)
	}
	return sum(f, labels...)
}

func sum(f *dto.MetricFamily, labels ...string) (total float64) {
	for _, m := range f.Metric {
		if hasLabels(m, labels) {
			total += value(f, m)
		}
	}
	return total
}

func hasLabels(m *dto.Metric, labels []string) bool {
	for _, want := range labels {
		if !slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetName()+"="+l.GetValue() == want }) {
			return false
		}
	}
	return true
}

func value(f *dto.MetricFamily, m *dto.Metric) float64 {
	switch f.GetType() {
	case dto.MetricType_COUNTER:
		return m.GetCounter().GetValue()
	case dto.MetricType_HISTOGRAM:
		return float64(m.GetHistogram().GetSampleCount())
	default:
		return m.GetGauge().GetValue()
	}
}

// signature returns each metric of the daemon's own with its type and labels.
func signature(families map[string]*dto.MetricFamily) string {
	var b strings.Builder
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for n := range families {
			if strings.HasPrefix(n, "tierd_") && !yield(n) {
				return
			}
		}
	}) {
		f := families[name]
		labels := make(map[string]bool)
		for _, m := range f.Metric {
			for _, l := range m.Label {
				labels[l.GetName()] = true
			}
		}
		var names []string
		for l := range labels {
			names = append(names, l)
		}
		slices.Sort(names)
		fmt.Fprintf(&b, "%s %s{%s}\n", strings.ToLower(f.GetType().String()), name, strings.Join(names, ","))
	}
	return b.String()
}

func TestMetricNamesAndLabelsAreGolden(t *testing.T) {
	t.Parallel()
	_, d := running(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 16MiB}"})
	problems, err := promlint.New(strings.NewReader(d.scrape())).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "tierd_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	got := signature(d.families())
	golden := filepath.Join("testdata", "metrics.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("metrics are not those of %s (-update rewrites it):\n%s", golden, diff(string(want), got))
	}
	d.stop()
}

// diff lists the lines that only one of two texts has.
func diff(old, new string) string {
	var b strings.Builder
	a, c := strings.Split(old, "\n"), strings.Split(new, "\n")
	for _, l := range a {
		if !slices.Contains(c, l) {
			fmt.Fprintf(&b, "-%s\n", l)
		}
	}
	for _, l := range c {
		if !slices.Contains(a, l) {
			fmt.Fprintf(&b, "+%s\n", l)
		}
	}
	return b.String()
}

// What an operator has been promised to see is there from the start, at zero, with
// every value of its labels: alerts on a rate miss the first event otherwise.
func TestMetricsExistAtZeroFromTheStart(t *testing.T) {
	t.Parallel()
	_, d := running(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 16MiB}, {name: work, size: 16MiB}"})
	families := d.families()
	tiers, volumes := []string{"tier=ssd", "tier=sata"}, []string{"volume=home", "volume=work"}
	dataOps := []string{"op=read", "op=write", "op=write_zeroes"}
	volumeOps := []string{"op=read", "op=write", "op=trim", "op=write_zeroes", "op=flush"}
	backings := tiers // one each
	for _, w := range []struct {
		names []string
		by    [][]string // every combination
	}{
		{[]string{"tierd_tier_used_bytes", "tierd_tier_extents", "tierd_tier_volumes", "tierd_tier_cache_hits_total", "tierd_tier_cache_misses_total"}, [][]string{tiers}},
		{[]string{"tierd_tier_requests_total", "tierd_tier_request_bytes_total", "tierd_tier_request_errors_total", "tierd_tier_request_duration_seconds"}, [][]string{tiers, dataOps}},
		{[]string{"tierd_backing_used_bytes", "tierd_backing_extents", "tierd_backing_volumes"}, [][]string{backings}},
		{[]string{"tierd_volume_requests_total", "tierd_volume_request_bytes_total", "tierd_volume_request_errors_total", "tierd_volume_request_duration_seconds"}, [][]string{volumes, volumeOps}},
		{[]string{"tierd_volume_unmapped_reads_total", "tierd_volume_round_duration_seconds"}, [][]string{volumes}},
		{[]string{"tierd_relocation_planned_bytes_total"}, [][]string{{"direction=up", "direction=down", "direction=rebalance"}}},
		{[]string{"tierd_nbd_connections"}, [][]string{{"state=transmission", "state=handshake"}}},
		{[]string{"tierd_nbd_requests_in_flight", "tierd_nbd_requests_total"}, nil},
	} {
		for _, name := range w.names {
			f := families[name]
			if f == nil {
				t.Errorf("there is no metric %s", name)
				continue
			}
			for _, labels := range product(w.by) {
				at := slices.IndexFunc(f.Metric, func(m *dto.Metric) bool { return hasLabels(m, labels) })
				if at < 0 {
					t.Errorf("%s has no series with %q", name, labels)
				} else if v := value(f, f.Metric[at]); v != 0 {
					t.Errorf("%s%q is %g at the start", name, labels, v)
				}
			}
		}
	}
	moved := families["tierd_relocation_moved_bytes_total"]
	for _, ways := range [][]string{{"from=ssd", "to=sata"}, {"from=sata", "to=ssd"}, {"from=ssd", "to=ssd"}, {"from=sata", "to=sata"}} {
		if at := slices.IndexFunc(moved.GetMetric(), func(m *dto.Metric) bool { return hasLabels(m, ways) }); at < 0 {
			t.Errorf("tierd_relocation_moved_bytes_total has no series %q", ways)
		}
	}
	for name, labels := range map[string][]string{
		"tierd_tier_capacity_bytes": tiers, "tierd_tier_free_bytes": tiers, "tierd_backing_capacity_bytes": tiers,
		"tierd_backing_free_bytes": tiers, "tierd_volume_size_bytes": volumes, "tierd_backing_up": tiers,
	} {
		for _, l := range labels {
			if f := families[name]; f == nil || !(sum(f, l) > 0) {
				t.Errorf("%s{%s} is not above 0", name, l)
			}
		}
	}
	for _, name := range []string{
		"tierd_relocation_cycle_duration_seconds", "tierd_metadata_commit_duration_seconds", "tierd_backing_sync_duration_seconds",
		"tierd_relocation_budget_left_bytes",
	} {
		if families[name] == nil {
			t.Errorf("there is no metric %s", name)
		}
	}
	d.stop()
}

// product returns every combination of one value of each list.
func product(lists [][]string) [][]string {
	all := [][]string{nil}
	for _, l := range lists {
		var longer [][]string
		for _, head := range all {
			for _, v := range l {
				longer = append(longer, append(slices.Clone(head), v))
			}
		}
		all = longer
	}
	slices.SortFunc(all, func(a, b []string) int { return cmp.Compare(strings.Join(a, ","), strings.Join(b, ",")) })
	return all
}
