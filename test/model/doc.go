// Package model is the oracle of the tiering packages: a world of backings in
// memory that can be killed and lose power, a shadow of what every volume must
// read as, and a generator of random operations that compares the two.
//
// A World keeps the backings over any number of opens of its pool. Three things
// can end an open: Close, which is clean; Kill, the death of the process, after
// which every answered change must be there; and Cut, a power loss, after which
// every flushed change must be there, and of the others any part.
//
// # Crash runs
//
// A CrashRun is one random life of a pool over many opens (crash.go). While its
// goroutines change, flush, read and move extents and make and delete volumes
// (crashwork.go), it takes Instants (instant.go): all that is on the backings and in
// the files of the metadata just before an event of a backing, with no commit under
// way. Each is judged afterwards (judge.go) as a kill and as a power cut would have
// left it: opened; opened, killed and opened again; checked; and rebuilt without the
// map. Instants of an open are crashes during recovery. A ledger (ledger.go) knows of
// every sector which changes were answered and which were flushed by then, and with
// that which contents may be there. The run goes on from one of the Instants, so that
// what one boot leaves meets the next ones. crashdisk.go makes backings slow, writes
// them in whole blocks, and lets their syncs fail.
//
// # Deliberate bugs
//
// With the build tag "mutants" the rules of package mutant can be switched off.
// mutant_test.go says which random suite has to notice which of them, and hunts each
// in a process of its own; scripts/crash mutants prints the table.
//
// Each random run prints its seed; the environment variable MODEL_SEED repeats
// one, as far as goroutines repeat themselves.
package model
