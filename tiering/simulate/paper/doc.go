// Package paper works out the figures of a paper of 2014 (IOTS 2014) that compares an
// array of three tiers with two sets of drives of one kind, step by step: Table 3 and
// what it rests on, the values of figures 8 to 10, and twelve points in which the paper
// is at odds with itself or says less than it seems to.
//
// # Model
//
// A read that misses the array's cache waits for a drive; hits, sequential reads and
// writes are answered by the cache in a time that the paper assumes (2 ms). The drives
// of one kind answer in
//
//	T_S = seek + 60000 / rpm / 2        service time, ms (SeekRotate)
//	T_R = T_S / (1 - rho)               residence time of M/M/1 (Residence)
//
// which is also what the planner of tierd expects of a tier (plan.Delay, with a limit to
// rho). The tiers' times were measured, and read misses are split over them as the reads
// of their drives are. The mean over all requests is what Table 3 compares.
//
// All is a pure function of Inputs: Defaults are those of the paper, and others show what
// its result depends on. Values are rounded and cut where the paper does so; the first
// of the limits tells what that changes.
package paper
