package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"tierd/pkg/control"
	"tierd/pkg/trace"
	"tierd/pkg/units"
)

// stopTime is how long an interrupted tierctl waits for the end of its recording.
const stopTime = 15 * time.Second

// traceRecordOptions are the flags of trace record.
type traceRecordOptions struct {
	file     string
	outputs  []string // of -o, which is also the file
	duration durationFlag
	maxSize  sizeFlag
	compress bool
	dryRun   bool
}

func newTraceRecordCommand(g *globals) *cobra.Command {
	o := traceRecordOptions{maxSize: 1 << 30}
	c := &cobra.Command{
		Use:   "record VOLUME",
		Short: "Record the requests to a volume in a file",
		Long: `Record writes the requests that clients make to a volume to a file, until --for is
over, the file has --max-size, tierctl trace stop ends it, it is interrupted
(Ctrl-C), the volume is deleted, or tierd stops. Reads, writes, trims, zeroes and
flushes are recorded with their times and ranges, and nothing of their contents;
movement is not. The file must not exist yet. It is written by tierctl, with the
rights of whoever runs it; if its disk is full the recording ends, and what was
written until then can be used.

Recording never delays a request: what cannot be written as fast as it comes is
left out, and counted. tierctl trace info tells what is in the file, and tierctl
simulate and tierctl bench read it.

With -o json the outcome is JSON; any other -o is the file.`,
		Example: `  tierctl trace record home -o home.trace --for 24h --max-size 4GiB
  tierctl trace record home --file home.trace -o json`,
		Args: args("VOLUME"),
		RunE: func(c *cobra.Command, args []string) error {
			for _, v := range o.outputs {
				switch {
				case v == "json" || v == "table":
					g.output = v
				case o.file != "":
					return usagef("%sone file only (got %q and %q)", named(c), o.file, v)
				default:
					o.file = v
				}
			}
			if o.file == "" {
				return usagef("%sneeds a file: -o FILE", named(c))
			}
			if o.maxSize < trace.MinSize {
				return usagef("%s--max-size must be %s or more (got %s)", named(c), units.Size(trace.MinSize), units.Size(o.maxSize))
			}
			return runTraceRecord(c.Context(), g, args[0], &o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.file, "file", "", "`path` of the file, the same as -o")
	f.StringArrayVarP(&o.outputs, "output", "o", nil, "table or json; anything else: the file")
	f.Var(&o.duration, "for", "time to record; 0: until it is ended")
	f.Var(&o.maxSize, "max-size", "most bytes of the file")
	f.BoolVar(&o.compress, "compress", false, "pack the file with zstd: a tenth smaller as a rule, for some more time of tierd's")
	f.BoolVar(&o.dryRun, "dry-run", false, "check whether it could be recorded, and write nothing")
	return c
}

// traceRecorded is the outcome of a recording.
type traceRecorded struct {
	Volume         string  `json:"volume"`
	File           string  `json:"file"`
	Ended          bool    `json:"ended"`  // in order: the numbers below are known
	Reason         string  `json:"reason"` // why
	Records        uint64  `json:"records"`
	DroppedRecords uint64  `json:"dropped_records"`
	Bytes          int64   `json:"bytes"`
	SpanSeconds    float64 `json:"span_seconds"`
	DryRun         bool    `json:"dry_run"`
}

func runTraceRecord(ctx context.Context, g *globals, volume string, o *traceRecordOptions) error {
	client, err := g.client()
	if err != nil {
		return err
	}
	defer client.Close()
	r := control.TraceRecordRequest{
		Volume: volume, ForSeconds: units.Duration(o.duration).Std().Seconds(), MaxSizeBytes: int64(o.maxSize), Compress: o.compress,
		Token: uuid.NewString(), DryRun: o.dryRun,
	}
	done := traceRecorded{Volume: volume, File: o.file, DryRun: o.dryRun}
	if o.dryRun {
		if err := mayCreate(o.file); err != nil {
			return err
		}
		if err := client.TraceRecord(ctx, r, io.Discard); err != nil {
			return err
		}
		return g.print(done, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "volume %s could be recorded in %s\n", clean(volume), clean(o.file))
			return err
		})
	}
	f, err := os.OpenFile(o.file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return explainExists(err)
	}
	out := &countedFile{f: f}
	err = receive(ctx, g, client, r, out)
	if out.n == 0 {
		return errors.Join(err, f.Close(), os.Remove(o.file)) // it never began
	}
	end, endErr := trace.ReadEnd(f, out.n)
	done.Ended, done.Reason, done.Bytes = end.Ended, end.Reason, out.n
	done.Records, done.DroppedRecords, done.SpanSeconds = end.Records, end.Dropped, end.Span.Seconds()
	err = errors.Join(cutShort(err, out), endErr, f.Close())
	if err == nil && !end.Ended {
		err = fmt.Errorf("the recording in %s has no end", o.file)
	}
	if err != nil {
		return control.WithHint(err, "what was recorded until then can be used; tierctl trace info tells how much that is")
	}
	return g.print(done, func(w io.Writer) error { return showRecorded(w, done) })
}

func showRecorded(w io.Writer, d traceRecorded) error {
	_, err := fmt.Fprintf(w, "recorded %s of volume %s in %s, %s in %s; it ended because %s\n",
		count(d.Records, "request"), clean(d.Volume), seconds(d.SpanSeconds), size(d.Bytes), clean(d.File), d.Reason)
	if d.DroppedRecords > 0 && err == nil {
		_, err = fmt.Fprintf(w, "%s missing, because they came faster than they could be written\n", count(d.DroppedRecords, "request"))
	}
	return err
}

// receive writes a recording to out until it ends. When ctx ends, the recording is
// ended, and what is left of it received.
func receive(ctx context.Context, g *globals, client *control.Client, r control.TraceRecordRequest, out *countedFile) error {
	flow, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	out.begun = func() {
		fmt.Fprintf(g.errOut, "recording volume %s; Ctrl-C, or tierctl trace stop %s, ends it\n", clean(r.Volume), clean(r.Volume))
	}
	stopped := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(stopped)
		t, cancel := context.WithTimeout(flow, stopTime)
		defer cancel()
		if _, err := client.TraceStop(t, control.TraceStopRequest{Volume: r.Volume, Token: r.Token}); err != nil {
			cut() // it did not begin yet, or tierd does not answer
		}
	})
	err := client.TraceRecord(flow, r, out)
	if !unhook() {
		cut()
		<-stopped
	}
	return err
}

// countedFile is the file of a recording.
type countedFile struct {
	f     *os.File
	n     int64
	err   error  // of writing
	begun func() // called before the first byte
}

// Write appends to the file.
func (c *countedFile) Write(p []byte) (int, error) {
	if c.n == 0 && c.begun != nil {
		c.begun()
	}
	n, err := c.f.Write(p)
	c.n += int64(n)
	c.err = err
	return n, err
}

// cutShort words the error of a recording that had begun.
func cutShort(err error, out *countedFile) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(out.err, syscall.ENOSPC) || errors.Is(out.err, syscall.EDQUOT):
		return fmt.Errorf("the recording ended after %s because the disk is full: %w", units.Size(out.n).Human(), out.err)
	case out.err != nil:
		return fmt.Errorf("the recording ended after %s: %w", units.Size(out.n).Human(), out.err)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("the recording was cut short after %s, because tierd did not end it in time", units.Size(out.n).Human())
	}
	return fmt.Errorf("the recording was cut short after %s, by tierd: %w", units.Size(out.n).Human(), err)
}

// mayCreate tells whether a file can be made at path, as far as can be told without
// making it.
func mayCreate(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return explainExists(&fs.PathError{Op: "open", Path: path, Err: syscall.EEXIST})
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory", dir)
	}
	return err
}

func explainExists(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return control.WithHint(err, "a recording replaces nothing; name another path")
	}
	return err
}
