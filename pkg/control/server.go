package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"
)

// Limits of a request. Requests are a few names and numbers; only the replies to
// RelocationRun with Wait or UntilSettled and of a Recorder may take longer than moments.
const (
	maxRequestBytes = 64 << 10
	maxHeaderBytes  = 8 << 10
	readTimeout     = 10 * time.Second
	writeTimeout    = 10 * time.Second // for a reply, from when it is ready
	idleTimeout     = time.Minute
)

// A Server answers requests by calling a Service.
type Server struct {
	service Service
	log     *slog.Logger
	http    *http.Server
	refusal error              // what changes are answered with; nil: they are carried out
	cancel  context.CancelFunc // ends the context of every request

	patience, haste time.Duration // of streams

	busy    atomic.Int64 // requests
	stopped atomic.Bool  // no request may begin any more
}

// NewServer returns a Server for s that logs changes and failures to log.
func NewServer(s Service, log *slog.Logger) *Server {
	ctx, cancel := context.WithCancel(context.Background())
	srv := &Server{service: s, log: log, cancel: cancel, patience: streamTimeout, haste: writeTimeout}
	mux := http.NewServeMux()
	for _, r := range routes() {
		mux.HandleFunc("POST "+prefix+r.name, func(w http.ResponseWriter, req *http.Request) { srv.serve(w, req, r) })
	}
	if rec, ok := s.(Recorder); ok {
		mux.HandleFunc("POST "+prefix+routeTraceRecord, func(w http.ResponseWriter, req *http.Request) { srv.serveStream(w, req, rec) })
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		text := fmt.Sprintf("no such request: %s %.64q", req.Method, req.URL.Path)
		srv.fail(w, req.URL.Path, WithHint(fmt.Errorf("%s: %w", text, ErrUsage), "tierctl and tierd may be of different versions"))
	})
	srv.http = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return srv
}

// RefuseChanges makes every request that is not known to change nothing fail with
// err. It is called before Serve.
func (s *Server) RefuseChanges(err error) { s.refusal = err }

// Serve answers requests from l until Shutdown, then returns nil. It owns l.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve admin socket: %w", err)
	}
	return nil
}

// Shutdown stops accepting, cancels what is being waited for, and returns when
// every request is answered. If ctx ends first, connections are cut; that is an
// error if a request was under way. It is idempotent.
func (s *Server) Shutdown(ctx context.Context) error {
	s.cancel()
	err := s.http.Shutdown(ctx)
	if err == nil {
		return nil
	}
	s.stopped.Store(true) // whoever is not busy by now never will be
	s.http.Close()
	if s.busy.Load() == 0 {
		return nil
	}
	return fmt.Errorf("stop admin socket: %w", err)
}

func (s *Server) serve(w http.ResponseWriter, req *http.Request, r route) {
	s.busy.Add(1)
	defer s.busy.Add(-1)
	request := r.decode()
	if !s.accept(w, req, r.name, request) {
		return
	}
	reply, err := s.call(req.Context(), r, request)
	if err != nil {
		s.fail(w, r.name, err)
		return
	}
	s.log.Debug("admin request", "request", r.name)
	write(w, http.StatusOK, reply)
}

// accept decodes the request of a route into request. If it is not to be carried out
// it is answered, and accept returns false.
func (s *Server) accept(w http.ResponseWriter, req *http.Request, name string, request any) bool {
	if s.stopped.Load() {
		return false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxRequestBytes))
	if err != nil {
		s.fail(w, name, fmt.Errorf("read request: %w: %w", err, ErrUsage))
		return false
	}
	// The reading deadline has been met. Left in place it would fail net/http's
	// watch for a hang-up, and thereby cancel a request that takes longer.
	if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil {
		s.fail(w, name, fmt.Errorf("clear reading deadline: %w", err))
		return false
	}
	if err := decodeStrict(body, request); err != nil {
		s.fail(w, name, fmt.Errorf("decode request: %w: %w", err, ErrUsage))
		return false
	}
	if s.refusal != nil && !reading[name] {
		s.fail(w, name, s.refusal)
		return false
	}
	return true
}

// call calls the service; a panic there must not take the data path down.
func (s *Server) call(ctx context.Context, r route, request any) (reply any, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("admin request panicked", "request", r.name, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("request %s failed inside the daemon; its log has the details", r.name)
		}
	}()
	return r.call(ctx, s.service, request)
}

// fail answers with err.
func (s *Server) fail(w http.ResponseWriter, name string, err error) {
	wire, status := toWire(err)
	level := slog.LevelInfo
	if wire.Code == CodeInternal {
		level = slog.LevelWarn
	}
	s.log.Log(context.Background(), level, "admin request failed", "request", name, "code", string(wire.Code), "error", err)
	write(w, status, wire)
}

// decodeStrict decodes a request; an empty body is an empty request.
func decodeStrict(body []byte, into any) error {
	if len(body) == 0 {
		return nil
	}
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}

// write sends a reply. An error means that the client went away.
func write(w http.ResponseWriter, status int, reply any) {
	data, err := json.Marshal(reply)
	if err != nil { // an infinite number, say
		wire, _ := toWire(fmt.Errorf("encode reply: %w", err))
		status = http.StatusInternalServerError
		data, _ = json.Marshal(wire) // strings alone: cannot fail
	}
	// A client that does not read must not hold up a stop.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n'))
}
