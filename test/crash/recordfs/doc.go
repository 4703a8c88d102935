// Package recordfs is a file system in memory that can lose power, for files that
// a program opens by itself: metadata, logs. A process of its own serves it through
// FUSE and keeps a journal of every write, change of length, new or changed name,
// and sync of a file or of a folder. From that it can be told what a restart could
// find at any instant.
//
// The process is the test binary once more: its TestMain calls Main first. It must
// be another process, because a page fault on a mapped file cannot be served by a
// program that the race detector or the collector has stopped. It ends, and takes
// the mount away, when the one that started it does, however that ends.
//
// Each folder of the root is a small world: it is made by Load, with what is
// durable in it and, after a kill, with what is not. Sequence numbers of the
// journal come from a counter in shared memory, FS.Next, on which a recorder of
// other stores can count as well, so that one number is one instant for both.
//
// # Model
//
// A file's writes and changes of length are durable once an fsync or fdatasync
// that began after them has returned; names, once a sync of the folder has. What
// is not may be there or not, the writes sector by sector (see crashstore.Cut), the
// names one by one, but a rename is done or not done as a whole. A name that is
// durable and whose file was never synced names a file of zeroes or less.
package recordfs
