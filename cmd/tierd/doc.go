// Command tierd serves the volumes of a pool over NBD and moves their extents
// between tiers.
//
// main.go reads the command line and the configuration; daemon.go takes the
// addresses, opens the pool and starts the servers in that order, and takes them
// down in reverse: no new clients, requests in flight answered, everything
// flushed, the pool marked as cleanly stopped. exports.go and service.go translate
// between the pool and its two front ends, NBD and the admin socket, which do not
// know each other. metrics.go and the pool's own collector are what Prometheus
// sees.
//
// # Recordings
//
// service_trace.go records the requests to a volume: the pool hands them over
// (tiering.Volume.Record), pkg/trace makes a file of them, and that goes over the
// admin socket, as it comes, to the tierctl that asked, which writes it. The daemon
// opens no file for it. So it needs no path of an operator's, which could be a backing,
// the metadata, or a file of somebody else's; what may be overwritten, who owns the
// file, which disk fills up and which quota counts are questions between the operator
// and the kernel; and the unit's hardening (ProtectSystem, ProtectHome) can stay as it
// is. The price: a recording ends with its tierctl. Who wants one to outlive the
// terminal starts tierctl with systemd-run or nohup. All work but the copy of a few
// words for each request is done by the goroutine of the admin request, so nothing is
// left behind when that ends.
//
// The exit code is 0 after a clean stop, 1 if something failed, and 2 for a bad
// command line or configuration, every fault of which is listed.
package main
