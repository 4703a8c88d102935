package extentmap

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"tierd/tiering/extent"
)

var update = flag.Bool("update", false, "write the golden files; only a new format version may do that")

func goldenChunk() (c chunk) {
	c[0], c[2], c[200] = loc(1, 0), loc(1023, 1<<32-1), loc(2, 0x01020304)
	return c
}

func TestChunkGolden(t *testing.T) {
	key := chunkKey(7, 1000)
	c := goldenChunk()
	file := filepath.Join("testdata", "chunk-v1.hex")
	if *update {
		if err := os.WriteFile(file, []byte(hex.EncodeToString(c.encode(key))+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.encode(key); !bytes.Equal(got, want) {
		t.Errorf("encode = %x, want %x", got, want)
	}
	var got chunk
	if err := got.decode(key, want); err != nil || got != c {
		t.Errorf("decode = %v, %v", got, err)
	}
	// No single byte can change unseen, and neither can the key.
	for i := range want {
		bad := bytes.Clone(want)
		bad[i] ^= 1
		if err := got.decode(key, bad); !errors.Is(err, ErrCorrupt) {
			t.Errorf("byte %d changed: decode = %v, want ErrCorrupt", i, err)
		}
	}
	if err := got.decode(chunkKey(8, 1000), want); !errors.Is(err, ErrCorrupt) {
		t.Errorf("foreign key: decode = %v, want ErrCorrupt", err)
	}
}

// TestFileGolden opens a file that the first version wrote.
func TestFileGolden(t *testing.T) {
	file := filepath.Join("testdata", "pool-v1.db.gz")
	c := Changes{Map: []MapChange{change(1, 0, 1, 999), change(1, 1<<20-1, 1, 0), change(2, 300, 2, 1<<20-1)}}
	if *update {
		path := mustCreate(t)
		d := mustOpen(t, path, Options{Slack: -1})
		mustCommit(t, d, &c)
		d.Close()
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
		z.Write(raw)
		z.Close()
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "pool.db")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := Check(path); err != nil || len(p) != 0 {
		t.Errorf("Check = %q, %v", p, err)
	}
	d := mustOpen(t, path, Options{})
	want := testState()
	want.Pool.Commit = 1
	if got := d.State(); !reflect.DeepEqual(got, want) {
		t.Errorf("State = %+v\nwant %+v", got, want)
	}
	m := make(map[extent.Key]extent.Location)
	for _, ch := range c.Map {
		m[ch.Key] = ch.To
	}
	if got := loadAll(t, d, 1, 2); !reflect.DeepEqual(got, m) {
		t.Errorf("map = %v, want %v", got, m)
	}
	mustCommit(t, d, &Changes{Map: []MapChange{change(1, 1, 1, 1)}})
}

func FuzzChunkDecode(f *testing.F) {
	key := chunkKey(7, 1000)
	c := goldenChunk()
	f.Add(key, c.encode(key))
	f.Add(key, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		if _, _, err := parseChunkKey(key); err != nil {
			return
		}
		var c, again chunk
		if err := c.decode(key, value); err != nil {
			return
		}
		if err := again.decode(key, c.encode(key)); err != nil || again != c {
			t.Errorf("decode of encode = %v, %v, want %v", again, err, c)
		}
	})
}
