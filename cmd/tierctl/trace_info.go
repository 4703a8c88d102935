package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"tierd/pkg/trace"
	"tierd/pkg/units"
)

// traceInfoOptions are the flags of trace info.
type traceInfoOptions struct {
	format     string
	extentSize sizeFlag
}

func newTraceInfoCommand(g *globals) *cobra.Command {
	var o traceInfoOptions
	c := &cobra.Command{
		Use:   "info FILE",
		Short: "Tell what is in a trace",
		Long: `Info reads a trace, a recording of tierctl trace record or any other that tierctl
simulate understands, to its end, and asks no daemon. It tells how many requests of
which kind it has, how much they read and wrote, in which time, and how the accesses
are spread: the working set is the extents that are read or written, and the skew
the share of the accesses that goes to the most accessed 1, 5, 10 and 20 % of them.
A request is one access for each extent that it touches.

A recording that was cut short is read as far as it is whole.`,
		Example: "  tierctl trace info home.trace\n  tierctl trace info web_0.csv.gz --extent-size 4MiB -o json",
		Args:    args("FILE"),
		RunE: func(c *cobra.Command, args []string) error {
			if o.extentSize < 0 || c.Flags().Changed("extent-size") && o.extentSize == 0 {
				return usagef("%s--extent-size must be above 0", named(c))
			}
			if o.format != "" && !slices.Contains(trace.Formats(), trace.Format(o.format)) {
				return usagef("%s--format must be one of %s (got %q)", named(c), formatNames(), o.format)
			}
			info, err := readTraceInfo(args[0], o)
			if err != nil {
				return err
			}
			return g.print(info, func(w io.Writer) error { return showTraceInfo(w, info) })
		},
	}
	c.Flags().StringVar(&o.format, "format", "", "format of the trace: "+formatNames()+"; default: detect it")
	c.Flags().Var(&o.extentSize, "extent-size", "size of an extent (default that of the recording, or 1MiB)")
	return c
}

// traceInfo is what is told of a trace.
type traceInfo struct {
	File    string         `json:"file"`
	Format  string         `json:"format"`
	Timed   bool           `json:"timed"` // it has times of its own
	Records int64          `json:"records"`
	Skipped int64          `json:"skipped"` // entries that are no requests
	Span    float64        `json:"span_seconds"`
	Reads   int64          `json:"reads"`
	Writes  int64          `json:"writes"`
	Trims   int64          `json:"trims"`
	Zeroes  int64          `json:"zeroes"`
	Flushes int64          `json:"flushes"`
	Read    int64          `json:"read_bytes"`
	Written int64          `json:"written_bytes"`
	Trimmed int64          `json:"trimmed_bytes"` // zeroes included
	Disks   int            `json:"disks"`
	Extent  int64          `json:"extent_size_bytes"`
	Extents int64          `json:"working_set_extents"`
	Skew    []traceSkew    `json:"skew"`
	Origin  *traceRecorder `json:"recording,omitempty"` // nil: not recorded by tierd
}

// traceSkew is the share of the accesses that the most accessed extents get.
type traceSkew struct {
	Extents float64 `json:"extents_share"`
	IO      float64 `json:"io_share"`
}

// traceRecorder is what a recording tells of its origin.
type traceRecorder struct {
	Volume         string    `json:"volume"`
	UUID           string    `json:"uuid"`
	SizeBytes      int64     `json:"size_bytes"`
	StartedAt      time.Time `json:"started_at"`
	Ended          bool      `json:"ended"` // false: it was cut short
	Reason         string    `json:"reason"`
	DroppedRecords uint64    `json:"dropped_records"`
}

func readTraceInfo(path string, o traceInfoOptions) (*traceInfo, error) {
	r, err := trace.OpenFormat(path, trace.Format(o.format))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	extentSize := int64(1 << 20)
	header, recorded := trace.Recorded(r)
	if recorded {
		extentSize = header.ExtentSize
	}
	if o.extentSize > 0 {
		extentSize = int64(o.extentSize)
	}
	s, err := trace.Summarize(r, extentSize)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	info := &traceInfo{
		File: path, Format: string(r.Format()), Timed: r.Timed(), Records: s.Records, Skipped: r.Skipped(), Span: s.Span.Seconds(),
		Reads: s.Reads, Writes: s.Writes, Trims: s.Trims, Zeroes: s.Zeroes, Flushes: s.Flushes,
		Read: s.ReadBytes, Written: s.WrittenBytes, Trimmed: s.TrimmedBytes, Disks: s.Disks, Extent: extentSize, Extents: s.Extents,
	}
	if !info.Timed {
		info.Span = 0
	}
	for i, share := range trace.Shares {
		info.Skew = append(info.Skew, traceSkew{share, s.Top[i]})
	}
	if recorded {
		end, _ := trace.Recorded(r)
		info.Origin = &traceRecorder{
			Volume: end.Volume, UUID: uuid.UUID(end.UUID).String(), SizeBytes: end.VolumeSize, StartedAt: end.Start,
			Ended: end.Ended, Reason: end.Reason, DroppedRecords: end.Dropped,
		}
	}
	return info, nil
}

func showTraceInfo(w io.Writer, i *traceInfo) error {
	t := newTable(w)
	t.row("format", i.Format)
	if o := i.Origin; o != nil {
		t.row("volume", fmt.Sprintf("%s, %s, %s", o.Volume, size(o.SizeBytes), o.UUID))
		t.row("started", timestamp(o.StartedAt))
		if o.Ended {
			t.row("ended", "in order: "+o.Reason)
		} else {
			t.row("ended", "cut short: what is missing is not known")
		}
		t.row("dropped", count(o.DroppedRecords, "request"))
	}
	span := "not known: the trace has no times"
	if i.Timed {
		span = seconds(i.Span)
	}
	t.row("span", span)
	t.row("requests", i.Records)
	t.row("reads", fmt.Sprintf("%d, %s", i.Reads, size(i.Read)))
	t.row("writes", fmt.Sprintf("%d, %s", i.Writes, size(i.Written)))
	t.row("trims", fmt.Sprintf("%d, and %d zeroes, %s", i.Trims, i.Zeroes, size(i.Trimmed)))
	t.row("flushes", i.Flushes)
	if i.Skipped > 0 {
		t.row("skipped", fmt.Sprintf("%d, which are no requests", i.Skipped))
	}
	if i.Disks > 1 {
		t.row("disks", i.Disks)
	}
	t.row("working set", fmt.Sprintf("%s of %s, %s", count(i.Extents, "extent"), units.Size(i.Extent), size(i.Extents*i.Extent)))
	for _, s := range i.Skew {
		t.row(fmt.Sprintf("top %g%%", s.Extents*100), percent(s.IO)+" of the accesses")
	}
	return t.flush()
}
