package control

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"sync"
	"time"
)

const routeTraceRecord = "trace-record"

// streamTimeout is how long a client of a stream may take to read what it is sent.
const streamTimeout = time.Minute

// serveStream answers a request with bytes as they come. A reply that fails in the
// middle is cut off, which the client notices.
func (s *Server) serveStream(w http.ResponseWriter, req *http.Request, rec Recorder) {
	s.busy.Add(1)
	defer s.busy.Add(-1)
	request := new(TraceRecordRequest)
	if !s.accept(w, req, routeTraceRecord, request) {
		return
	}
	out := &stream{w: w, c: http.NewResponseController(w), patience: s.patience, haste: s.haste}
	defer context.AfterFunc(req.Context(), out.hurry)()
	err := s.callStream(req.Context(), rec, *request, out)
	switch {
	case err == nil:
		s.log.Info("admin request", "request", routeTraceRecord, "volume", request.Volume, "bytes", out.sent)
		w.WriteHeader(http.StatusOK) // in case nothing was sent
	case out.sent == 0:
		s.fail(w, routeTraceRecord, err)
	default:
		s.log.Info("admin request failed", "request", routeTraceRecord, "volume", request.Volume, "bytes", out.sent, "error", err)
		panic(http.ErrAbortHandler)
	}
}

func (s *Server) callStream(ctx context.Context, rec Recorder, r TraceRecordRequest, w io.Writer) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("admin request panicked", "request", routeTraceRecord, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("request %s failed inside the daemon; its log has the details", routeTraceRecord)
		}
	}()
	return rec.TraceRecord(ctx, r, w)
}

// stream writes a reply piece by piece, each within a time, so that a client that
// does not read loses its reply and holds nobody up.
type stream struct {
	w    http.ResponseWriter
	c    *http.ResponseController
	sent int64

	patience, haste time.Duration // for a piece, and for all that is left after hurry

	mu    sync.Mutex
	hasty bool // the request was cancelled: what is left has little time
}

// Write sends p to the client.
func (o *stream) Write(p []byte) (int, error) {
	if o.sent == 0 {
		o.w.Header().Set("Content-Type", "application/octet-stream")
	}
	o.mu.Lock()
	if !o.hasty {
		_ = o.c.SetWriteDeadline(time.Now().Add(o.patience))
	}
	o.mu.Unlock()
	n, err := o.w.Write(p)
	o.sent += int64(n)
	if err == nil {
		err = o.c.Flush()
	}
	return n, err
}

func (o *stream) hurry() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.hasty = true
	_ = o.c.SetWriteDeadline(time.Now().Add(o.haste))
}

// TraceRecord implements Recorder. An error of w ends the recording.
func (c *Client) TraceRecord(ctx context.Context, r TraceRecordRequest, w io.Writer) error {
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	resp, err := c.post(ctx, routeTraceRecord, bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		data, err := io.ReadAll(io.LimitReader(resp.Body, maxReplyBytes))
		if err != nil {
			return fmt.Errorf("read reply: %w", err)
		}
		return c.failure(resp.Status, data)
	}
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("receive recording: %w", err)
	}
	return nil
}
