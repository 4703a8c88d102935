//go:build !mutants

package mutant

// Enabled tells whether this build can be broken on purpose.
const Enabled = false

// On reports whether m is switched on: never in this build.
func On(Mutant) bool { return false }
