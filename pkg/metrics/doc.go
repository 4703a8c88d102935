// Package metrics holds what the daemon's Prometheus collectors share: the
// namespace, the latency buckets, and a histogram that the I/O path can afford.
package metrics
