package load

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

// ErrState is returned for a state file that is damaged, or that belongs to a
// volume of another size.
var ErrState = errors.New("unusable state file")

const (
	stateMagic  = 0x656361747364616c // "ladstace"
	stateHeader = 44
	maxDoubts   = 1 << 28
)

// saveLedger replaces the file at path by the ledger, durably. It is one zstd
// frame of, all little-endian:
//
//	0   u64 magic
//	8   u32 version, 1
//	12  u32 unit in bytes
//	16  u64 size of the volume in bytes
//	24  u64 seed
//	32  u64 number of doubtful states
//	40  u32 flags: 1, there were trims or zeroings
//	44  u32 word of each unit: kind in the two top bits (0 written, 1 zeroed,
//	    2 trimmed), generation below; 0 is unknown
//	... u32 word of each unit as a FLUSH or FUA last promised it
//	... doubtful states: u64 unit, u32 word, u32 zero
//	end u32 CRC-32C of all before
func saveLedger(path string, l *ledger) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("save state: %w", err), f.Close(), os.Remove(f.Name()))
		}
	}()
	z, err := zstd.NewWriter(f, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return err
	}
	if err = writeLedger(z, l); err != nil {
		return errors.Join(err, z.Close())
	}
	if err = z.Close(); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	if cerr := f.Close(); cerr != nil {
		return fmt.Errorf("save state: %w", cerr)
	}
	return nil
}

func writeLedger(w io.Writer, l *ledger) error {
	crc := crc32.New(castagnoli)
	out := bufio.NewWriterSize(io.MultiWriter(w, crc), 64<<10)
	n := 0
	for _, d := range l.doubts {
		n += len(d)
	}
	h := make([]byte, 0, stateHeader)
	h = le.AppendUint64(h, stateMagic)
	h = le.AppendUint32(h, 1)
	h = le.AppendUint32(h, uint32(l.unit))
	h = le.AppendUint64(h, uint64(l.size))
	h = le.AppendUint64(h, l.seed)
	h = le.AppendUint64(h, uint64(n))
	flags := uint32(0)
	if l.zeroed.Load() {
		flags = 1
	}
	h = le.AppendUint32(h, flags)
	// bufio keeps the first error for Flush.
	_, _ = out.Write(h)
	for _, v := range l.words {
		_, _ = out.Write(le.AppendUint32(h[:0], uint32(v)))
	}
	for u, v := range l.words {
		_, _ = out.Write(le.AppendUint32(h[:0], uint32(l.durable(int64(u), v))))
	}
	for u, ds := range l.doubts {
		for _, d := range ds {
			b := le.AppendUint64(h[:0], uint64(u))
			b = le.AppendUint32(b, uint32(d))
			_, _ = out.Write(le.AppendUint32(b, 0))
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return binary.Write(w, le, crc.Sum32())
}

// loadLedger reads a ledger for a volume of the given size. The error wraps
// ErrState, or os.ErrNotExist if there is no file.
func loadLedger(path string, size int64, expectZero bool) (*ledger, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("load state: %w", err)
	}
	defer f.Close()
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("load state: %w", err)
	}
	defer z.Close()
	l, err := readLedger(z, size, expectZero)
	if err != nil {
		return nil, fmt.Errorf("load state %s: %w", path, err)
	}
	return l, nil
}

func readLedger(src io.Reader, size int64, expectZero bool) (*ledger, error) {
	r := crcReader{r: bufio.NewReaderSize(src, 64<<10), crc: crc32.New(castagnoli)}
	h := make([]byte, stateHeader)
	if err := r.read(h); err != nil {
		return nil, err
	}
	unit, had, doubts := int64(le.Uint32(h[12:])), le.Uint64(h[16:]), le.Uint64(h[32:])
	switch {
	case le.Uint64(h) != stateMagic || le.Uint32(h[8:]) != 1:
		return nil, fmt.Errorf("%w: not a state file of version 1", ErrState)
	case unit != 512 && unit != 4096:
		return nil, fmt.Errorf("%w: unit of %d bytes", ErrState, unit)
	case had > math.MaxInt64 || int64(had) != size:
		return nil, fmt.Errorf("%w: it is of a volume of %d bytes, this one has %d", ErrState, had, size)
	case doubts > maxDoubts:
		return nil, fmt.Errorf("%w: %d doubtful states", ErrState, doubts)
	}
	l := newLedger(size, unit, le.Uint64(h[24:]), expectZero)
	l.zeroed.Store(le.Uint32(h[40:])&1 != 0)
	for i := range l.words {
		if err := r.read(h[:4]); err != nil {
			return nil, err
		}
		l.words[i] = word(le.Uint32(h))
	}
	for i := range l.synced {
		if err := r.read(h[:4]); err != nil {
			return nil, err
		}
		if l.synced[i] = word(le.Uint32(h)); l.synced[i] != l.words[i] {
			l.changed[i] = l.epoch.Load()
		}
	}
	for range doubts {
		if err := r.read(h[:16]); err != nil {
			return nil, err
		}
		u := le.Uint64(h)
		if u >= uint64(len(l.words)) {
			return nil, fmt.Errorf("%w: unit %d", ErrState, u)
		}
		l.doubts[int64(u)] = append(l.doubts[int64(u)], word(le.Uint32(h[8:])))
	}
	l.doubtful.Store(int64(len(l.doubts)))
	want := r.crc.Sum32()
	if err := r.read(h[:4]); err != nil {
		return nil, err
	}
	if le.Uint32(h) != want {
		return nil, fmt.Errorf("%w: CRC does not match", ErrState)
	}
	return l, nil
}

type crcReader struct {
	r   io.Reader
	crc hash.Hash32
}

func (r *crcReader) read(p []byte) error {
	if _, err := io.ReadFull(r.r, p); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	_, _ = r.crc.Write(p)
	return nil
}
