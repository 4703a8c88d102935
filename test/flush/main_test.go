package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	l := make(latencies, 200)
	for i := range l {
		l[i] = time.Duration(i + 1)
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 100, 0.99: 198, 1: 200} {
		if got := l.quantile(q); got != want {
			t.Errorf("quantile(%v) = %d, want %d", q, got, want)
		}
	}
	if got := (latencies{}).quantile(0.99); got != 0 {
		t.Errorf("quantile of nothing = %d", got)
	}
}

func TestMarks(t *testing.T) {
	met := result{slow: latencies{slowMark}, fast: latencies{fastMark}}
	for what, r := range map[string]result{
		"slow":             {slow: latencies{slowMark + 1}, fast: latencies{fastMark}},
		"fast":             {slow: latencies{slowMark}, fast: latencies{fastMark + 1}},
		"nothing measured": {},
	} {
		if r.met() {
			t.Errorf("%s: the marks are met", what)
		}
	}
	if !met.met() {
		t.Error("the marks are not met")
	}
}

func TestUnknownScenario(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(context.Background(), []string{"-scenarios", "random,none"}, &out, &errs); code != 2 || !strings.Contains(errs.String(), `"none"`) {
		t.Errorf("exit code %d, %q", code, errs.String())
	}
}
