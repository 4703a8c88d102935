package load

import (
	"math"
	"math/bits"
	"math/rand/v2"
)

// zipf draws ranks 1..n with a probability in proportion to 1/rank^theta, for
// any theta above 0, exactly and in constant time without a table. It is the
// rejection-inversion of W. Hörmann and G. Derflinger, "Rejection-inversion to
// generate variates from monotone discrete distributions", ACM TOMACS 6(3), 1996:
// the hat is the integral of x^-theta, inverted in closed form.
type zipf struct {
	n          float64
	theta      float64
	hx1, hn, s float64
}

func newZipf(n int64, theta float64) *zipf {
	z := &zipf{n: float64(n), theta: theta}
	z.hx1 = z.integral(1.5) - 1
	z.hn = z.integral(z.n + 0.5)
	z.s = 2 - z.inverse(z.integral(2.5)-z.density(2))
	return z
}

// rank returns the next rank, from 1.
func (z *zipf) rank(rng *rand.Rand) int64 {
	for {
		u := z.hn + rng.Float64()*(z.hx1-z.hn)
		x := z.inverse(u)
		k := math.Max(1, math.Min(z.n, math.Floor(x+0.5)))
		// The first test accepts most draws without the second, which is exact.
		if k-x <= z.s || u >= z.integral(k+0.5)-z.density(k) {
			return int64(k)
		}
	}
}

func (z *zipf) density(x float64) float64 { return math.Exp(-z.theta * math.Log(x)) }

// integral of the density from 1 to x: (x^(1-theta)-1)/(1-theta), and log x at
// theta 1; written so that both meet without cancellation.
func (z *zipf) integral(x float64) float64 {
	l := math.Log(x)
	return expm1Over((1-z.theta)*l) * l
}

func (z *zipf) inverse(y float64) float64 {
	// Rounding can carry t below -1, where the logarithm ends.
	t := math.Max(-1, y*(1-z.theta))
	return math.Exp(log1pOver(t) * y)
}

// expm1Over is (e^x-1)/x.
func expm1Over(x float64) float64 {
	if math.Abs(x) > 1e-8 {
		return math.Expm1(x) / x
	}
	return 1 + x/2
}

// log1pOver is log(1+x)/x.
func log1pOver(x float64) float64 {
	if math.Abs(x) > 1e-8 {
		return math.Log1p(x) / x
	}
	return 1 - x/2
}

// permutation is a seeded bijection of [0, n): a Feistel network over the next
// even power of two, walked until it lands below n.
type permutation struct {
	n    uint64
	half uint
	keys [4]uint64
}

func newPermutation(n int64, seed uint64) *permutation {
	p := &permutation{n: uint64(n), half: max(1, (uint(bits.Len64(uint64(n-1)))+1)/2)}
	for i := range p.keys {
		seed = mix(seed + golden)
		p.keys[i] = seed
	}
	return p
}

// at returns the image of i.
func (p *permutation) at(i int64) int64 {
	mask := uint64(1)<<p.half - 1
	x := uint64(i)
	for {
		l, r := x>>p.half, x&mask
		for _, k := range p.keys {
			l, r = r, l^(mix(r^k)&mask)
		}
		x = l<<p.half | r
		if x < p.n {
			return int64(x)
		}
	}
}

const golden = 0x9e3779b97f4a7c15

// mix scrambles the bits of x: the finaliser of SplitMix64 (Steele, Lea and
// Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
