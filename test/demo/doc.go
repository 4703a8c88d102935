// Command demo shows what tierd does, in about two minutes and with nothing but
// this repository: `make demo`.
//
// It creates a pool of three file backings in a temporary folder, slowed down to
// about 0.1, 10 and 20 ms (simulate), starts bin/tierd on it, and fills a volume
// larger than the two upper tiers, so that most extents begin in the slowest one.
// Then it puts a skewed load on the volume for a minute: a few extents get most of
// the requests, and the planner has to find out which. Meanwhile a table shows
// each tier's fill, rate, share of the reads, and what moved in and out.
//
// # What is measured, and how
//
//   - Latency is the client's: from handing a request to the NBD client until its
//     answer, as nbd/load counts it, of all requests (95 % reads). The load keeps a
//     fixed number of requests in flight, so faster answers make more requests.
//   - The share of reads and the bytes moved are the daemon's own counters, asked
//     for over the admin socket once a second.
//   - The allowance for movement is computed from the load's time, the cycles that
//     began in it and the budget; it is what the budget's documentation promises.
//   - Every read is checked against what was last written there, and at the end
//     `tierctl pool check` reads the stopped pool.
//
// The exit code is 1 if the last ten seconds were not three times as fast as the
// first ten, if more moved than the budget allows, or if anything was read wrong.
//
// The first ten seconds are no baseline without movement: the daemon plans from
// its first cycle on.
package main
