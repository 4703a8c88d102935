package heat

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"testing"
	"time"

	"tierd/tiering/extent"
)

var pool = PoolID{1, 2, 3}

// memFile is a file in memory that counts what is written.
type memFile struct {
	data    []byte
	written int
	fail    error
}

func (m *memFile) WriteAt(p []byte, off int64) (int, error) {
	if m.fail != nil {
		return 0, m.fail
	}
	if need := int(off) + len(p); need > len(m.data) {
		m.data = append(m.data, make([]byte, need-len(m.data))...)
	}
	copy(m.data[off:], p)
	m.written += len(p)
	return len(p), nil
}

func (m *memFile) reader() (io.ReaderAt, int64) { return bytes.NewReader(m.data), int64(len(m.data)) }

// filled returns a tracker with heat in three chunks of two volumes.
func filled(t *testing.T) (*Tracker, time.Time) {
	tr := newTracker(t, testParams())
	a, b := tr.AddVolume(1, 100_000), tr.AddVolume(9, 50)
	now := start
	for c := range 40 {
		now = now.Add(tr.p.Cycle)
		for k := range int64(40) {
			if k%4 <= int64(c)%4 {
				a.Access(k*mib, 4096, false)
				a.Access((90_000+k)*mib, 4096, true)
				b.Access(k*mib, 8192, false)
			}
		}
		tr.Tick(now)
	}
	return tr, now
}

// same compares the scores of two trackers, as far as a byte each can tell.
func same(t *testing.T, got, want *Tracker, now time.Time) {
	t.Helper()
	n := 0
	for id, v := range want.volumes {
		v.Range(now, func(i extent.Index, w Score) bool {
			g := got.volumes[id].Heat(i, now)
			near(t, "heat", g.Heat, w.Heat, 0.13) // the sum within 9 %, the age within 3 %
			near(t, "short", g.Short, w.Short, 0.13)
			near(t, "IOs", float64(g.IOs), float64(w.IOs), 0.06)
			if math.Abs(float64(g.Age)-float64(w.Age)) > 2 {
				t.Errorf("age: got %d, want %d", g.Age, w.Age)
			}
			n++
			return !t.Failed()
		})
	}
	if n != 120 {
		t.Errorf("got %d extents with a score, want 120", n)
	}
}

func TestSaveAndLoad(t *testing.T) {
	tr, now := filled(t)
	var m memFile
	f := NewFile(pool)
	if n, err := f.Save(tr, &m, now); err != nil || n != fileHeader+3*ChunkSize {
		t.Fatalf("save: got %d, %v, want 3 chunks", n, err)
	}
	if n, err := f.Save(tr, &m, now); err != nil || n != 0 {
		t.Fatalf("save again: got %d, %v, want nothing written", n, err)
	}

	// An hour later, in another process.
	later := now.Add(time.Hour)
	tr2 := newTracker(t, testParams())
	tr2.AddVolume(1, 100_000)
	tr2.AddVolume(9, 50)
	f2 := NewFile(pool)
	r, size := m.reader()
	rep, err := f2.Load(tr2, r, size, later)
	if err != nil || rep != (LoadReport{Chunks: 3}) {
		t.Fatalf("load: got %+v, %v", rep, err)
	}
	for range 12 { // as if the first had gone on without a single access
		tr.Tick(later)
	}
	same(t, tr2, tr, later)

	// What changes is written to its place, and nothing else.
	if n, err := f2.Save(tr2, &m, later); err != nil || n != 0 {
		t.Errorf("save what was loaded: got %d, %v", n, err)
	}
	tr2.volumes[9].Access(0, 4096, false)
	tr2.Drain(later)
	before := len(m.data)
	if n, err := f2.Save(tr2, &m, later); err != nil || n != ChunkSize || len(m.data) != before {
		t.Errorf("save one change: got %d, %v, file grown by %d", n, err, len(m.data)-before)
	}

	// A dropped volume's slot is used again.
	tr2.DropVolume(9)
	tr2.AddVolume(10, 50).Access(0, 4096, false)
	tr2.Drain(later)
	if n, err := f2.Save(tr2, &m, later); err != nil || n != ChunkSize || len(m.data) != before {
		t.Errorf("save a new volume: got %d, %v, file grown by %d", n, err, len(m.data)-before)
	}
}

func TestLoadScalesToNewParams(t *testing.T) {
	tr, now := filled(t)
	var m memFile
	if _, err := NewFile(pool).Save(tr, &m, now); err != nil {
		t.Fatal(err)
	}
	p := testParams()
	p.ShortHalfLife, p.LongHalfLife, p.Cycle = 2*time.Hour, 6*time.Hour, time.Minute
	tr2 := newTracker(t, p)
	v := tr2.AddVolume(1, 100_000)
	r, size := m.reader()
	if _, err := NewFile(pool).Load(tr2, r, size, now); err != nil {
		t.Fatal(err)
	}
	// The sums' rates stay; compare without the correction for the age.
	rate := func(tr *Tracker) float64 {
		_, c := tr.volumes[1].cellLocked(0)
		s, _ := unpackScore(c.score.Load())
		return float64(s) * math.Exp2(-now.Sub(tr.landmark).Seconds()/tr.p.ShortHalfLife.Seconds()) / tr.p.ShortHalfLife.Seconds()
	}
	near(t, "rate", rate(tr2), rate(tr), 0.1)
	if got, want := float64(v.Heat(0, now).Age), 5*float64(tr.volumes[1].Heat(0, now).Age); math.Abs(got/want-1) > 0.05 {
		t.Errorf("age: got %v minutes, want %v", got, want)
	}
}

func TestLoadTolerance(t *testing.T) {
	tr, now := filled(t)
	var whole memFile
	if _, err := NewFile(pool).Save(tr, &whole, now); err != nil {
		t.Fatal(err)
	}
	flip := func(at int) func([]byte) []byte {
		return func(b []byte) []byte { b[at] ^= 1; return b }
	}
	for _, tc := range []struct {
		name   string
		pool   PoolID
		damage func(b []byte) []byte
		want   LoadReport
		err    error
	}{
		{"sound", pool, func(b []byte) []byte { return b }, LoadReport{Chunks: 2, Unknown: 1}, nil},
		{"empty", pool, func(b []byte) []byte { return nil }, LoadReport{}, nil},
		{"score flipped", pool, flip(fileHeader + 100), LoadReport{Chunks: 1, Bad: 1, Unknown: 1}, nil},
		{"key flipped", pool, flip(fileHeader + ChunkSize + 16), LoadReport{Chunks: 1, Bad: 1, Unknown: 1}, nil},
		{"ends within a chunk", pool, func(b []byte) []byte { return b[:len(b)-1] }, LoadReport{Chunks: 2, Bad: 1}, nil},
		{"a hole", pool, func(b []byte) []byte { clear(b[fileHeader : fileHeader+ChunkSize]); return b }, LoadReport{Chunks: 1, Bad: 1, Unknown: 1}, nil},
		{"same chunk twice", pool, func(b []byte) []byte { return append(b, b[fileHeader:fileHeader+ChunkSize]...) }, LoadReport{Chunks: 2, Unknown: 1}, nil},
		{"header flipped", pool, flip(9), LoadReport{}, ErrNotHeat},
		{"short header", pool, func(b []byte) []byte { return b[:20] }, LoadReport{}, ErrNotHeat},
		{"other pool", PoolID{9}, func(b []byte) []byte { return b }, LoadReport{}, ErrOtherPool},
	} {
		t.Run(tc.name, func(t *testing.T) {
			data := tc.damage(bytes.Clone(whole.data))
			tr2 := newTracker(t, testParams())
			tr2.AddVolume(1, 100_000) // 9 is gone
			f := NewFile(tc.pool)
			rep, err := f.Load(tr2, bytes.NewReader(data), int64(len(data)), now)
			if !errors.Is(err, tc.err) || rep != tc.want {
				t.Errorf("got %+v, %v, want %+v, %v", rep, err, tc.want, tc.err)
			}

			// Whatever there was, the file can be gone on with.
			m := memFile{data: data}
			tr2.volumes[1].Access(0, 4096, false)
			tr2.volumes[1].Access(50_000*mib, 4096, false)
			tr2.Drain(now)
			if _, err := f.Save(tr2, &m, now.Add(time.Second)); err != nil {
				t.Fatal(err)
			}
			tr3 := newTracker(t, testParams())
			v := tr3.AddVolume(1, 100_000)
			r, size := m.reader()
			if _, err := NewFile(tc.pool).Load(tr3, r, size, now.Add(time.Second)); err != nil {
				t.Fatal(err)
			}
			if v.Heat(50_000, now).IOs != 1 || v.Heat(0, now).IOs == 0 {
				t.Errorf("saved after the load: got %+v and %+v", v.Heat(50_000, now), v.Heat(0, now))
			}
		})
	}
}

func TestFailedSaveIsMadeGood(t *testing.T) {
	tr, now := filled(t)
	m := memFile{fail: io.ErrShortWrite}
	f := NewFile(pool)
	if _, err := f.Save(tr, &m, now); !errors.Is(err, io.ErrShortWrite) {
		t.Fatalf("got %v", err)
	}
	m.fail = nil
	if n, err := f.Save(tr, &m, now); err != nil || n != fileHeader+3*ChunkSize {
		t.Errorf("got %d, %v, want everything written", n, err)
	}
	f.headed = true
	tr.volumes[1].Moved(0)
	m.fail = io.ErrShortWrite
	if _, err := f.Save(tr, &m, now); !errors.Is(err, io.ErrShortWrite) {
		t.Fatalf("chunk: got %v", err)
	}
	m.fail = nil
	if n, err := f.Save(tr, &m, now); err != nil || n != ChunkSize {
		t.Errorf("chunk: got %d, %v, want it written", n, err)
	}
}

func TestScales(t *testing.T) {
	for _, s := range []scale{sumScale, iosScale, ageScale} {
		worst := math.Exp2(0.5/s.steps) - 1
		for e := s.lowest; e < s.lowest+250/s.steps; e += 0.37 {
			v := math.Exp2(e)
			near(t, "round trip", s.decode(s.encode(v)), v, worst+1e-9)
		}
		if s.encode(0) != 0 || s.decode(0) != 0 || s.encode(math.NaN()) != 0 || s.encode(math.Inf(1)) != 255 {
			t.Errorf("scale %+v: nothing or too much is not told", s)
		}
	}
}

// FuzzLoad loads bytes as they are, or, for the fuzzer to get past the lengths
// and checksums, chunks built of them: 64 bytes of header and one code for each
// of the four arrays.
func FuzzLoad(f *testing.F) {
	tr := New(testParams(), must(extent.NewSize(mib)), start)
	tr.AddVolume(1, 5000).Access(0, 4096, false)
	tr.Drain(start)
	var m memFile
	if _, err := NewFile(pool).Save(tr, &m, start); err != nil {
		f.Fatal(err)
	}
	tr.Close()
	const unit = chunkHeader + 4
	f.Add(append(bytes.Clone(m.data[fileHeader:fileHeader+chunkHeader]), 120, 255, 9, 200), true)
	f.Add(m.data[:64], false)
	f.Add([]byte(fileMagic), false)

	size := must(extent.NewSize(mib))
	f.Fuzz(func(t *testing.T, data []byte, build bool) {
		if build {
			file := NewFile(pool).header()
			for ; len(data) >= unit && len(file) < 10*ChunkSize; data = data[unit:] {
				c := make([]byte, ChunkSize)
				copy(c, data[:chunkHeader])
				for i, code := range data[chunkHeader:unit] {
					copy(c[chunkHeader+i*chunkLen:][:chunkLen], bytes.Repeat([]byte{code}, chunkLen))
				}
				binary.LittleEndian.PutUint32(c[8:], chunkSum(pool, c))
				file = append(file, c...)
			}
			data = file
		}
		tr := New(testParams(), size, start)
		defer tr.Close()
		v := tr.AddVolume(1, 5000)
		file := NewFile(pool)
		rep, err := file.Load(tr, bytes.NewReader(data), int64(len(data)), start)
		if err != nil && rep != (LoadReport{}) {
			t.Errorf("got %+v with %v", rep, err)
		}
		v.Range(start, func(i extent.Index, s Score) bool {
			if math.IsNaN(s.Heat) || math.IsInf(s.Heat, 0) || s.Heat < 0 {
				t.Errorf("extent %d: got %+v", i, s)
			}
			return !t.Failed()
		})
		var m memFile
		if _, err := file.Save(tr, &m, start); err != nil {
			t.Error(err)
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
