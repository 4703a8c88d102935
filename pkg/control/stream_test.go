package control

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"
)

// recorder is a Service whose recordings are what a function writes.
type recorder struct {
	fake
	record func(ctx context.Context, r TraceRecordRequest, w io.Writer) error
}

func (r *recorder) TraceRecord(ctx context.Context, req TraceRecordRequest, w io.Writer) error {
	return r.record(ctx, req, w)
}

// sink takes the pieces of a recording.
type sink chan string

func (s sink) Write(p []byte) (int, error) { s <- string(p); return len(p), nil }

// A piece arrives when it is sent, not when the reply is whole; what was asked for
// arrives at the Service.
func TestStreamArrivesAsItComes(t *testing.T) {
	goOn := make(chan struct{})
	want := TraceRecordRequest{Volume: "v", ForSeconds: 1.5, MaxSizeBytes: 1 << 30, Compress: true, Token: "t", DryRun: true}
	client, _ := start(t, &recorder{record: func(_ context.Context, r TraceRecordRequest, w io.Writer) error {
		if r != want {
			t.Errorf("asked %+v, want %+v", r, want)
		}
		_, err1 := io.WriteString(w, "head")
		<-goOn
		_, err2 := io.WriteString(w, "tail")
		return errors.Join(err1, err2)
	}})
	got := make(sink, 10)
	ended := make(chan error, 1)
	go func() { ended <- client.TraceRecord(t.Context(), want, got) }()
	if s := <-got; s != "head" {
		t.Errorf("first piece %q", s)
	}
	close(goOn)
	if s := <-got; s != "tail" {
		t.Errorf("second piece %q", s)
	}
	if err := <-ended; err != nil {
		t.Errorf("TraceRecord: %v", err)
	}
}

func TestStreamErrors(t *testing.T) {
	tests := []struct {
		name   string
		record func(ctx context.Context, w io.Writer) error
		want   error
		bytes  string
	}{
		{"nothing sent", func(context.Context, io.Writer) error { return nil }, nil, ""},
		{"before the first byte", func(context.Context, io.Writer) error { return WithHint(ErrBusy, "wait") }, ErrBusy, ""},
		{"after it", func(_ context.Context, w io.Writer) error {
			_, _ = io.WriteString(w, "head")
			return ErrBusy
		}, io.ErrUnexpectedEOF, "head"},
		{"panic", func(_ context.Context, w io.Writer) error {
			_, _ = io.WriteString(w, "head")
			panic("on purpose")
		}, io.ErrUnexpectedEOF, "head"},
	}
	for _, tt := range tests {
		client, _ := start(t, &recorder{record: func(ctx context.Context, _ TraceRecordRequest, w io.Writer) error { return tt.record(ctx, w) }})
		var b bytes.Buffer
		err := client.TraceRecord(t.Context(), TraceRecordRequest{}, &b)
		if !errors.Is(err, tt.want) || b.String() != tt.bytes {
			t.Errorf("%s: %v with %q, want %v with %q", tt.name, err, b.String(), tt.want, tt.bytes)
		}
		if tt.want == ErrBusy && Hint(err) != "wait" {
			t.Errorf("%s: hint %q", tt.name, Hint(err))
		}
	}
	client, _ := start(t, &fake{})
	if err := client.TraceRecord(t.Context(), TraceRecordRequest{}, io.Discard); !errors.Is(err, ErrUsage) {
		t.Errorf("a Service that records nothing: %v, want ErrUsage", err)
	}
	if err := Dial(t.TempDir()+"/none").TraceRecord(t.Context(), TraceRecordRequest{}, io.Discard); !errors.Is(err, ErrNotRunning) {
		t.Errorf("no daemon: %v, want ErrNotRunning", err)
	}
}

// A client that cannot write what it receives, one that goes away, and a server that
// stops end a recording; what was to be written in the end arrives if somebody reads.
func TestStreamEnds(t *testing.T) {
	ended := make(chan error, 1)
	forever := func(ctx context.Context, _ TraceRecordRequest, w io.Writer) error {
		for ctx.Err() == nil {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				break
			}
		}
		<-ctx.Done()
		_, err := io.WriteString(w, "end")
		ended <- err
		return err
	}
	var srv *Server
	client, _ := start(t, &recorder{record: forever}, func(s *Server) { srv = s })
	full := errors.New("disk is full")
	if err := client.TraceRecord(t.Context(), TraceRecordRequest{}, failing{full}); !errors.Is(err, full) {
		t.Errorf("a full disk: %v", err)
	}
	<-ended

	ctx, cancel := context.WithCancel(t.Context())
	got := make(sink)
	gone := make(chan error, 1)
	go func() { gone <- client.TraceRecord(ctx, TraceRecordRequest{}, got) }()
	<-got
	cancel()
	for waiting := true; waiting; {
		select {
		case <-got:
		case err := <-gone:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("a client that goes away: %v", err)
			}
			waiting = false
		}
	}
	<-ended

	var b bytes.Buffer
	begun := make(chan struct{}, 1)
	go func() {
		gone <- client.TraceRecord(t.Context(), TraceRecordRequest{}, io.MultiWriter(&b, notify(begun)))
	}()
	<-begun
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the end is not sent: %v", err)
	}
	if err := <-gone; err != nil || !bytes.HasSuffix(b.Bytes(), []byte("end")) {
		t.Errorf("a server that stops: %v; the end arrived: %v", err, bytes.HasSuffix(b.Bytes(), []byte("end")))
	}
}

// A client that does not read loses its recording, and does not keep a server from
// stopping.
func TestStreamToADeafClient(t *testing.T) {
	for _, who := range []string{"patience", "stop"} {
		failed := make(chan error, 1)
		var srv *Server
		client, _ := start(t, &recorder{record: func(ctx context.Context, _ TraceRecordRequest, w io.Writer) error {
			for {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					failed <- err
					return err
				}
			}
		}}, func(s *Server) {
			srv = s
			s.patience, s.haste = time.Hour, 50*time.Millisecond
			if who == "patience" {
				s.patience = 50 * time.Millisecond
			}
		})
		deaf, over := make(sink), make(chan error, 1)
		go func() { over <- client.TraceRecord(t.Context(), TraceRecordRequest{}, deaf) }()
		select {
		case <-deaf: // it reads a piece, and no more
		case err := <-over: // the machine stood still for longer than the server's patience
			over <- err
		}
		if who == "stop" {
			if err := srv.Shutdown(t.Context()); err != nil {
				t.Errorf("Shutdown: %v", err)
			}
		}
		if err := <-failed; err == nil {
			t.Errorf("%s: no error", who)
		}
		for waiting := true; waiting; {
			select {
			case <-deaf:
			case err := <-over:
				if err == nil {
					t.Errorf("%s: the client takes a reply that was cut off for a whole one", who)
				}
				waiting = false
			}
		}
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

type notify chan struct{}

func (n notify) Write(p []byte) (int, error) {
	select {
	case n <- struct{}{}:
	default:
	}
	return len(p), nil
}
