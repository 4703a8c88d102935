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
// The exit code is 0 after a clean stop, 1 if something failed, and 2 for a bad
// command line or configuration, every fault of which is listed.
package main
