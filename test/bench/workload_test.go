package main

import (
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"
)

// testdata/fio.txt is what fio 3.33 printed for reads at depth 1, the line of its
// engine included.
func TestParseFio(t *testing.T) {
	out, err := os.ReadFile("testdata/fio.txt")
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseFio(out, false)
	if err != nil {
		t.Fatal(err)
	}
	near := func(name string, got, want float64) {
		if math.Abs(got-want) > 1e-6*want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	near("IOPS", got.IOPS, 19035.964036)
	near("Bytes", got.Bytes, 77971308)
	near("Mean", got.Mean, 52.006093151)
	near("P99", got.P99, 284.672)

	if _, err := parseFio(out, true); !errors.Is(err, errFio) {
		t.Errorf("a report of reads taken for one of writes: error %v, want %v", err, errFio)
	}
}

func TestParseFioRefuses(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"nothing", "", "no report"},
		{"talk alone", "fio: connected to NBD server\n", "no report"},
		{"cut short", `{"jobs": [{"error": 0,`, "parse report"},
		{"no job", `{"jobs": []}`, "0 jobs"},
		{"two jobs", `{"jobs": [{}, {}]}`, "2 jobs"},
		{"failed", `{"jobs": [{"error": 5, "read": {"total_ios": 10}}]}`, "error 5"},
		{"idle", `{"jobs": [{"error": 0, "read": {"total_ios": 0}}]}`, "no request"},
	} {
		_, err := parseFio([]byte(tc.in), false)
		if !errors.Is(err, errFio) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one that says %q", tc.name, err, tc.want)
		}
	}
}

func TestParseTierctl(t *testing.T) {
	got, err := parseTierctl([]byte(`{"total": {"ops": 10, "iops": 1000.5, "bytes_per_second": 4098048, "mean_ns": 2500, "p99_ns": 9000}, "errors": {}}`))
	if want := (sample{IOPS: 1000.5, Bytes: 4098048, Mean: 2.5, P99: 9}); err != nil || got != want {
		t.Errorf("parseTierctl = %v, %v, want %v", got, err, want)
	}
	for _, tc := range []struct{ name, in, want string }{
		{"no JSON", "boom", "parse report"},
		{"idle", `{"total": {"ops": 0}}`, "no operation"},
		{"errors", `{"total": {"ops": 5}, "errors": {"EIO": 3}}`, "3 operations failed: EIO"},
	} {
		if _, err := parseTierctl([]byte(tc.in)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one that says %q", tc.name, err, tc.want)
		}
	}
}

func TestParseStat(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want time.Duration
		ok   bool
	}{
		{"7 (a) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 1", 3 * time.Second, true},
		{"7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 1 0 0 0 20 0 1", 10 * time.Millisecond, true},
		{"7 (a) S 1 7", 0, false},
		{"7 (a) S 1 7 7 0 -1 4194560 100 0 0 0 x 50 0 0 20 0 1", 0, false},
		{"", 0, false},
	} {
		got, err := parseStat(tc.in)
		if got != tc.want || (err == nil) != tc.ok {
			t.Errorf("parseStat(%q) = %v, %v, want %v, success %v", tc.in, got, err, tc.want, tc.ok)
		}
	}
}
