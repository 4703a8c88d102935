package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/exporter-toolkit/web"

	"tierd/cmd/internal/setup"
	"tierd/nbd"
	"tierd/pkg/config"
	"tierd/pkg/control"
	"tierd/pkg/samehost"
	"tierd/tiering"
)

// drainTime is how long a stop waits for requests in flight.
const drainTime = 60 * time.Second

// adminStopTime is how long a stop then waits for requests of administrators and for
// scrapes.
const adminStopTime = 20 * time.Second

// openStopTime is how long a stop waits for the pool to be opened.
const openStopTime = 10 * time.Second

// daemon is one run of the program: listeners, pool and servers, in the order in
// which they come up. They go down in reverse.
type daemon struct {
	path               string // of the configuration
	readOnly, degraded bool
	cfg                *config.Config
	live               atomic.Pointer[config.Config] // cfg, for other goroutines
	log                *slog.Logger
	level              *slog.LevelVar
	stop               <-chan os.Signal
	reload             <-chan os.Signal

	listeners listeners
	certs     certificates
	protected []samehost.Result
	pool      *tiering.Pool
	nbd       *nbd.Server
	control   *control.Server
	metrics   *http.Server
	failed    chan error // a server ended by itself
}

// run serves until it is told to stop. The addresses are taken first: that one is
// in use is found out before anything on disk has changed.
func (d *daemon) run(ctx context.Context) error {
	for _, w := range d.cfg.Warnings() {
		d.log.Warn(w)
	}
	if err := d.protect(); err != nil {
		return err
	}
	if err := d.certs.load(d.cfg.NBD.TLS, d.log); err != nil {
		return err
	}
	if err := d.listeners.open(d.cfg, d.log); err != nil {
		return err
	}
	defer d.listeners.close()
	opts, err := setup.OpenOptions(d.cfg, d.log)
	if err != nil {
		return err
	}
	opts.ReadOnly, opts.Degraded = d.readOnly, d.degraded
	pool, err := d.open(ctx, opts)
	if err != nil {
		return fmt.Errorf("open pool: %w", err)
	}
	if pool == nil {
		return nil
	}
	d.pool = pool
	for _, w := range setup.Differences(d.cfg, pool) {
		d.log.Warn(w)
	}
	d.serve(ctx)
	d.notify(sd.SdNotifyReady)
	d.log.Info("serving", append([]any{"version", programVersion(), "volumes", len(pool.Volumes())}, d.listeners.attrs()...)...)

	err = d.wait(ctx)
	d.notify(sd.SdNotifyStopping)
	return errors.Join(err, d.shutdown())
}

// protect keeps the daemon from waiting for memory that only it can free. It comes
// first, so that memory and threads to come are covered.
func (d *daemon) protect() error {
	if d.cfg.SameHost == config.SameHostOff {
		return nil
	}
	d.protected = samehost.Protect()
	if err := samehost.Failed(d.protected); err != nil && d.cfg.SameHost == config.SameHostStrict {
		return fmt.Errorf("same_host is strict, and the daemon cannot be protected: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	for _, r := range d.protected {
		if r.Err != nil {
			d.log.Warn("not protected against a lack of memory on this host", "protection", r.Name, "error", r.Err)
		}
	}
	return nil
}

// open opens the pool. A signal stops that as soon as it has ended: then the pool is
// closed again, and nil is returned. If it does not end, because a backing hangs, it is
// cut short like by a kill, which harms nothing.
func (d *daemon) open(ctx context.Context, opts tiering.Options) (*tiering.Pool, error) {
	var pool *tiering.Pool
	var err error
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		pool, err = tiering.Open(ctx, opts)
	}()
	select {
	case <-opened:
		return pool, err
	case sig := <-d.stop:
		d.log.Info("stopping before the pool is open", "signal", sig.String())
	}
	select {
	case <-opened:
		if err == nil {
			err = pool.Close()
		}
		return nil, err
	case <-d.stop:
	case <-time.After(openStopTime):
	}
	return nil, errors.New("stopped before that had ended; the next start begins anew")
}

// serve starts the servers.
func (d *daemon) serve(ctx context.Context) {
	d.failed = make(chan error, len(d.listeners.nbd)+2)
	d.live.Store(d.cfg)
	exports := &exports{pool: d.pool, fallback: d.cfg.NBD.DefaultExport}
	stats := newNBDMetrics(d.pool)
	n := &d.cfg.NBD
	d.nbd = nbd.NewServer(nbd.Config{
		Exports: exports, Logger: d.log.With("component", "nbd"), Observer: stats,
		TLS: tlsMode(n.TLS.Mode), TLSConfig: d.certs.current.Load, PlaintextOnUnix: n.TLS.UnixPlaintext,
		MaxConns: n.MaxConnections, MaxInFlight: n.MaxInFlight, HandshakeTimeout: time.Duration(n.HandshakeTimeout),
		SlowRequest: time.Duration(n.SlowRequest),
	})
	stats.server = d.nbd
	for _, l := range d.listeners.nbd {
		go func() { d.ended("NBD server on "+l.Addr().String(), d.nbd.Serve(ctx, l)) }()
	}
	d.control = control.NewServer(&service{pool: d.pool, nbd: d.nbd, cfg: d.live.Load}, d.log.With("component", "admin"))
	if d.readOnly {
		d.control.RefuseChanges(control.WithHint(classified{errors.New("the pool is open read-only, and cannot be changed"), control.ErrUnavailable}, "stop tierd and start it without --read-only"))
	}
	go func() { d.ended("admin server", d.control.Serve(d.listeners.admin)) }()
	if d.listeners.metrics == nil {
		return
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(d.pool.Collector(), stats, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo(), protection(d.protected))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelWarn)}))
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "tierd: metrics are at /metrics")
	})
	d.metrics = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	webConfig := d.cfg.Metrics.WebConfig
	flags := &web.FlagConfig{WebConfigFile: &webConfig}
	go func() {
		quiet := slog.New(slog.NewTextHandler(levelWriter{d.log}, &slog.HandlerOptions{Level: slog.LevelWarn}))
		d.ended("metrics server", web.Serve(d.listeners.metrics, d.metrics, flags, quiet))
	}()
}

// levelWriter passes the lines of another logger on as warnings.
type levelWriter struct{ log *slog.Logger }

func (w levelWriter) Write(p []byte) (int, error) {
	w.log.Warn("metrics server", "message", string(p))
	return len(p), nil
}

// ended notes that a server has ended; nil and closed are how a stop looks.
func (d *daemon) ended(what string, err error) {
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		d.failed <- fmt.Errorf("%s: %w", what, err)
	}
}

// wait returns when the daemon has to stop: nil for a signal.
func (d *daemon) wait(ctx context.Context) error {
	var beat <-chan time.Time
	if interval, err := sd.SdWatchdogEnabled(false); err == nil && interval > 0 {
		t := time.NewTicker(interval / 2)
		defer t.Stop()
		beat = t.C
	}
	status := time.NewTicker(time.Minute)
	defer status.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case sig := <-d.stop:
			d.log.Info("stopping", "signal", sig.String())
			return nil
		case err := <-d.failed:
			return err
		case <-d.reload:
			d.reconfigure()
		case <-beat:
			d.pool.Info() // takes the pool's locks: a pool that hangs sends no sign of life
			d.notify(sd.SdNotifyWatchdog)
		case <-status.C:
			d.notify(fmt.Sprintf("STATUS=%d volumes, %d connections", len(d.pool.Volumes()), d.nbd.Snapshot().Open))
		}
	}
}

// notify tells systemd; elsewhere it does nothing.
func (d *daemon) notify(state string) {
	if _, err := sd.SdNotify(false, state); err != nil {
		d.log.Debug("systemd is not told", "state", state, "error", err)
	}
}

// reconfigure takes over what can change on a running daemon and says what cannot.
func (d *daemon) reconfigure() {
	cfg, err := config.Load(d.path)
	if err != nil {
		d.log.Error("configuration not reloaded", "error", err)
		return
	}
	changed, ignored := config.Reloadable(d.cfg, cfg)
	reloc, err := setup.Relocation(cfg)
	if err != nil {
		d.log.Error("configuration not reloaded", "error", err)
		return
	}
	if err := d.certs.load(d.cfg.NBD.TLS, d.log); err != nil {
		d.log.Error("certificates not reloaded; those in use stay", "error", err)
	} else if d.cfg.NBD.TLS.Mode != config.TLSOff {
		d.log.Info("certificates reloaded, for connections to come")
	}
	d.cfg = config.WithLive(d.cfg, cfg)
	d.live.Store(d.cfg)
	d.level.Set(d.cfg.Log.Level.Level())
	d.pool.SetRelocation(reloc)
	d.pool.SetLowWater(cfg.Space.LowWater.Fraction())
	d.log.Info("configuration reloaded", "changed", strings.Join(changed, "; "))
	if len(ignored) > 0 {
		d.log.Warn("some changes of the configuration need a restart, or tierctl", "ignored", strings.Join(ignored, "; "))
	}
}

// shutdown takes everything down in order: no new clients, requests in flight
// answered, everything flushed, the pool marked as cleanly stopped.
func (d *daemon) shutdown() error {
	hurry, cut := context.WithCancel(context.Background())
	defer cut()
	go func() {
		select {
		case <-d.stop:
			d.log.Warn("stopping at once")
			cut()
		case <-hurry.Done():
		}
	}()
	d.pool.Leave()
	ctx, cancel := context.WithTimeout(hurry, drainTime)
	defer cancel()
	if err := d.nbd.Shutdown(ctx); err != nil {
		// Requests are stuck, in a disk most likely, and hold on to the pool: it
		// cannot be closed under them. Every answered write is where a kill leaves it.
		return fmt.Errorf("requests did not end; the pool is not stopped cleanly: %w", err)
	}
	ctx, cancel = context.WithTimeout(hurry, adminStopTime)
	defer cancel()
	if err := d.control.Shutdown(ctx); err != nil {
		return fmt.Errorf("a request of tierctl did not end; the pool is not stopped cleanly: %w", err)
	}
	if d.metrics != nil && d.metrics.Shutdown(ctx) != nil {
		_ = d.metrics.Close()
	}
	if err := d.pool.Close(); err != nil {
		return fmt.Errorf("close pool: %w", err)
	}
	d.log.Info("stopped")
	return nil
}
