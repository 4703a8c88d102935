// Package crashstore holds Stores in memory that can lose power. It keeps a
// journal of every change and every Sync of several Stores, in one order, and
// makes from it what a restart could find on the media: at any instant, on all
// of them together.
//
//	rec := crashstore.NewRecorder()
//	a, b := rec.NewStore(size), rec.NewStore(size)
//	... the code under test works on a and b ...
//	for _, e := range rec.Events() {
//		after := rec.CrashAt(e.Seq, crashstore.Cut{Seed: 1, Keep: 0.5})
//		... open after.Stores()[0], after.Stores()[1] and check ...
//	}
//
// # Model
//
// What was written, zeroed or discarded before a Sync of the same Store began
// that has returned is on the medium. Of everything later any part may be, in any
// order: each unit of bytes (512 unless Cut says otherwise) of each such change
// arrived or did not, or, if Cut.Torn says so, a leading part of the unit did.
// A zero or discard is a change to zeroes. Two changes of one unit may arrive
// both, either or neither, and the later wins. A Sync that has begun and not
// returned promises nothing yet, and may have done all of its work.
//
// Half of the changes share one fate as a whole, chosen by the seed: with every
// sector on its own, a big write would hardly ever arrive complete, and the
// order of whole writes would never be tested.
//
// A kill, where the process dies and the machine lives, is Reopen, or KillAt for
// one at an earlier instant: nothing is lost, neither what was unsynced nor that
// it was.
//
// Events have sequence numbers. A Recorder counts them itself, or takes them from
// a counter that it shares with recorders of other kinds, so that one number is
// one instant for all of them.
//
// The journal keeps all written bytes until Forget. Everything is
// deterministic by the seed and the order of the calls.
package crashstore
