package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"tierd/pkg/trace"
	"tierd/tiering/extent"
)

// Limits of what is simulated: they bound the memory whatever the trace says.
const (
	maxVolumes = 4096
	maxCycles  = 1 << 17
)

// maxExtents is a variable for tests alone.
var maxExtents = 1 << 24

// Errors of Run.
var (
	// ErrEmpty is returned for a trace without a read or a write.
	ErrEmpty = errors.New("the trace has no reads and no writes")
	// ErrTooLarge is returned for a trace that touches more than can be simulated.
	ErrTooLarge = errors.New("the trace is beyond what can be simulated")
	// ErrNoTime is returned for what needs arrival times, of a trace that has none.
	ErrNoTime = errors.New("the trace has no times")
)

// Source is a trace that can be read more than once.
type Source struct {
	Name string
	Open func() (trace.Reader, error)
}

// TraceInfo tells what was replayed.
type TraceInfo struct {
	Name     string  `json:"name"`
	Format   string  `json:"format"`
	Timed    bool    `json:"timed"`
	Requests int64   `json:"requests"` // reads and writes
	Accesses int64   `json:"accesses"` // one for each extent that a request touches
	Reads    int64   `json:"reads"`    // accesses, too
	Writes   int64   `json:"writes"`
	Volumes  int     `json:"volumes"`
	Extents  int     `json:"extents"`          // touched at least once
	Seconds  float64 `json:"duration_seconds"` // from the first request to the last; of no meaning if not Timed
	// Ignored counts trims, flushes, and entries of the trace that are no requests.
	Ignored int64 `json:"ignored"`
}

// survey is what the first pass over a trace learns.
type survey struct {
	info TraceInfo
	last time.Duration // of the last request
	size extent.Size
	ids  map[extent.Key]uint32 // in order of first touch
	disk map[int]extent.VolumeID
}

// look makes the first pass.
func look(ctx context.Context, src Source, size extent.Size) (*survey, error) {
	s := &survey{size: size, ids: map[extent.Key]uint32{}, disk: map[int]extent.VolumeID{}}
	s.info.Name = src.Name
	r, err := src.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	err = eachRequest(ctx, r, func(rec trace.Record) error {
		v, ok := s.disk[rec.Disk]
		if !ok {
			if len(s.disk) == maxVolumes {
				return fmt.Errorf("%w: more than %d disks", ErrTooLarge, maxVolumes)
			}
			v = extent.VolumeID(len(s.disk) + 1)
			s.disk[rec.Disk] = v
		}
		s.info.Requests++
		s.last = rec.Time
		first, last := s.span(rec)
		if s.tooLong(first, last) {
			return fmt.Errorf("%w: one request of %d bytes", ErrTooLarge, rec.Length)
		}
		n := int64(last - first + 1)
		s.info.Accesses += n
		if rec.Write {
			s.info.Writes += n
		} else {
			s.info.Reads += n
		}
		for i := first; i <= last; i++ {
			k := extent.Key{Volume: v, Index: i}
			if _, ok := s.ids[k]; ok {
				continue
			}
			if len(s.ids) == maxExtents {
				return fmt.Errorf("%w: more than %d extents of %d bytes; choose larger ones", ErrTooLarge, maxExtents, size.Bytes())
			}
			s.ids[k] = uint32(len(s.ids))
		}
		return nil
	}, &s.info.Ignored)
	if err != nil {
		return nil, err
	}
	if s.info.Requests == 0 {
		return nil, ErrEmpty
	}
	s.info.Format, s.info.Timed, s.info.Seconds = string(r.Format()), r.Timed(), s.last.Seconds()
	s.info.Volumes, s.info.Extents = len(s.disk), len(s.ids)
	return s, nil
}

// span returns the extents that a request touches. One of no bytes touches that
// of its address.
func (s *survey) span(rec trace.Record) (first, last extent.Index) {
	return s.size.Index(rec.Offset), s.size.Index(rec.Offset + max(rec.Length, 1) - 1)
}

func (s *survey) tooLong(first, last extent.Index) bool {
	return last-first >= extent.Index(maxExtents)
}

// eachRequest calls fn with the reads and writes of r, and adds what else there is
// to ignored.
func eachRequest(ctx context.Context, r trace.Reader, fn func(trace.Record) error, ignored *int64) error {
	for n := 0; ; n++ {
		if n&0xffff == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		rec, err := r.Next()
		switch {
		case err == io.EOF:
			*ignored += r.Skipped()
			return nil
		case err != nil:
			return err
		case rec.Trim || rec.Flush:
			*ignored++
		default:
			if err := fn(rec); err != nil {
				return err
			}
		}
	}
}

// noExtent is a number that no extent has.
const noExtent = math.MaxUint32

// addresses gives the extents of a survey numbers without wide gaps, volume by
// volume: heat is kept for address ranges, and a trace may touch a few extents all
// over a disk. Neighbours stay neighbours, and others do not become some, so that
// sequential runs are told as on the real disk.
type addresses struct {
	key    []extent.Key // by extent id: volume and that number
	volume [][]uint32   // by volume id - 1: the extent at each number, or noExtent
}

func (s *survey) addresses() *addresses {
	keys := make([]extent.Key, len(s.ids))
	for k, id := range s.ids {
		keys[id] = k
	}
	order := make([]uint32, len(keys))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(a, b uint32) int {
		switch x, y := keys[a], keys[b]; {
		case x.Volume != y.Volume:
			return int(x.Volume) - int(y.Volume)
		case x.Index < y.Index:
			return -1
		default:
			return 1
		}
	})
	a := &addresses{key: make([]extent.Key, len(keys)), volume: make([][]uint32, s.info.Volumes)}
	for n, id := range order {
		v := &a.volume[keys[id].Volume-1]
		if n > 0 {
			if before := keys[order[n-1]]; before.Volume == keys[id].Volume && before.Index+1 != keys[id].Index {
				*v = append(*v, noExtent)
			}
		}
		a.key[id] = extent.Key{Volume: keys[id].Volume, Index: extent.Index(len(*v))}
		*v = append(*v, id)
	}
	return a
}
