package bound

import (
	"context"
	"math"
)

// Constants of descend. Steps are in units of the mean price if all accesses were
// paid for, and shrink evenly to the last one.
const (
	minDescent, maxDescent = 300, 3000 // rounds
	descentAccesses        = 1e9       // looked at, in all rounds
	firstStep, lastStep    = 0.3, 3e-5
	lasting1, lasting2     = 0.9, 0.99 // how much of both means a round leaves
)

// descend searches along the slopes: each price rises with what is used beyond its
// limit, and falls with what is left, by a step that is made equal between prices
// whose slopes are steep and flat (Adam: Kingma and Ba, ICLR 2015). What extents
// chose in the second half is mixed evenly, and serves what can be had.
func (s *search) descend(ctx context.Context, done func() bool) error {
	n := len(s.limit)
	rounds := int(min(max(minDescent, descentAccesses/(1+len(s.count))), maxDescent))
	y, slope, square := make([]float64, n), make([]float64, n), make([]float64, n)
	for i := range y {
		y[i] = 1 / float64(n)
	}
	mixed := column{use: make([]float64, n)}
	fade1, fade2 := 1.0, 1.0
	for r := range rounds {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if done() {
			break
		}
		s.rounds++
		c := s.ask(y, 1)[0]
		if half := rounds / 2; r >= half {
			mixed.lean(c, 1/float64(r-half+1))
			s.settle(mixed.value, mixed.use)
		}
		step := firstStep / float64(n) * math.Pow(lastStep/firstStep, float64(r)/float64(rounds))
		fade1, fade2 = fade1*lasting1, fade2*lasting2
		for i, u := range c.use {
			slope[i] += (1 - lasting1) * (1 - u - slope[i])
			square[i] += (1 - lasting2) * ((1-u)*(1-u) - square[i])
			y[i] = max(0, y[i]-step*slope[i]/(1-fade1)/(math.Sqrt(square[i]/(1-fade2))+1e-3))
		}
	}
	return nil
}

// lean moves a mix by a part of what is between it and a column.
func (c *column) lean(to column, part float64) {
	c.value += part * (to.value - c.value)
	for i, u := range to.use {
		c.use[i] += part * (u - c.use[i])
	}
}
