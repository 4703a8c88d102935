package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tierd/pkg/control"
	"tierd/pkg/trace"
	"tierd/tiering"
)

const (
	// recordInterval is how often requests are taken from the pool, and blockInterval
	// how often, at least, a block of the recording is sent: what a recording that is
	// cut short may lack.
	recordInterval = 250 * time.Millisecond
	blockInterval  = time.Second
)

// Why a recording ends in order. The texts end up in the file.
var (
	errTraceStopped = errors.New("it was stopped")
	errTraceTime    = errors.New("its time is over")
	errTraceFull    = errors.New("it has the size that it may have")
	errTraceDeleted = errors.New("the volume was deleted")
	errTraceDaemon  = errors.New("tierd stopped")
)

// recordings are those under way, at most one of each volume.
type recordings struct {
	mu       sync.Mutex
	byVolume map[*tiering.Volume]*recording
}

// recording is one of them.
type recording struct {
	volume  *tiering.Volume
	request control.TraceRecordRequest
	start   time.Time
	stop    context.CancelCauseFunc
	ended   chan struct{}

	records, bytes, dropped atomic.Int64
}

// begin registers a recording.
func (r *recordings) begin(rec *recording) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byVolume[rec.volume] != nil {
		return control.WithHint(fmt.Errorf("volume %s is being recorded: %w", rec.volume.Name(), control.ErrBusy), "tierctl trace list shows it, tierctl trace stop ends it")
	}
	if rec.request.DryRun {
		return nil
	}
	if r.byVolume == nil {
		r.byVolume = make(map[*tiering.Volume]*recording)
	}
	r.byVolume[rec.volume] = rec
	return nil
}

// end forgets a recording that begin registered.
func (r *recordings) end(rec *recording) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byVolume, rec.volume)
	close(rec.ended)
}

// list returns the recordings by the names of their volumes.
func (r *recordings) list() []*recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*recording
	for _, rec := range r.byVolume {
		list = append(list, rec)
	}
	slices.SortFunc(list, func(a, b *recording) int { return cmp.Compare(a.volume.Name(), b.volume.Name()) })
	return list
}

func (rec *recording) info() control.TraceRecording {
	return control.TraceRecording{
		Volume: rec.volume.Name(), StartedAt: rec.start, ForSeconds: rec.request.ForSeconds, MaxSizeBytes: rec.request.MaxSizeBytes,
		Records: rec.records.Load(), Bytes: rec.bytes.Load(), DroppedRecords: rec.dropped.Load(),
	}
}

// Traces returns the recordings under way.
func (s *service) Traces(context.Context) ([]control.TraceRecording, error) {
	var out []control.TraceRecording
	for _, rec := range s.recordings.list() {
		out = append(out, rec.info())
	}
	return out, nil
}

// TraceStop ends a recording, and returns when its end has been sent.
func (s *service) TraceStop(ctx context.Context, r control.TraceStopRequest) (control.TraceStopped, error) {
	for _, rec := range s.recordings.list() {
		if rec.volume.Name() != r.Volume || r.Token != "" && r.Token != rec.request.Token {
			continue
		}
		if r.DryRun {
			return control.TraceStopped{Recording: rec.info(), DryRun: true}, nil
		}
		rec.stop(errTraceStopped)
		select {
		case <-rec.ended:
			return control.TraceStopped{Recording: rec.info()}, nil
		case <-ctx.Done():
			return control.TraceStopped{}, ctx.Err()
		}
	}
	if _, err := s.pool.Volume(r.Volume); err != nil {
		return control.TraceStopped{}, classify(err)
	}
	return control.TraceStopped{}, fmt.Errorf("a recording of volume %s: %w", r.Volume, control.ErrNotFound)
}

// TraceRecord records the requests to a volume.
func (s *service) TraceRecord(ctx context.Context, r control.TraceRecordRequest, w io.Writer) error {
	v, err := s.pool.Volume(r.Volume)
	switch {
	case err != nil:
		return classify(err)
	case r.ForSeconds < 0 || r.ForSeconds > (365*24*time.Hour).Seconds():
		return fmt.Errorf("for_seconds must be 0 to a year: %w", control.ErrUsage)
	case r.MaxSizeBytes != 0 && r.MaxSizeBytes < trace.MinSize:
		return fmt.Errorf("max_size_bytes must be %d or more: %w", trace.MinSize, control.ErrUsage)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	rec := &recording{volume: v, request: r, start: time.Now(), stop: stop, ended: make(chan struct{})}
	if err := s.recordings.begin(rec); err != nil || r.DryRun {
		return err
	}
	defer s.recordings.end(rec)
	if r.ForSeconds > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(r.ForSeconds*float64(time.Second)), errTraceTime)
		defer cancel()
	}
	return rec.run(ctx, w, s.pool.Size().Bytes())
}

// run records until there is a reason to end, which the recording has at its end then.
func (rec *recording) run(ctx context.Context, w io.Writer, extentSize int64) error {
	v := rec.volume
	tw, err := trace.NewWriter(w, trace.Header{
		Volume: v.Name(), UUID: v.UUID(), VolumeSize: v.Size(), ExtentSize: extentSize, Start: rec.start,
	}, trace.WriterOptions{MaxSize: rec.request.MaxSizeBytes, Compress: rec.request.Compress})
	if err != nil {
		return err
	}
	sent := rec.start
	err = v.Record(ctx, rec.start, recordInterval, func(accesses []tiering.Access, dropped uint64) error {
		tw.SetDropped(dropped)
		rec.dropped.Store(int64(dropped))
		for i := range accesses {
			if err := tw.Write(toRecord(&accesses[i])); err != nil {
				return err
			}
		}
		if now := time.Now(); now.Sub(sent) >= blockInterval {
			sent = now
			if err := tw.Flush(); err != nil {
				return err
			}
		}
		rec.records.Store(int64(tw.Records()))
		rec.bytes.Store(tw.Size())
		return nil
	})
	reason := why(ctx, v, err)
	if reason == nil {
		return err
	}
	err = tw.End(time.Since(rec.start), reason.Error())
	rec.records.Store(int64(tw.Records()))
	rec.bytes.Store(tw.Size())
	return err
}

// why returns for what reason a recording ended in order, or nil if it failed.
func why(ctx context.Context, v *tiering.Volume, err error) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(err, trace.ErrFull):
		return errTraceFull
	case errors.Is(err, tiering.ErrClosed) && v.Deleted():
		return errTraceDeleted
	case errors.Is(err, tiering.ErrClosed):
		return errTraceDaemon
	case ctx.Err() == nil || err != ctx.Err():
		return nil
	case cause == errTraceStopped, cause == errTraceTime:
		return cause
	}
	return errTraceDaemon // or the client went away, and will not see it
}

// toRecord puts a request into the words of traces.
func toRecord(a *tiering.Access) trace.Record {
	r := trace.Record{Time: a.At, Offset: a.Off, Length: a.Len}
	switch tiering.Op(a.Op) {
	case tiering.OpWrite:
		r.Write = true
	case tiering.OpTrim:
		r.Trim = true
	case tiering.OpZero:
		r.Trim, r.Zero = true, true
	case tiering.OpFlush:
		r.Flush = true
	}
	return r
}
