// Tierctl is the administrator's command line for tierd.
//
// One file per verb. Each has a constructor newXCommand(g) that declares the
// flags, and a runX(ctx, g, ...) that does the work and prints to g.out: a
// table for people, or JSON for programs. JSON has the fields of pkg/control,
// in bytes and seconds; tables round. Errors are returned, printed once by run
// as a line and a hint, and turned into an exit code in one switch.
package main
