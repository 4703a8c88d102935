package paper_test

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"tierd/tiering/plan"
	"tierd/tiering/simulate/paper"
)

// find returns the values of a result by id.
func find(t *testing.T, r paper.Result) map[string]paper.Value {
	t.Helper()
	all := make(map[string]paper.Value)
	add := func(list []paper.Value) {
		for _, v := range list {
			if _, ok := all[v.ID]; ok {
				t.Errorf("two values have the id %s", v.ID)
			}
			all[v.ID] = v
		}
	}
	add(r.Values)
	for _, l := range r.Limits {
		add(l.Values)
	}
	return all
}

// digits prints v with as many digits after the point as want has.
func digits(v float64, want string) string {
	_, fraction, _ := strings.Cut(want, ".")
	return strconv.FormatFloat(v, 'f', len(fraction), 64)
}

// Every figure is what the paper prints, or what its inputs were worked out to by hand.
func TestFigures(t *testing.T) {
	want := map[string]string{
		// Figure 6.
		"reads": "7618", "writes": "8057", "misses": "3307", "misses_of_reads": "43.4", "hits": "4311", "hits_of_all": "27.5",
		// Figure 8.
		"config1_service": "5.4", "config2_service": "6.8", "config1_utilisation": "55", "config2_utilisation": "72",
		"config1_residence": "12.0", "config2_residence": "24.286",
		// Figures 9 and 10.
		"read_ms_SSD": "2.0", "read_ms_FC": "10.0", "read_ms_SATA": "20.5",
		"drive_reads_SSD": "4800", "drive_reads_FC": "4680", "drive_reads_SATA": "960", "drive_reads": "10440",
		"split_SSD": "1520", "split_FC": "1482", "split_SATA": "304", "miss_total": "24092", "miss_ms_unrounded": "7.285", "miss_ms": "7.3",
		// Table 3.
		"total_tiered": "48877", "total_config1": "64420", "total_config2": "105096",
		"mean_tiered": "3.118", "mean_config1": "4.110", "mean_config2": "6.705",
		"ratio_tiered": "1", "ratio_config1": "1.318", "ratio_config2": "2.150", "inverse": "0.7587", "break_even": "0.26",
		// Beside it.
		"fig5_ssd": "61.6", "tier_moves": "6.0", "fig4_net": "2", "pool": "110", "unassigned": "42",
		// Limits.
		"exact_total": "24099", "exact_miss": "7.287", "exact_mean_tiered": "3.115", "exact_mean_config1": "4.110", "exact_mean_config2": "6.702",
		"exact_ratio_config1": "1.32", "exact_ratio_config2": "2.15",
		"reduction":      "24",
		"little_config1": "1.222", "mm1_config1": "1.222", "little_config2": "2.571", "mm1_config2": "2.571",
		"fc_rho_needed": "0.46", "fc_rho_reads": "0.21", "fc_ms_reads": "6.8",
		"drive_to_host": "3.16", "moves_of_drive_reads": "9.0", "moves_of_lower": "16.6",
		"miss_without_moves": "6.59", "mean_without_moves": "2.97", "ratio_without_moves": "0.72",
		"fc_capacity": "54", "fc_pool_drives": "106.7", "miss_pool_share": "7.15",
		"sata_capacity": "72", "sata_capacity_binary": "65.5", "ssd_capacity_3_1": "2.4", "ssd_capacity_7_1": "2.8",
		"capacity_config1": "126", "capacity_config2": "126", "drives_config1": "245", "drives_config2": "245",
		"rho_same_config1": "0.629", "rho_same_config2": "0.823", "residence_same_config1": "14.5", "residence_same_config2": "38.4",
		"mean_same_config1": "4.65", "mean_same_config2": "9.68", "ratio_same_config1": "0.67", "ratio_same_config2": "0.32",
		"load_config1": "28519", "load_config2": "29647", "rho_equal_load": "0.693",
		"ssd_peak": "46", "ssd_hourly": "62", "fig5_total": "1380",
		"throughput_binary": "177.0", "throughput_decimal": "181.2",
		"mean_tiered_hit_1": "2.33", "mean_config1_hit_1": "3.32", "ratio_hit_1": "0.70", "ratio_hit_0.5": "0.66", "ratio_hit_0.2": "0.63",
		"ratio_hit_0": "0.608", "ratio_hit_3": "0.80", "ratio_hit_2": "0.76",
		"mean_tiered_hit_0": "1.540", "mean_tiered_hit_0.2": "1.698", "mean_tiered_hit_0.5": "1.935", "mean_tiered_hit_2": "3.118", "mean_tiered_hit_3": "3.907",
		"mean_config1_hit_0": "2.532", "mean_config1_hit_0.2": "2.689", "mean_config1_hit_0.5": "2.926", "mean_config1_hit_2": "4.110", "mean_config1_hit_3": "4.899",
	}
	all := find(t, paper.Compute(paper.Defaults()))
	for id, w := range want {
		v, ok := all[id]
		if got := digits(v.Value, w); !ok || got != w {
			t.Errorf("%s is %s, want %s (%s)", id, got, w, v.Working)
		}
		delete(all, id)
	}
	for id, v := range all {
		t.Errorf("nothing is expected of %s, %v", id, v.Value)
	}
}

// What the paper prints follows from its inputs, except for what the limits say; and
// each is told apart.
func TestAgreement(t *testing.T) {
	differ := map[string]bool{"sata_capacity": true, "ssd_capacity_7_1": true}
	printed := 0
	for id, v := range find(t, paper.Compute(paper.Defaults())) {
		if (v.Printed == "") != (v.Agrees == nil) {
			t.Errorf("%s: printed %q, agrees %v", id, v.Printed, v.Agrees)
		}
		if v.Agrees != nil {
			printed++
			if *v.Agrees == differ[id] {
				t.Errorf("%s is %v, printed %s: agrees %v", id, v.Value, v.Printed, *v.Agrees)
			}
		}
		if v.Working == "" || strings.Contains(v.Working, "%!") {
			t.Errorf("%s has the working %q", id, v.Working)
		}
	}
	if printed < 40 {
		t.Errorf("%d printed values only", printed)
	}
}

func TestTable3(t *testing.T) {
	r := paper.Compute(paper.Defaults())
	want := []struct {
		name               string
		miss, total, ratio string
	}{{"FAST VP", "7.3", "48877", "1"}, {"config 1 (15k)", "12.0", "64420", "1.32"}, {"config 2 (10k)", "24.3", "105096", "2.15"}}
	if len(r.Table3) != len(want) {
		t.Fatalf("%d rows", len(r.Table3))
	}
	for i, w := range want {
		got := r.Table3[i]
		if got.Name != w.name || digits(got.MissMS, w.miss) != w.miss || digits(got.TotalMS, w.total) != w.total || digits(got.Ratio, w.ratio) != w.ratio {
			t.Errorf("row %d: got %+v, want %+v", i, got, w)
		}
	}
	if len(r.Limits) != 12 || r.Limits[11].Number != 12 {
		t.Errorf("%d limits", len(r.Limits))
	}
}

// Other inputs give other results, in the direction in which they must.
func TestInputs(t *testing.T) {
	mean := func(change func(*paper.Inputs)) [3]float64 {
		in := paper.Defaults()
		change(&in)
		if err := in.Validate(); err != nil {
			t.Fatal(err)
		}
		r := paper.Compute(in)
		return [3]float64{r.Table3[0].MeanMS, r.Table3[1].MeanMS, r.Table3[2].MeanMS}
	}
	base := mean(func(*paper.Inputs) {})
	tests := []struct {
		name   string
		change func(*paper.Inputs)
		want   [3]int // sign of the change
	}{
		{"faster hits", func(in *paper.Inputs) { in.HitMS = 0.2 }, [3]int{-1, -1, -1}},
		{"busier drives", func(in *paper.Inputs) { in.Single[0].Utilisation = 0.9 }, [3]int{0, 1, 0}},
		{"shorter seeks", func(in *paper.Inputs) { in.Single[1].SeekMS = 1 }, [3]int{0, 0, -1}},
		{"more of SSD", func(in *paper.Inputs) { in.Tiers[0].Drives = 64 }, [3]int{-1, 0, 0}},
		{"slower SATA", func(in *paper.Inputs) { in.Tiers[2].ReadMS = 40 }, [3]int{1, 0, 0}},
		{"fewer misses", func(in *paper.Inputs) { in.ReadMissShare = 0.1 }, [3]int{-1, -1, -1}},
	}
	for _, tt := range tests {
		got := mean(tt.change)
		for i := range got {
			if d := got[i] - base[i]; (d > 1e-9) != (tt.want[i] > 0) || (d < -1e-9) != (tt.want[i] < 0) {
				t.Errorf("%s: mean %d is %v, was %v", tt.name, i, got[i], base[i])
			}
		}
	}
	// A set that could not carry the load has no time.
	in := paper.Defaults()
	in.Single[1].Utilisation = 0.99
	if v, ok := find(t, paper.Compute(in))["residence_same_config2"]; ok {
		t.Errorf("an overloaded set answers in %v", v.Value)
	}
}

func TestValidate(t *testing.T) {
	tests := []struct {
		change func(*paper.Inputs)
		want   string
	}{
		{func(in *paper.Inputs) { in.IOPS = 0 }, "requests a second"},
		{func(in *paper.Inputs) { in.IOPS = math.NaN() }, "requests a second"},
		{func(in *paper.Inputs) { in.IOPS = 1 }, "one read miss"},
		{func(in *paper.Inputs) { in.HitMS = -1 }, "time of a hit"},
		{func(in *paper.Inputs) { in.MeanKB = math.Inf(1) }, "size of a request"},
		{func(in *paper.Inputs) { in.ReadShare = 1.5 }, "share of reads"},
		{func(in *paper.Inputs) { in.ReadMissShare = 0.6 }, "share of read misses"},
		{func(in *paper.Inputs) { in.Single[0].Utilisation = 1 }, "utilisation of config 1"},
		{func(in *paper.Inputs) { in.Single[1].RPM = 0 }, "revolutions of config 2"},
		{func(in *paper.Inputs) { in.Single[0].SeekMS = -1 }, "seek time of config 1"},
		{func(in *paper.Inputs) { in.Single[0].Drives = 0 }, "drives of config 1"},
		{func(in *paper.Inputs) { in.Tiers[0].ReadsPerDrive = 0 }, "reads of a drive of SSD"},
		{func(in *paper.Inputs) { in.Tiers[1].ReadMS = 0 }, "read time of FC"},
		{func(in *paper.Inputs) { in.Tiers[2].Drives = 0 }, "drives of SATA"},
		{func(in *paper.Inputs) { in.MovedUp = 1e6 }, "tier moves"},
		{func(in *paper.Inputs) { in.Tiers = nil }, "3 tiers"},
	}
	for _, tt := range tests {
		in := paper.Defaults()
		tt.change(&in)
		if err := in.Validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want an error about %q", err, tt.want)
		}
	}
}

// The law is the planner's, below the utilisation from which the planner's stands still.
func TestLawIsThePlanners(t *testing.T) {
	for _, rho := range []float64{0, 0.1, 0.55, 0.72, 0.9} {
		want := plan.Delay(5400*time.Microsecond, rho).Seconds() * 1000
		if got := paper.Residence(5.4, rho); math.Abs(got-want) > 1e-5 {
			t.Errorf("at %v: %v ms, the planner's law gives %v", rho, got, want)
		}
	}
}

// Little's law on a published measurement: 96 threads at 1.46 and 0.7 ms.
func TestThroughput(t *testing.T) {
	for _, tt := range []struct{ n, ms, want float64 }{{96, 1.46, 65753}, {96, 0.7, 137143}} {
		got := paper.Throughput(tt.n, tt.ms)
		if math.Round(got) != tt.want || math.Abs(paper.InSystem(got, tt.ms)-tt.n) > 1e-9 {
			t.Errorf("%v at %v ms: %v a second, want %v", tt.n, tt.ms, got, tt.want)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 1234567: "1,234,567", 0.5140000001: "0.514", -12.5: "-12.5", 24.285714: "24.2857", 999.99999: "1,000"} {
		if got := paper.Number(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
}
