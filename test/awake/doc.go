// Package awake keeps processors from going to sleep while something is measured. To
// wake one takes tens of microseconds in a virtual machine: a client that waits for each
// answer pays that when it is alone, and not beside others, so that the machine would be
// compared and not the server.
//
// Threads of the lowest priority do it (SCHED_IDLE), in processes of their own: the
// program once more, whose main calls Main first.
package awake
