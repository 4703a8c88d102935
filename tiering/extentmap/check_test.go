package extentmap

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// damage flips a bit of the byte at offset within every place of the file that
// holds pattern.
func damage(t *testing.T, path string, pattern []byte, offset int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for at := 0; ; found++ {
		i := bytes.Index(b[at:], pattern)
		if i < 0 {
			break
		}
		b[at+i+offset] ^= 0x40
		at += i + 1
	}
	if found == 0 {
		t.Fatalf("no %x in the file", pattern)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCheckFinds(t *testing.T) {
	const lastExtent = 1<<20 - 1 // of volume 1
	tests := []struct {
		name   string
		map_   []MapChange
		edit   func(path string)
		want   string // in the only problem
		anyOne bool   // other problems may follow
	}{
		{"nothing", []MapChange{change(1, 0, 1, 999), change(1, lastExtent, 1, 1), change(2, 0, 2, 1)}, nil, "", false},
		{"two owners", []MapChange{change(1, 0, 1, 7), change(2, 9, 1, 7)}, nil, "volume 2 extent 9: in backing 1 slot 7, which another extent has too", false},
		{"past the volume", []MapChange{change(1, lastExtent+1, 1, 7)}, nil, "past the end of the volume", false},
		{"no such volume", []MapChange{change(7, 0, 1, 7)}, nil, "volume 7, extents from 0: no such volume", false},
		{"no such backing", []MapChange{change(1, 0, 9, 7)}, nil, "backing 9 slot 7, which is not in the pool", false},
		{"no such slot", []MapChange{change(1, 0, 1, 1000)}, nil, "past the last of its 1000 slots", false},
		{"damaged chunk", []MapChange{change(1, 0, 5, 0x11223344)}, func(p string) {
			damage(t, p, []byte{5, 0, 0x44, 0x33, 0x22, 0x11}, 2)
		}, "checksum", true},
		{"damaged record", nil, func(p string) { damage(t, p, []byte(`"policy":"lowest"`), 3) }, "checksum", true},
		{"record without sense", nil, func(p string) { damage(t, p, []byte(`"name":"old"`), 7) }, "corrupt", true},
		{"cut short", nil, func(p string) {
			if err := os.Truncate(p, 3*4096); err != nil {
				t.Fatal(err)
			}
		}, "the file has 12288 bytes", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := mustCreate(t)
			d := mustOpen(t, path, Options{Slack: -1})
			mustCommit(t, d, &Changes{Map: tt.map_})
			d.Close()
			if tt.edit != nil {
				tt.edit(path)
			}
			got, err := Check(path)
			if err != nil {
				t.Fatal(err)
			}
			if tt.want == "" {
				if len(got) != 0 {
					t.Errorf("Check = %q, want nothing", got)
				}
				return
			}
			if len(got) == 0 || !tt.anyOne && len(got) > 1 || !strings.Contains(got[0], tt.want) {
				t.Errorf("Check = %q, want %q", got, tt.want)
			}
		})
	}
}

// TestCheckFindsLostPage takes the free pages from the file's list, so that
// they are neither used nor free.
func TestCheckFindsLostPage(t *testing.T) {
	path := mustCreate(t)
	d := mustOpen(t, path, Options{Slack: -1})
	mustCommit(t, d, &Changes{Map: []MapChange{change(1, 0, 1, 7)}})
	d.Close()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const flagsAt, countAt, freelistFlag = 8, 10, 0x10
	for p := 2 * 4096; p < len(b); p += 4096 {
		if b[p+flagsAt] == freelistFlag {
			b[p+countAt], b[p+countAt+1] = 0, 0
		}
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Check(path)
	if err != nil || len(got) == 0 || !strings.Contains(got[0], "neither used nor free") {
		t.Errorf("Check = %q, %v, want pages that are neither used nor free", got, err)
	}
}

// TestCheckSurvivesDamage flips random bytes: Check must come back and say
// something or nothing, but neither crash nor write.
func TestCheckSurvivesDamage(t *testing.T) {
	path := mustCreate(t)
	d := mustOpen(t, path, Options{Slack: -1})
	var c Changes
	for i := range 400 {
		c.Map = append(c.Map, change(1, i*256, 1, i))
	}
	mustCommit(t, d, &c)
	d.Close()
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	found := 0
	for range 150 {
		bad := bytes.Clone(good)
		for range 20 {
			// Page headers and elements are where sense gets lost.
			bad[rng.IntN(len(bad)/4096)*4096+rng.IntN(200)] ^= byte(1 + rng.IntN(255))
		}
		p := filepath.Join(t.TempDir(), "bad.db")
		if err := os.WriteFile(p, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		problems, err := Check(p)
		if err != nil || len(problems) > 0 {
			found++
		}
		if after, err := os.ReadFile(p); err != nil || !bytes.Equal(after, bad) {
			t.Fatalf("Check wrote to the file (%v)", err)
		}
	}
	if found == 0 {
		t.Error("no damage was found")
	}
}

func TestCheckNothingThere(t *testing.T) {
	if _, err := Check(filepath.Join(t.TempDir(), "none")); !errors.Is(err, ErrNotExist) {
		t.Errorf("Check = %v, want ErrNotExist", err)
	}
	path := mustCreate(t)
	mustOpen(t, path, Options{})
	if _, err := Check(path); !errors.Is(err, ErrLocked) {
		t.Errorf("Check of an open file = %v, want ErrLocked", err)
	}
}
