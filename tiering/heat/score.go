package heat

import (
	"math"
	"time"
)

// Score is the heat of an extent at one moment.
type Score struct {
	// Heat is the weighted rate omega*Short + (1-omega)*Long in slow-device
	// seconds per second: the utilisation of the slowest tier's devices that
	// this extent's accesses would make, if it lay there.
	Heat        float64
	Short, Long float64 // the rates by the short and the long half-life, same unit
	// Noise is the variance of the heat, counted in accesses, in proportion to it, if
	// accesses come at random: 1/s, see Params.Noise.
	Noise     float64
	IOs       uint32 // accesses since it was first seen; stops at 16,777,215
	Age       uint32 // cycles since the first access; 0 too if there was none
	SinceMove uint32 // cycles since the last move, or NeverMoved
}

// NeverMoved is the SinceMove of an extent that was not moved since the daemon
// started, or that has been trimmed since.
const NeverMoved = ^uint32(0)

// moment holds what turns cells into scores at one time. The rate of a
// forward-decayed sum X with half-life h, for a cell known for age:
//
//	R = X * 2^(-(t-t0)/h) * ln2/h / (1 - 2^(-(age+h)/h))
//
// The last factor makes up for what a young extent had no time to collect. It takes
// the extent for one half-life older than it is, which is to say that before it was
// known it was idle for that long: with 1 - 2^(-age/h), the factor of an unbiased
// estimate, a single access of a new extent outweighs the habits of an old one, and
// what ranks by it serves real traces worse than no correction at all (by 1 to 2 % of
// latency; TestEvaluation of package simulate). Ages are whole cycles, one at least.
type moment struct {
	short, long float64 // factors of S and L but for the age
	weight      float64
	noise       float64
	cycle       uint32
	corrections []correction
}

type correction struct{ short, long float64 }

// momentLocked returns the moment now. mu is held, for reading at least.
func (t *Tracker) momentLocked(now time.Time) moment {
	d := now.Sub(t.landmark).Seconds()
	hs, hl := t.p.ShortHalfLife.Seconds(), t.p.LongHalfLife.Seconds()
	return moment{
		short:       math.Exp2(-d/hs) * math.Ln2 / hs,
		long:        math.Exp2(-d/hl) * math.Ln2 / hl,
		weight:      t.p.ShortWeight,
		noise:       t.p.Noise(),
		cycle:       t.cycle,
		corrections: t.corrections,
	}
}

// maxCorrections bounds the table of them to 1 MiB. Only a cycle shorter than a
// six-thousandth of the long half-life has more ages that matter; the rest of
// them then do without.
const maxCorrections = 1 << 16

// newCorrections returns the factors by age, for every age young enough that
// they matter: beyond ten half-lives they are below a thousandth.
func newCorrections(p Params) []correction {
	cycle, hs, hl := p.Cycle.Seconds(), p.ShortHalfLife.Seconds(), p.LongHalfLife.Seconds()
	out := make([]correction, int(min(10*hl/cycle, maxCorrections-1))+1)
	for age := range out {
		seconds := float64(max(age, 1)) * cycle
		out[age] = correction{1 / (1 - math.Exp2(-seconds/hs-1)), 1 / (1 - math.Exp2(-seconds/hl-1))}
	}
	return out
}

func (m *moment) score(c *cell) Score {
	s, l := unpackScore(c.score.Load())
	st := unpackStats(c.stats.Load())
	sc := Score{IOs: st.ios, SinceMove: NeverMoved}
	if st.moved != 0 {
		sc.SinceMove = m.cycle - min(st.moved, m.cycle)
	}
	if st.born == 0 {
		return sc
	}
	sc.Age = m.cycle - min(st.born, m.cycle)
	f := correction{1, 1}
	if int(sc.Age) < len(m.corrections) {
		f = m.corrections[sc.Age]
	}
	sc.Short = float64(s) * m.short * f.short
	sc.Long = float64(l) * m.long * f.long
	sc.Heat = m.weight*sc.Short + (1-m.weight)*sc.Long
	sc.Noise = m.noise * (3*f.long - 2)
	return sc
}
