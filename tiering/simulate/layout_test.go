package simulate

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseLayout(t *testing.T) {
	for _, tt := range []struct {
		text string
		want Layout
	}{
		{"ssd:2ms:5%,fc:10ms:25%,sata:20.5ms:rest", Layout{Name: "ssd 5% + fc 25% + sata rest", Tiers: PaperLayout().Tiers}},
		{"all flash = ssd:200us:rest", Layout{Name: "all flash", Tiers: []Tier{{Name: "ssd", Time: 200 * time.Microsecond}}}},
		{"ssd:1ms:64GiB:write=2ms, hdd : 8ms : rest : devices=8:raid=raid6:bandwidth=1GB/s", Layout{Name: "ssd 64GiB + hdd rest", Tiers: []Tier{
			{Name: "ssd", Time: time.Millisecond, Bytes: 64 << 30, Write: 2 * time.Millisecond},
			{Name: "hdd", Time: 8 * time.Millisecond, Devices: 8, RAID: RAID6, Bandwidth: 1e9},
		}}},
	} {
		for _, text := range []string{tt.text, tt.want.String()} {
			if got, err := ParseLayout(text); err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%s: got %+v, %v, want %+v", text, got, err, tt.want)
			}
		}
	}
}

func TestParseLayoutRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "NAME:TIME:SIZE",
		"ssd":                               "NAME:TIME:SIZE",
		"ssd:2ms":                           "NAME:TIME:SIZE",
		"=ssd:2ms:rest":                     "no name",
		":2ms:rest":                         "no name",
		"ssd:fast:rest":                     "time",
		"ssd:0s:rest":                       "above 0",
		"ssd:2h:rest":                       "at most 1h",
		"ssd:2ms:some":                      "percentage, bytes such as 64GiB, or rest",
		"ssd:2ms:0%":                        "above 0%",
		"ssd:2ms:101%":                      "at most 100%",
		"ssd:2ms:0":                         "above 0",
		"ssd:2ms:60%,hdd:8ms:60%":           "add up to 120%",
		"ssd:2ms:rest,hdd:8ms:rest":         "only the last",
		"ssd:2ms:5%,ssd:8ms:rest":           "twice",
		"hdd:8ms:5%,ssd:2ms:rest":           "fastest first",
		"ssd:2ms:rest:devices=0":            "devices must be",
		"ssd:2ms:rest:devices=many":         "devices must be",
		"ssd:2ms:rest:raid=raid5":           "raid needs devices=",
		"ssd:2ms:rest:devices=3:raid=raid0": "raid must be",
		"ssd:2ms:rest:devices=3:raid=":      "raid must be",
		"ssd:2ms:rest:write=0s":             "write",
		"ssd:2ms:rest:bandwidth=0":          "bandwidth must be",
		"ssd:2ms:rest:colour=red":           "not known; there are devices=",
		strings.Repeat("x:1ms:1%,", 20) + "y:1s:1%": "must have 1 to 16",
	} {
		if _, err := ParseLayout(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", text, err, want)
		}
	}
}

func TestLayoutHoldsTheTrace(t *testing.T) {
	for _, tt := range []struct {
		text string
		want []int64 // of 100 extents of 1 MiB; nil: they do not fit
	}{
		{"a:1ms:29%,b:2ms:rest", []int64{29, 100}},
		{"a:1ms:30MiB,b:2ms:70%", []int64{30, 70}},
		{"a:1ms:30MiB,b:2ms:69%", nil},
		{"a:1ms:1MiB", nil},
		{"a:1ms:1EiB,b:2ms:7EiB", []int64{100, 100}},
	} {
		l, err := ParseLayout(tt.text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := l.slots(100, 1<<20); (err != nil) != (tt.want == nil) || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %d, %v, want %d", tt.text, got, err, tt.want)
		}
	}
}

func TestSettingsRefuse(t *testing.T) {
	for want, change := range map[string]func(*Settings){
		"extent size": func(s *Settings) { s.ExtentSize = 1000 },
		"cycles must": func(s *Settings) { s.Cycle = 0 },
		"cycle must":  func(s *Settings) { s.Cycle = -1 },
		"rate must":   func(s *Settings) { s.Rate = -1 },
		"budget must": func(s *Settings) { s.Budget.Share = 2 },
		"be kept for": func(s *Settings) { s.Budget.Carry = 25 },
		"placement":   func(s *Settings) { s.Placement = "lowest" },
		"half-life":   func(s *Settings) { s.Heat.ShortHalfLife = 0 },
		"hysteresis":  func(s *Settings) { s.Plan.Hysteresis = -1 },
	} {
		s := Defaults()
		change(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
	for _, s := range []Settings{Defaults(), PaperEval()} {
		if err := s.Validate(); err != nil {
			t.Error(err)
		}
	}
}

// FuzzParseLayout: what is accepted is sound.
func FuzzParseLayout(f *testing.F) {
	for _, s := range []string{"ssd:2ms:5%,fc:10ms:25%,sata:20.5ms:rest", "x=a:1ms:1GiB:devices=1:raid=raid5,b:2ms:rest:write=1ms:bandwidth=1MB/s", ":::", "=,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := ParseLayout(s)
		if err != nil {
			return
		}
		if err := l.Validate(); err != nil {
			t.Fatalf("%q was accepted: %v", s, err)
		}
		if again, err := ParseLayout(l.String()); err != nil || !reflect.DeepEqual(again, l) {
			t.Fatalf("%q becomes %q: %v", s, l, err)
		}
		for _, total := range []int{1, 1000} {
			slots, err := l.slots(total, 1<<20)
			for _, n := range slots {
				if err == nil && (n < 0 || n > int64(total)) {
					t.Fatalf("%q: a tier of %d slots for %d extents", s, n, total)
				}
			}
		}
		for _, tier := range l.Tiers {
			if a := tier.serve(load{reads: 1000, writes: 1000, moved: 1 << 30}, 1); a.read < tier.Time || a.write <= 0 {
				t.Fatalf("%q: answered in %v and %v", s, a.read, a.write)
			}
		}
	})
}
