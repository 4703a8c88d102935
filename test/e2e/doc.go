// Package e2e tests the programs as their users have them: tierd and tierctl are
// built once, run as processes of their own, and are spoken to over real sockets
// by real clients (libnbd, qemu, fio, nbdkit, nbd-client) where those are
// installed. A test skips, saying what is missing, where they are not.
//
// A site is one pool in a short temporary folder, with its configuration and its
// sockets; a daemon is one run of tierd on it. The daemon is ready when its admin
// socket answers; it logs JSON lines, from which the tests learn the ports that
// the kernel chose, and the log is printed when a test fails. Tests run in
// parallel.
//
// Flags, after -args:
//
//	-kills N    rounds of the test that kills the daemon under load
//	-kill-cycle N  kills of the kill cycle
//	-long       run what takes longer than a minute, too
//	-update     rewrite testdata/metrics.golden
//	-bin DIR    test the programs in DIR instead of building them
//
// With the race detector in the test binary the programs are built with it, too:
// a race in the daemon makes its exit code 66 and with that the test fail.
package e2e
