// Bench measures tierd beside other NBD servers, in pairs.
//
// # What is compared
//
// Each server gets files of its own on the same file system, preallocated, and
// filled over NBD by the same fio job; all run at the same time, and all but one
// are idle while that one is measured:
//
//   - tierd: one tier, one file, buffered I/O
//   - tierd3: the same with the volume spread over the files of three tiers (on request)
//   - nbdkit: its file plugin, which keeps to the page cache as we do
//   - qemu-nbd: raw format, its default cache mode (writeback)
//   - go-nbd: the server of the library github.com/pojntfx/go-nbd, inside this
//     process; a baseline, as it serves one request at a time and has no FLUSH
//
// A server whose program is not installed, or that fails the fill, is left out,
// and the report says so.
//
// # How
//
// For each workload there are -rounds rounds; in each, every server is measured
// for -seconds, one after the other, and each round begins with another server.
// So what else happens on the machine hits all alike, and the ratio of two
// servers within a round is worth more than either rate. Reported are the median
// rates and latencies, and of the ratios the median, the smallest and the
// largest. The geometric mean is that of the median ratios of all workloads.
//
// The files are synced before every measurement, so that no server's write-back
// falls on the next one's time. Nothing is dropped from the page cache: with the
// default size all is in memory, which is where servers differ; beyond memory
// disks do.
//
// How the files were filled decides about random writes on ext4: into page cache
// folios of 1 MiB, which a server makes that passes writes of 1 MiB on, they are
// slow. tierd passes on 64 KiB at most. -fill-block 64KiB takes this out of the
// comparison. tierd also syncs in the background, and so within its own time, to
// bound what a FLUSH has to wait for; the others leave all to the kernel.
//
// CPU per request is the processor time that the server's process spent, user
// and system, over the requests answered. It varies less than the rates do.
// Write-back by kernel threads is in no server's account.
//
// The load comes from fio with its nbd engine or, with -load tierctl, from
// "tierctl bench". fio takes the larger part of two processors at depth 32, and
// so hides what the server could do; the other leaves more to it.
//
// # Targets
//
// With -check the exit code is 1 if tierd is not ahead of qemu-nbd in every
// workload (median ratio above 1), or if the geometric mean of the ratios to
// nbdkit is below 1.
//
// # What parts cost
//
// What a part of the hit path costs by itself is measured by Go benchmarks beside
// it: nbd (loopback round trips), tiering (a write and a read of a volume),
// tiering/registry (enter and leave), tiering/extentmap (load, store), tiering/stagedlog
// (append), tiering/heat (an access), tiering/plan (a plan of a large pool) and
// pkg/backing (calls on a file). `make microbench` runs them.
package main
