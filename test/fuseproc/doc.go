// Package fuseproc runs the FUSE file systems of tests, each in a process of its own:
// the program under test, with another main. In the process that uses its files, a
// garbage collection could stop the goroutine that has to serve them.
//
// The two processes talk over pipes, in gob. The serving one ends when the other one
// does, whatever ends that, and takes its mount with it: a path into a dead file
// system hangs whoever looks at it.
package fuseproc
