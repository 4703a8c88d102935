package heat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"tierd/tiering/extent"
)

// Errors of DecodeChunk.
var (
	// ErrBadChunk: the bytes are not a chunk of this pool, or are damaged.
	ErrBadChunk = errors.New("bad heat chunk")
	// ErrUnknownVolume: the chunk is sound, but its volume is not tracked or has
	// become too small for it.
	ErrUnknownVolume = errors.New("heat chunk of an unknown volume")
)

// PoolID tells the pools apart.
type PoolID [16]byte

// ChunkKey names a chunk: 4,096 extents of a volume, from First on.
type ChunkKey struct {
	Volume extent.VolumeID
	First  extent.Index
}

// ChunkSize is the length of an encoded chunk; the byte table is in the package's
// documentation.
const (
	chunkHeader = 64
	ChunkSize   = chunkHeader + 4*chunkLen

	chunkMagic = "tierHCH1"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// chunkSum is the checksum of a chunk, seeded with the pool: what another pool
// left in the file is never taken for ours.
func chunkSum(pool PoolID, data []byte) uint32 {
	sum := crc32.Checksum(pool[:], castagnoli)
	sum = crc32.Update(sum, castagnoli, data[:8])
	return crc32.Update(sum, castagnoli, data[12:ChunkSize])
}

// Codes of one byte on a logarithmic scale. Code 0 is nothing; code c stands for
// 2^((c-1)/steps + lowest).
type scale struct{ steps, lowest float64 }

var (
	sumScale = scale{4, -30} // a nanosecond to 10^10 s, within 9 %
	iosScale = scale{8, 0}   // 1 to 2^31, within 5 %
	ageScale = scale{12, 0}  // 1 to 2^21, within 3 %; of age+1, so that 0 is told from never
)

func (s scale) encode(v float64) byte {
	if !(v > 0) {
		return 0
	}
	c := math.Round((math.Log2(v)-s.lowest)*s.steps) + 1
	if c < 1 {
		return 0
	}
	return byte(min(c, 255))
}

func (s scale) decode(c byte) float64 {
	if c == 0 {
		return 0
	}
	return math.Exp2(float64(c-1)/s.steps + s.lowest)
}

// EncodeChunks calls fn with every chunk that was ever touched, or only those
// changed since they were last encoded or loaded, in ascending order of volume and
// extent. data is good for the duration of the call. An error of fn ends the
// encoding and is returned; that chunk still counts as changed.
func (t *Tracker) EncodeChunks(pool PoolID, now time.Time, changedOnly bool, fn func(key ChunkKey, data []byte) error) error {
	t.drainMu.Lock()
	defer t.drainMu.Unlock()

	// The chunks to do. Those that appear from here on are left for the next time.
	type job struct {
		v     *Volume
		first extent.Index
	}
	var jobs []job
	t.mu.RLock()
	for _, v := range t.sortedLocked() {
		for first := v.nextChunkLocked(0); first < v.extents; first = v.nextChunkLocked(first + chunkLen) {
			if !changedOnly || v.segments[first>>segmentShift].changed.Load()&chunkBit(first) != 0 {
				jobs = append(jobs, job{v, first})
			}
		}
	}
	t.mu.RUnlock()

	data := make([]byte, ChunkSize)
	for _, j := range jobs {
		if !t.encodeChunk(pool, j.v, j.first, now, data) {
			continue
		}
		if err := fn(ChunkKey{j.v.id, j.first}, data); err != nil {
			t.remark(j.v, j.first)
			return err
		}
	}
	return nil
}

// encodeChunk fills data and clears the mark of change. It returns false if the
// volume was dropped meanwhile.
func (t *Tracker) encodeChunk(pool PoolID, v *Volume, first extent.Index, now time.Time, data []byte) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s, _ := v.cellLocked(first)
	if s == nil {
		return false
	}
	s.changed.And(^chunkBit(first)) // before reading: what changes from here on is for the next time

	clear(data)
	le := binary.LittleEndian
	copy(data, chunkMagic)
	le.PutUint32(data[12:], uint32(v.id))
	le.PutUint64(data[16:], uint64(first))
	le.PutUint64(data[24:], uint64(now.UnixNano()))
	le.PutUint64(data[32:], uint64(t.p.ShortHalfLife))
	le.PutUint64(data[40:], uint64(t.p.LongHalfLife))
	le.PutUint64(data[48:], uint64(t.p.Cycle))

	d := now.Sub(t.landmark).Seconds()
	fs, fl := math.Exp2(-d/t.p.ShortHalfLife.Seconds()), math.Exp2(-d/t.p.LongHalfLife.Seconds())
	short, long, ios, age := codes(data)
	for i := range chunkLen {
		c := &s.cells[uint64(first)&(segmentLen-1)+uint64(i)]
		st := unpackStats(c.stats.Load())
		if st.born == 0 {
			continue
		}
		sum, lsum := unpackScore(c.score.Load())
		short[i] = sumScale.encode(float64(sum) * fs)
		long[i] = sumScale.encode(float64(lsum) * fl)
		ios[i] = iosScale.encode(float64(st.ios))
		age[i] = ageScale.encode(float64(t.cycle-min(st.born, t.cycle)) + 1)
	}
	le.PutUint32(data[8:], chunkSum(pool, data))
	return true
}

// codes returns the four arrays of a chunk.
func codes(data []byte) (short, long, ios, age []byte) {
	at := func(n int) []byte { return data[chunkHeader+n*chunkLen:][:chunkLen] }
	return at(0), at(1), at(2), at(3)
}

// remark makes a chunk count as changed again.
func (t *Tracker) remark(v *Volume, first extent.Index) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if s, _ := v.cellLocked(first); s != nil {
		s.changed.Or(chunkBit(first))
	}
}

// chunkInfo is the header of a chunk.
type chunkInfo struct {
	key         ChunkKey
	at          time.Time
	short, long time.Duration
	cycle       time.Duration
}

// parseChunk checks data and returns its header. Errors wrap ErrBadChunk.
func parseChunk(pool PoolID, data []byte) (chunkInfo, error) {
	if len(data) != ChunkSize {
		return chunkInfo{}, fmt.Errorf("%w: %d bytes, want %d", ErrBadChunk, len(data), ChunkSize)
	}
	le := binary.LittleEndian
	if string(data[:8]) != chunkMagic {
		return chunkInfo{}, fmt.Errorf("%w: no magic", ErrBadChunk)
	}
	if le.Uint32(data[8:]) != chunkSum(pool, data) {
		return chunkInfo{}, fmt.Errorf("%w: checksum", ErrBadChunk)
	}
	c := chunkInfo{
		key:   ChunkKey{extent.VolumeID(le.Uint32(data[12:])), extent.Index(le.Uint64(data[16:]))},
		at:    time.Unix(0, int64(le.Uint64(data[24:]))),
		short: time.Duration(le.Uint64(data[32:])),
		long:  time.Duration(le.Uint64(data[40:])),
		cycle: time.Duration(le.Uint64(data[48:])),
	}
	if c.key.First%chunkLen != 0 || c.short <= 0 || c.long <= 0 || c.cycle <= 0 {
		return chunkInfo{}, fmt.Errorf("%w: header", ErrBadChunk)
	}
	return c, nil
}

// DecodeChunk takes over the scores of an encoded chunk, decayed from the time it
// was encoded until now; what the tracker had for these extents is replaced.
// Half-lives or a cycle that have been changed since are allowed for: the rates
// stay. Errors wrap ErrBadChunk or ErrUnknownVolume and change nothing.
func (t *Tracker) DecodeChunk(pool PoolID, data []byte, now time.Time) (ChunkKey, error) {
	c, err := parseChunk(pool, data)
	if err != nil {
		return ChunkKey{}, err
	}
	t.drainMu.Lock()
	defer t.drainMu.Unlock()
	t.rebase(now)
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.volumes[c.key.Volume]
	if v == nil || c.key.First >= v.extents {
		return c.key, fmt.Errorf("%w: %d", ErrUnknownVolume, c.key.Volume)
	}
	s, err := v.segmentLocked(c.key.First)
	if err != nil {
		return c.key, err
	}

	// From the chunk's time to the landmark; a chunk from the future is of now. It
	// decays by its old half-life, and a sum is rate * half-life / ln2.
	off := max(0, now.Sub(c.at).Seconds())
	since := now.Sub(t.landmark).Seconds()
	factor := func(old, h time.Duration) float64 {
		return math.Exp2(-off/old.Seconds()) * h.Seconds() / old.Seconds() * math.Exp2(since/h.Seconds())
	}
	fs, fl := factor(c.short, t.p.ShortHalfLife), factor(c.long, t.p.LongHalfLife)
	cycles := c.cycle.Seconds() / t.p.Cycle.Seconds()

	short, long, ios, age := codes(data)
	for i := range min(chunkLen, v.extents-c.key.First) {
		cell := &s.cells[(c.key.First+i)&(segmentLen-1)]
		if age[i] == 0 {
			cell.score.Store(0)
			cell.stats.Store(0)
			continue
		}
		known := (ageScale.decode(age[i])-1)*cycles + off/t.p.Cycle.Seconds()
		cell.score.Store(packScore(float32(sumScale.decode(short[i])*fs), float32(sumScale.decode(long[i])*fl)))
		cell.stats.Store(packStats(stats{
			ios:  uint32(math.Round(min(iosScale.decode(ios[i]), maxIOs))),
			born: uint32(max(1, float64(t.cycle)-math.Round(known))),
		}))
	}
	s.touched.Or(chunkBit(c.key.First))
	s.changed.And(^chunkBit(c.key.First))
	return c.key, nil
}
