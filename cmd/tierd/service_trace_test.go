package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"tierd/pkg/control"
	"tierd/pkg/trace"
	"tierd/tiering"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// traced is a pool with two volumes behind an admin socket.
type traced struct {
	t      *testing.T
	pool   *tiering.Pool
	server *control.Server
	client *control.Client
}

func newTraced(t *testing.T) *traced {
	t.Helper()
	dir := t.TempDir()
	specs := []tiering.BackingSpec{{Path: filepath.Join(dir, "a.img"), Size: 64 << 20}}
	_, err := tiering.Create(t.Context(), tiering.CreateOptions{
		Metadata: filepath.Join(dir, "pool.db"), ExtentSize: 1 << 20,
		Tiers:   []tiering.TierSpec{{Name: "a", Backings: specs}},
		Volumes: []tiering.VolumeSpec{{Name: "v", Size: 16 << 20}, {Name: "w", Size: 16 << 20}},
	})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := tiering.Open(t.Context(), tiering.Options{Metadata: filepath.Join(dir, "pool.db"), Backings: specs, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	e := &traced{t: t, pool: pool, server: control.NewServer(&service{pool: pool}, slog.New(slog.DiscardHandler)), client: control.Dial(socket)}
	served := make(chan error, 1)
	go func() { served <- e.server.Serve(l) }()
	t.Cleanup(func() {
		e.client.Close()
		if err := errors.Join(e.server.Shutdown(context.Background()), <-served, pool.Close()); err != nil {
			t.Error(err)
		}
	})
	return e
}

func (e *traced) volume(name string) *tiering.Volume {
	e.t.Helper()
	v, err := e.pool.Volume(name)
	if err != nil {
		e.t.Fatal(err)
	}
	return v
}

// A tracing is a recording under way, as its client sees it.
type tracing struct {
	e     *traced
	file  bytes.Buffer // to be read after wait
	ended chan error
}

// record asks for a recording and returns when it has begun: when a request of its
// own is in it.
func (e *traced) record(ctx context.Context, r control.TraceRecordRequest) *tracing {
	e.t.Helper()
	tr := &tracing{e: e, ended: make(chan error, 1)}
	go func() { tr.ended <- e.client.TraceRecord(ctx, r, &tr.file) }()
	e.eventually("the recording of "+r.Volume+" begins", func() bool {
		if err := e.volume(r.Volume).ReadAt(ctx, make([]byte, 512), 8<<20); err != nil {
			e.t.Fatal(err)
		}
		return e.records(r.Volume) > 0
	})
	return tr
}

// records returns how many records the recording of a volume has, -1 for none.
func (e *traced) records(volume string) int64 {
	e.t.Helper()
	list, err := e.client.Traces(context.Background())
	if err != nil {
		e.t.Fatal(err)
	}
	for _, rec := range list {
		if rec.Volume == volume {
			return rec.Records
		}
	}
	return -1
}

func (e *traced) eventually(what string, cond func() bool) {
	e.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			e.t.Fatalf("waited too long: %s", what)
		}
	}
}

// wait waits for the end of a recording and returns its records, but for those by
// which record knows that it has begun.
func (tr *tracing) wait() ([]trace.Record, trace.Recording) {
	t := tr.e.t
	t.Helper()
	if err := <-tr.ended; err != nil {
		t.Fatalf("TraceRecord: %v", err)
	}
	return readTrace(t, tr.file.Bytes())
}

func readTrace(t *testing.T, file []byte) (records []trace.Record, info trace.Recording) {
	t.Helper()
	r, err := trace.NewReader(bytes.NewReader(file), "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var last time.Duration
	for {
		rec, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if rec.Time < last {
			t.Errorf("time goes back from %v to %v", last, rec.Time)
		}
		last = rec.Time
		rec.Time = 0
		if rec.Length != 512 {
			records = append(records, rec)
		}
	}
	info, ok := trace.Recorded(r)
	if !ok || !info.Ended {
		t.Errorf("the recording was not ended in order: %+v", info)
	}
	return records, info
}

// What was asked of two volumes, by several clients each, is in their recordings.
func TestTraceRecord(t *testing.T) {
	e := newTraced(t)
	before := time.Now()
	v, w := e.volume("v"), e.volume("w")
	rv := e.record(t.Context(), control.TraceRecordRequest{Volume: "v", Compress: true})
	rw := e.record(t.Context(), control.TraceRecordRequest{Volume: "w"})
	wantErr(t, "a second recording", e.client.TraceRecord(t.Context(), control.TraceRecordRequest{Volume: "v"}, io.Discard), control.ErrBusy)
	wantErr(t, "a second recording, tried", e.client.TraceRecord(t.Context(), control.TraceRecordRequest{Volume: "v", DryRun: true}, io.Discard), control.ErrBusy)

	const workers, each = 4, 300
	var wg sync.WaitGroup
	for i := range int64(workers) {
		wg.Go(func() {
			p := make([]byte, 4096)
			p[0] = 1
			for k := range int64(each) {
				off := i<<20 + k%200*4096
				if err := errors.Join(v.WriteAt(t.Context(), p, off, false), w.ReadAt(t.Context(), p, off)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(v.Flush(t.Context()), v.Trim(t.Context(), 0, 1<<20, false), v.WriteZeroes(t.Context(), 1<<20, 4096, false, false)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"v", "w"} {
		if st, err := e.client.TraceStop(t.Context(), control.TraceStopRequest{Volume: name}); err != nil || st.Recording.Records < workers*each || st.Recording.Volume != name {
			t.Errorf("TraceStop = %+v, %v", st, err)
		}
	}
	got, info := rv.wait()
	if len(got) != workers*each+3 || info.Volume != "v" || info.UUID != v.UUID() || info.VolumeSize != 16<<20 || info.ExtentSize != 1<<20 ||
		info.Start.Before(before.Add(-time.Second)) || info.Reason != errTraceStopped.Error() || info.Dropped != 0 {
		t.Errorf("%d records, %+v", len(got), info)
	}
	if tail := got[len(got)-3:]; !slices.Equal(tail, []trace.Record{
		{Flush: true}, {Trim: true, Length: 1 << 20}, {Trim: true, Zero: true, Offset: 1 << 20, Length: 4096},
	}) {
		t.Errorf("the last records are %+v", tail)
	}
	got = got[:len(got)-3]
	reads, _ := rw.wait()
	for name, records := range map[string][]trace.Record{"v": got, "w": reads} {
		next := make([]int64, workers)
		for _, r := range records {
			i := r.Offset >> 20
			if want := (trace.Record{Write: name == "v", Offset: i<<20 + next[i]%200*4096, Length: 4096}); r != want {
				t.Fatalf("%s: record %+v, want %+v", name, r, want)
			}
			next[i]++
		}
		if !slices.Equal(next, []int64{each, each, each, each}) {
			t.Errorf("%s: %v records of each client", name, next)
		}
	}
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestTraceRefusals(t *testing.T) {
	e := newTraced(t)
	for _, tt := range []struct {
		r    control.TraceRecordRequest
		want error
	}{
		{control.TraceRecordRequest{Volume: "x"}, control.ErrNotFound},
		{control.TraceRecordRequest{Volume: "v", ForSeconds: -1}, control.ErrUsage},
		{control.TraceRecordRequest{Volume: "v", ForSeconds: 1e12}, control.ErrUsage},
		{control.TraceRecordRequest{Volume: "v", MaxSizeBytes: 4095}, control.ErrUsage},
		{control.TraceRecordRequest{Volume: "v", MaxSizeBytes: -1}, control.ErrUsage},
		{control.TraceRecordRequest{Volume: "v", DryRun: true}, nil},
	} {
		var b bytes.Buffer
		if err := e.client.TraceRecord(t.Context(), tt.r, &b); !errors.Is(err, tt.want) || b.Len() > 0 {
			t.Errorf("%+v: %v and %d bytes, want %v", tt.r, err, b.Len(), tt.want)
		}
	}
	_, err := e.client.TraceStop(t.Context(), control.TraceStopRequest{Volume: "v"})
	wantErr(t, "stop of no recording", err, control.ErrNotFound)
	_, err = e.client.TraceStop(t.Context(), control.TraceStopRequest{Volume: "x"})
	wantErr(t, "stop of no volume", err, control.ErrNotFound)
	if n := e.records("v"); n != -1 {
		t.Errorf("a recording of %d records after refusals", n)
	}
}

// A recording ends when its time is over, when it is full, when it is stopped by its
// token, when the volume is deleted and when the daemon stops, each time with the
// reason in its end.
func TestTraceEnds(t *testing.T) {
	e := newTraced(t)
	tr := e.record(t.Context(), control.TraceRecordRequest{Volume: "v", ForSeconds: 1})
	if _, info := tr.wait(); info.Reason != errTraceTime.Error() || info.Span < time.Second {
		t.Errorf("time: %+v", info)
	}

	const bound = 10_000
	tr = e.record(t.Context(), control.TraceRecordRequest{Volume: "v", MaxSizeBytes: bound})
	e.eventually("the recording is full", func() bool {
		for range 100 {
			if err := e.volume("v").ReadAt(t.Context(), make([]byte, 4096), 4096); err != nil {
				t.Fatal(err)
			}
		}
		return e.records("v") == -1
	})
	if _, info := tr.wait(); info.Reason != errTraceFull.Error() || tr.file.Len() > bound || tr.file.Len() < bound-128 {
		t.Errorf("size: %d bytes, %+v", tr.file.Len(), info)
	}

	tr = e.record(t.Context(), control.TraceRecordRequest{Volume: "v", Token: "mine"})
	_, err := e.client.TraceStop(t.Context(), control.TraceStopRequest{Volume: "v", Token: "yours"})
	wantErr(t, "stop by another token", err, control.ErrNotFound)
	if st, err := e.client.TraceStop(t.Context(), control.TraceStopRequest{Volume: "v", Token: "mine", DryRun: true}); err != nil || !st.DryRun || e.records("v") < 0 {
		t.Errorf("stop, tried: %+v, %v", st, err)
	}
	if _, err := e.client.TraceStop(t.Context(), control.TraceStopRequest{Volume: "v", Token: "mine"}); err != nil {
		t.Error(err)
	}
	if _, info := tr.wait(); info.Reason != errTraceStopped.Error() {
		t.Errorf("stop: %+v", info)
	}

	tr = e.record(t.Context(), control.TraceRecordRequest{Volume: "v"})
	if err := e.pool.DeleteVolume(t.Context(), "v", false, false); err != nil {
		t.Fatal(err)
	}
	if _, info := tr.wait(); info.Reason != errTraceDeleted.Error() {
		t.Errorf("deletion: %+v", info)
	}

	tr = e.record(t.Context(), control.TraceRecordRequest{Volume: "w"})
	if err := e.server.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if _, info := tr.wait(); info.Reason != errTraceDaemon.Error() || info.Records == 0 {
		t.Errorf("stop of the daemon: %+v", info)
	}
}

// A client that goes away ends its recording, and another can begin.
func TestTraceClientGoesAway(t *testing.T) {
	e := newTraced(t)
	ctx, cancel := context.WithCancel(t.Context())
	tr := e.record(ctx, control.TraceRecordRequest{Volume: "v"})
	cancel()
	wantErr(t, "TraceRecord", <-tr.ended, context.Canceled)
	e.eventually("the recording is over", func() bool { return e.records("v") == -1 })
	tr = e.record(t.Context(), control.TraceRecordRequest{Volume: "v"})
	if _, err := e.client.TraceStop(t.Context(), control.TraceStopRequest{Volume: "v"}); err != nil {
		t.Error(err)
	}
	tr.wait()
}

// plug is a file that takes nothing while its lock is held.
type plug struct {
	sync.Mutex
	b bytes.Buffer
}

func (p *plug) Write(b []byte) (int, error) {
	p.Lock()
	defer p.Unlock()
	return p.b.Write(b)
}

// When the recording cannot be written as fast as requests come, requests do not
// wait, and the file and the metric tell how many are missing.
func TestTraceOfASlowClient(t *testing.T) {
	e := newTraced(t)
	s := &service{pool: e.pool}
	file := new(plug)
	ended := make(chan error, 1)
	go func() { ended <- s.TraceRecord(context.Background(), control.TraceRecordRequest{Volume: "v"}, file) }()
	v := e.volume("v")
	p := make([]byte, 4096)
	issued := uint64(0)
	read := func(n int) {
		for range n {
			if !v.TryRead(p, 0) {
				t.Fatal("a read of an unmapped extent waits")
			}
		}
		issued += uint64(n)
	}
	e.eventually("the recording begins", func() bool {
		read(1)
		l, _ := s.Traces(t.Context())
		return len(l) == 1 && l[0].Records > 0
	})
	before := issued // and of these perhaps some before it began
	// More than all buffers hold, while the file takes nothing.
	file.Lock()
	read(700_000)
	file.Unlock()
	e.eventually("the file goes on", func() bool {
		read(1)
		l, _ := s.Traces(t.Context())
		return len(l) == 1 && l[0].DroppedRecords > 0
	})
	if _, err := s.TraceStop(t.Context(), control.TraceStopRequest{Volume: "v"}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	_, info := readTrace(t, file.b.Bytes())
	if info.Dropped == 0 || info.Records == 0 || info.Records+info.Dropped > issued {
		t.Errorf("%d records and %d dropped, of %d requests", info.Records, info.Dropped, issued)
	}
	if missing := issued - info.Records - info.Dropped; missing > before {
		t.Errorf("%d requests are neither recorded nor counted", missing)
	}
	reg := metricValue(t, e.pool, "tierd_trace_dropped_records_total")
	if reg != float64(info.Dropped) {
		t.Errorf("the metric says %v, the file %d", reg, info.Dropped)
	}
}

func metricValue(t *testing.T, p *tiering.Pool, name string) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(p.Collector())
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
