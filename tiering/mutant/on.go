//go:build mutants

package mutant

import (
	"os"
	"sync/atomic"
)

// Enabled tells whether this build can be broken on purpose.
const Enabled = true

var current atomic.Pointer[Mutant]

func init() { Set(Mutant(os.Getenv("TIERD_MUTANT"))) }

// Set switches m on and every other mutant off; "" switches all off.
func Set(m Mutant) { current.Store(&m) }

// On reports whether m is switched on.
func On(m Mutant) bool { return *current.Load() == m }
