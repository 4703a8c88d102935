// Package model is the oracle of the tiering packages: a world of backings in
// memory that can be killed and lose power, a shadow of what every volume must
// read as, and a generator of random operations that compares the two.
//
// A World keeps the backings over any number of opens of its pool. Three things
// can end an open: Close, which is clean; Kill, the death of the process, after
// which every answered change must be there; and Cut, a power loss, after which
// every flushed change must be there, and of the others any part.
//
// Each random run prints its seed; the environment variable MODEL_SEED repeats
// one.
package model
