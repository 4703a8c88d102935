package skew

import (
	"maps"
	"math"
	"slices"
)

// classesPerDoubling is how finely heats are told apart.
const classesPerDoubling = 16

// step is how far apart points are, in either share: there are 2/step at most, and the
// ends.
const step = 0.005

// Point is one point of a curve: the share of the heat that the hottest share of the
// extents has. Both are 0 to 1.
type Point struct{ Extents, Heat float64 }

// class is the extents of nearly the same heat.
type class struct {
	extents int64
	heat    float64
}

// Curve is fed extents. The zero Curve is empty and ready.
type Curve struct {
	classes map[int]class
	cold    int64 // without any heat
	total   class
}

// Add counts an extent. Heat is in any unit; what is not above 0 is cold.
func (c *Curve) Add(heat float64) {
	c.total.extents++
	if !(heat > 0) || math.IsInf(heat, 0) {
		c.cold++
		return
	}
	c.total.heat += heat
	if c.classes == nil {
		c.classes = make(map[int]class)
	}
	key := int(math.Floor(math.Log2(heat) * classesPerDoubling))
	k := c.classes[key]
	k.extents, k.heat = k.extents+1, k.heat+heat
	c.classes[key] = k
}

// Extents returns how many extents there are.
func (c *Curve) Extents() int64 { return c.total.extents }

// Heat returns the sum of their heat.
func (c *Curve) Heat() float64 { return c.total.heat }

// Points returns the curve from 0, 0 to 1, 1, hottest extents first; nil without any
// heat.
func (c *Curve) Points() []Point {
	if c.total.heat <= 0 {
		return nil
	}
	points := []Point{{}}
	var sum class
	for _, key := range slices.Backward(slices.Sorted(maps.Keys(c.classes))) {
		sum.extents += c.classes[key].extents
		sum.heat += c.classes[key].heat
		p := Point{float64(sum.extents) / float64(c.total.extents), min(sum.heat/c.total.heat, 1)}
		last := points[len(points)-1]
		if p.Extents-last.Extents >= step || p.Heat-last.Heat >= step {
			points = append(points, p)
		}
	}
	// What is warm ends here: beyond it, the curve is flat.
	if warm := float64(sum.extents) / float64(c.total.extents); warm > points[len(points)-1].Extents {
		points = append(points, Point{warm, 1})
	} else {
		points[len(points)-1].Heat = 1 // but for rounding
	}
	if c.cold > 0 {
		points = append(points, Point{1, 1})
	}
	return points
}

// At returns the share of the heat that the hottest share of the extents has.
func At(points []Point, extents float64) float64 {
	return between(points, extents, func(p Point) (x, y float64) { return p.Extents, p.Heat })
}

// Needed returns the share of the extents, hottest first, that has a share of the heat.
func Needed(points []Point, heat float64) float64 {
	return between(points, heat, func(p Point) (x, y float64) { return p.Heat, p.Extents })
}

// between reads a curve of points, straight between them.
func between(points []Point, at float64, axes func(Point) (x, y float64)) float64 {
	at = min(max(at, 0), 1)
	for i := 1; i < len(points); i++ {
		x0, y0 := axes(points[i-1])
		x1, y1 := axes(points[i])
		if at <= x1 {
			if x1 == x0 {
				return y0
			}
			return y0 + (y1-y0)*(at-x0)/(x1-x0)
		}
	}
	return min(at, 1)
}
