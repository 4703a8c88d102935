// Package tap takes note of the requests of one volume for whoever records them,
// at a cost to the requests that is small and bounded.
//
// # Model
//
// A Tap is in place only while somebody records: Push is called by the goroutines
// of requests, Drain by the one that records. In between is a ring of fixed size,
// made with the Tap: nothing is allocated later on behalf of a request. A request
// that finds the ring full is not noted, and counted as dropped; it is never held
// up.
//
//		            tail: taken out              head: the next to be given out
//		             |                            |
//		ring  ...free|published, published, being written, published|free...
//
//	 1. Push takes a place by moving head on, unless that would overtake tail by the
//	    whole ring. It takes no lock; it tries again if another Push was faster.
//	 2. It writes the request there, and then the number of the place, by which the
//	    place is published.
//	 3. Drain takes out what is published, up to the first place that is not, and moves
//	    tail on.
//
// # Order
//
// The order is that of the places. Two requests pushed one after the other by one
// goroutine, or by two of which one waited for the other, never change places. A
// goroutine that is descheduled between 1 and 3 holds up what is behind it in the
// ring, but no request.
//
// # Why one ring
//
// Buffers for each processor, as heat has them, would keep processors out of each
// other's way, but order needs a counter that all share anyway. A ring adds nothing
// to that counter, and its memory is written in sequence, which processors foresee.
package tap
