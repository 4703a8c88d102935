package trace

import (
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// maxPieces bounds the extents that one request of a trace may touch: a trace that
// claims more is not believed, and would take for ever.
const maxPieces = 1 << 20

// Shares are the parts of the working set of which a Summary tells the share of I/O.
var Shares = []float64{0.01, 0.05, 0.10, 0.20}

// A Summary is what a trace has in it.
type Summary struct {
	Records int64         // all of them
	Span    time.Duration // from the first record to the last; see Reader.Timed

	Reads, Writes, Trims, Zeroes, Flushes int64 // Trims without Zeroes

	ReadBytes, WrittenBytes, TrimmedBytes int64 // TrimmedBytes of trims and zeroes
	// Disks is how many disks are read or written.
	Disks int
	// Extents is the working set: extents of the size asked for that are read or
	// written.
	Extents int64
	// Accesses counts for each of them the requests that touch it; a request is one
	// access for each extent.
	Accesses int64
	// Top is the share of the accesses that goes to the most accessed extents, as many
	// of the working set, rounded up, as the same place of Shares says.
	Top []float64
}

// Summarize reads r to its end. It keeps a count for each extent touched.
func Summarize(r Reader, extentSize int64) (Summary, error) {
	if extentSize <= 0 {
		return Summary{}, fmt.Errorf("summarize trace: extents of %d bytes", extentSize)
	}
	type key struct {
		disk  int
		index int64
	}
	var s Summary
	counts := map[key]int64{}
	disks := map[int]bool{}
	for {
		rec, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return s, err
		}
		s.Records++
		s.Span = rec.Time
		switch {
		case rec.Flush:
			s.Flushes++
			continue
		case rec.Trim:
			if rec.Zero {
				s.Zeroes++
			} else {
				s.Trims++
			}
			s.TrimmedBytes = addBytes(s.TrimmedBytes, rec.Length)
			continue
		case rec.Write:
			s.Writes++
			s.WrittenBytes = addBytes(s.WrittenBytes, rec.Length)
		default:
			s.Reads++
			s.ReadBytes = addBytes(s.ReadBytes, rec.Length)
		}
		disks[rec.Disk] = true
		if rec.Length == 0 {
			continue
		}
		first, last := rec.Offset/extentSize, (rec.Offset+rec.Length-1)/extentSize
		if last-first >= maxPieces {
			return s, fmt.Errorf("summarize trace: %w: request %d of %d bytes", ErrMalformed, s.Records-1, rec.Length)
		}
		for i := first; i <= last; i++ {
			counts[key{rec.Disk, i}]++
		}
		s.Accesses += last - first + 1
	}
	s.Disks, s.Extents = len(disks), int64(len(counts))
	sorted := make([]int64, 0, len(counts))
	for _, n := range counts {
		sorted = append(sorted, n)
	}
	slices.Sort(sorted)
	slices.Reverse(sorted)
	for _, share := range Shares {
		var sum int64
		for _, n := range sorted[:int(math.Ceil(share*float64(len(sorted))))] {
			sum += n
		}
		s.Top = append(s.Top, float64(sum)/float64(max(s.Accesses, 1)))
	}
	return s, nil
}

// addBytes adds without the sum of a hostile trace turning negative.
func addBytes(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
