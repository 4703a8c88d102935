// Package slowdrive makes a block device that is as slow as a disk, for tests and
// benchmarks: a loop device on a file that a process of its own serves through
// FUSE. The disk has one head: an operation that does not go on where the one
// before ended costs 1/IOPS, and every byte costs 1/Bandwidth. It serves one
// operation at a time and has no cache; what the page cache of the loop device
// holds back is what a sync has to wait for.
//
// The process is the same program once more: its main or TestMain calls Main
// first. It ends, and takes the mount away, when the one that started it does,
// however that ends; the loop device goes with its last user.
package slowdrive
