// Package setup turns a configuration into the options of the tiering packages.
// Daemon and command line share it, so that `tierctl pool create` and tierd mean
// the same pool by the same file; neither knows the other.
package setup
