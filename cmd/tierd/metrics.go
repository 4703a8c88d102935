package main

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tierd/nbd"
	"tierd/nbd/wire"
	"tierd/pkg/metrics"
	"tierd/pkg/samehost"
	"tierd/tiering"
)

// handshakeReasons are the values of the label reason of failed handshakes.
var handshakeReasons = []string{
	nbd.ReasonAborted, nbd.ReasonHangup, nbd.ReasonTimeout, nbd.ReasonProtocol, nbd.ReasonTLS,
	nbd.ReasonNoExport, nbd.ReasonRefused, nbd.ReasonShutdown, nbd.ReasonLimit, nbd.ReasonPanic,
}

// nbdMetrics exposes the NBD server to Prometheus. What a request costs is counted
// by the pool, per volume and tier.
type nbdMetrics struct {
	server *nbd.Server
	pool   *tiering.Pool
	failed map[string]*atomic.Uint64

	connections, inFlight, budget, accepted, refused, failedDesc, requests, read, written, handoffs, panics, slow, oldest *prometheus.Desc
}

func newNBDMetrics(pool *tiering.Pool) *nbdMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(metrics.Namespace, "nbd", name), help, labels, nil)
	}
	m := &nbdMetrics{
		pool:        pool,
		failed:      make(map[string]*atomic.Uint64),
		connections: desc("connections", "Connections by state.", "state"),
		inFlight:    desc("requests_in_flight", "Requests in workers or waiting to be written."),
		budget:      desc("payload_budget_free_bytes", "Bytes of payloads that may still be in flight."),
		accepted:    desc("connections_accepted_total", "Connections accepted."),
		refused:     desc("connections_refused_total", "Connections refused because there were too many."),
		failedDesc:  desc("handshakes_failed_total", "Connections that ended without having chosen an export.", "reason"),
		requests:    desc("requests_total", "Requests answered or given up."),
		read:        desc("read_bytes_total", "Bytes of successful reads."),
		written:     desc("written_bytes_total", "Bytes of successful writes."),
		handoffs:    desc("handoffs_total", "Requests served inline that blocked, so that another goroutine took the connection over."),
		panics:      desc("panics_total", "Panics that cost a connection."),
		slow:        desc("slow_requests_total", "Requests that took longer than nbd.slow_request, counted when they did.", "volume", "op"),
		oldest:      desc("oldest_request_seconds", "Age of the oldest request in flight that was not answered at once.", "volume"),
	}
	for _, r := range handshakeReasons {
		m.failed[r] = new(atomic.Uint64)
	}
	return m
}

// ConnAccepted does nothing: the server counts.
func (m *nbdMetrics) ConnAccepted() {}

// HandshakeFailed counts the reason.
func (m *nbdMetrics) HandshakeFailed(reason string) {
	if n := m.failed[reason]; n != nil {
		n.Add(1)
	}
}

// ConnOpened wants to be told nothing more.
func (m *nbdMetrics) ConnOpened(string, string) nbd.ConnObserver { return nil }

// Describe sends the descriptions of all metrics.
func (m *nbdMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		m.connections, m.inFlight, m.budget, m.accepted, m.refused, m.failedDesc, m.requests, m.read, m.written, m.handoffs, m.panics, m.slow, m.oldest,
	} {
		ch <- d
	}
}

// Collect sends all metrics as they stand.
func (m *nbdMetrics) Collect(ch chan<- prometheus.Metric) {
	s := m.server.Snapshot()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(m.connections, float64(s.Transmitting), "transmission")
	gauge(m.connections, float64(max(s.Open-s.Transmitting, 0)), "handshake")
	gauge(m.inFlight, float64(s.InFlight))
	gauge(m.budget, float64(max(s.BudgetFree, 0)))
	counter(m.accepted, s.Accepted)
	counter(m.refused, s.Refused)
	for _, r := range handshakeReasons {
		counter(m.failedDesc, m.failed[r].Load(), r)
	}
	counter(m.requests, s.Requests)
	counter(m.read, s.BytesRead)
	counter(m.written, s.BytesWritten)
	counter(m.handoffs, s.Handoffs)
	counter(m.panics, s.Panics)
	oldest := make(map[string]time.Duration)
	for _, v := range m.server.Slow() {
		oldest[v.Export] = v.Oldest
		for cmd, n := range v.Counts {
			counter(m.slow, n, v.Export, wire.CmdName(cmd))
		}
	}
	for _, v := range m.pool.Volumes() {
		gauge(m.oldest, oldest[v.Name()].Seconds(), v.Name())
	}
}

// buildInfo is a metric that tells which version runs.
func buildInfo() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: metrics.Namespace, Name: "build_info", Help: "Version of the daemon; always 1.",
		ConstLabels: prometheus.Labels{"version": programVersion()},
	}, func() float64 { return 1 })
}

// protection is a metric of what protects the daemon on a host that uses its own volumes.
func protection(results []samehost.Result) prometheus.Collector {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: metrics.Namespace, Name: "same_host_protection", Help: "Whether a protection against a lack of memory on this host is in force.",
	}, []string{"kind"})
	for _, r := range results {
		on := 0.0
		if r.Err == nil {
			on = 1
		}
		g.WithLabelValues(r.Name).Set(on)
	}
	return g
}
