// Package deps holds the tests that keep the architecture and the house style:
// who may import whom, with the reason in each failure, which package may not ask
// for the time, that every package and every exported identifier is documented,
// and that no file outgrows a reader.
//
// The fences are a list of what each package may import beside the standard
// library (fences_test.go). It is meant to be changed, knowingly: a new package
// has no entry and fails until someone has decided where it belongs.
//
// The two seams that everything else hangs on are nbd.Device and backing.Store.
// The consumer declares its interface: tiering.Volume is an nbd.Device without
// either package knowing the other, and cmd translates between the types of the
// wire, of the configuration and of the domain.
package deps
