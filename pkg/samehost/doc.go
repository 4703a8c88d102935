// Package samehost protects a process on whose work the memory management of its own
// host depends: one that serves, or reconnects, the block device of a file system that
// is mounted here. When memory is short the kernel writes dirty pages to that device to
// get some back; a process behind it that then waits for memory itself waits for ever.
//
// Three things help, and each can be forbidden to a process:
//
//	memory      mlockall with ONFAULT: what is in use stays in memory, and what is not
//	            takes none
//	io_flusher  PR_SET_IO_FLUSHER on all threads: allocations do not wait for write-back
//	            of file systems, and writes are not throttled behind their dirty pages
//	oom_score   oom_score_adj -900: others are chosen to die before
package samehost
