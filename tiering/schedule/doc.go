// Package schedule says when the pool may move extents and how many bytes that
// may write: windows of the week (Window, Calendar) and a budget (Budget).
//
// A Calendar is a list of windows on the wall clock, each with an optional rate of
// its own; without windows the time is always right. A Budget combines it with a
// rate in bytes per second, an amount per cycle and an amount per day. The mover
// calls Take before it writes, which waits for the rate, an open window and the
// end of a pause, and refuses once an amount is spent.
//
// A Pacer spreads the amount of a day over the open time of the day, for those who plan;
// Calendar.Forecast tells when so many bytes will have been moved.
//
// A Governor finds the rate of copying that clients bear, by what their requests take
// beside moves and without them, and a Throttle keeps to it, piece by piece.
//
// Invariants: the bytes taken in a cycle or day never exceed its amount, not by
// one; Take has taken either all or nothing; a taker that waits is woken by
// every change that may concern it. A Budget has one lock, held for arithmetic
// alone. Nothing here starts a goroutine.
//
// The amount of the day survives a restart through State and Restore, which the
// caller persists as often as it wants to be exact: bytes taken after the last
// State are forgotten by a kill. The calendar is read through a clock.Clock; only
// the wall clock's day and minute matter to it.
package schedule
