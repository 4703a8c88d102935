package bound

import "math"

// program is a linear program over convex combinations:
//
//	maximise sum_j value[j]*a[j]  such that  sum_j use[j]*a[j] <= 1 in each row,
//	                              and for each group, its a[j] >= 0 sum to 1.
//
// The first column of each group uses nothing, so that there is room in every row.
type program struct {
	rows, groups int
	columns      []column
}

type column struct {
	group int
	value float64
	use   []float64 // by row
}

// solution is a pair of a combination that keeps to the rows, but for what rounding
// adds, and of prices that prove how good it is.
type solution struct {
	share  []float64 // by column
	price  []float64 // by row
	value  float64   // of the combination
	excess float64   // by which any can be better, at most
}

const maxSteps = 60

// solve follows the central path until the excess is within tolerance: a primal-dual
// interior-point method with predictor and corrector after Mehrotra (On the
// implementation of a primal-dual interior point method, SIAM J. Optim. 2, 1992).
// It begins strictly inside, with little of all columns but the first ones, and
// stays there. Its prices are well inside those that are optimal, which is what
// makes the column found next a good one.
//
// One step takes time by columns * rows^2.
func (lp *program) solve(tolerance float64) solution {
	n, m := len(lp.columns), lp.rows
	a, w := make([]float64, n), make([]float64, n) // shares and their reduced prices
	s, y := make([]float64, m), make([]float64, m) // room left and prices
	z := make([]float64, lp.groups)
	lp.begin(a, w, s, y, z)

	da, dw, ra := make([]float64, n), make([]float64, n), make([]float64, n)
	ds, dy, rs := make([]float64, m), make([]float64, m), make([]float64, m)
	dz := make([]float64, lp.groups)
	k := newNormal(lp)
	for range maxSteps {
		gap := dot(a, w) + dot(s, y)
		if !(gap > tolerance) {
			break
		}
		mu := gap / float64(n+m)
		if !k.factor(a, w, s, y) {
			break // as near as numbers go
		}
		// Predictor: straight to where products of a and w, of s and y vanish.
		for j := range ra {
			ra[j] = -a[j] * w[j]
		}
		for i := range rs {
			rs[i] = -s[i] * y[i]
		}
		k.step(a, w, s, y, ra, rs, da, dw, ds, dy, dz)
		p, d := min(reach(a, da), reach(s, ds)), min(reach(w, dw), reach(y, dy))
		after := 0.0
		for j := range a {
			after += (a[j] + p*da[j]) * (w[j] + d*dw[j])
		}
		for i := range s {
			after += (s[i] + p*ds[i]) * (y[i] + d*dy[i])
		}
		// Corrector: to the path nearer or farther, as the predictor did well or not.
		sigma := math.Pow(after/gap, 3)
		for j := range ra {
			ra[j] = sigma*mu - a[j]*w[j] - da[j]*dw[j]
		}
		for i := range rs {
			rs[i] = sigma*mu - s[i]*y[i] - ds[i]*dy[i]
		}
		k.step(a, w, s, y, ra, rs, da, dw, ds, dy, dz)
		p, d = 0.995*min(reach(a, da), reach(s, ds)), 0.995*min(reach(w, dw), reach(y, dy))
		p, d = min(p, 1), min(d, 1)
		add(a, p, da)
		add(s, p, ds)
		add(w, d, dw)
		add(y, d, dy)
		add(z, d, dz)
		if p < 1e-8 && d < 1e-8 {
			break
		}
	}
	sol := solution{share: a, price: y, excess: dot(a, w) + dot(s, y)}
	for j, c := range lp.columns {
		sol.value += c.value * a[j]
	}
	return sol
}

// begin sets the first point: half of each row is left, and prices are such that
// every product is about alike.
func (lp *program) begin(a, w, s, y, z []float64) {
	count, seen := make([]float64, lp.groups), make([]bool, lp.groups)
	for _, c := range lp.columns {
		count[c.group]++
	}
	most, used := 0.0, make([]float64, lp.rows)
	for j, c := range lp.columns {
		a[j] = 1 / count[c.group]
		for i, u := range c.use {
			used[i] += a[j] * u
		}
		most = max(most, c.value)
	}
	some := 0.5 // of what is not in the first columns
	for _, u := range used {
		some = min(some, 0.5/u)
	}
	for j, c := range lp.columns {
		a[j] *= some
		if !seen[c.group] {
			a[j] += 1 - some
			seen[c.group] = true
		}
	}
	for i := range s {
		s[i] = 1 - some*used[i]
		y[i] = most / float64(lp.rows)
	}
	for g := range z {
		z[g] = math.Inf(-1)
	}
	for _, c := range lp.columns {
		z[c.group] = max(z[c.group], c.value-dot(c.use, y)+most)
	}
	for j, c := range lp.columns {
		w[j] = dot(c.use, y) + z[c.group] - c.value
	}
}

// normal solves the equations of a step, of which those of groups are eliminated.
type normal struct {
	*program
	d, group []float64   // by column: a/w; by group: its sum
	cross    [][]float64 // by group and row
	chol     [][]float64 // by row and row: lower triangle
	rhs      []float64
	h, gr    []float64
	resA     []float64 // by row: 1 - use - s, which rounding leaves
	resZ     []float64 // by group: 1 - sum of shares
}

func newNormal(lp *program) *normal {
	k := &normal{
		program: lp,
		d:       make([]float64, len(lp.columns)), group: make([]float64, lp.groups),
		rhs: make([]float64, lp.rows), h: make([]float64, len(lp.columns)), gr: make([]float64, lp.groups),
		resA: make([]float64, lp.rows), resZ: make([]float64, lp.groups),
	}
	for range lp.groups {
		k.cross = append(k.cross, make([]float64, lp.rows))
	}
	for i := range lp.rows {
		k.chol = append(k.chol, make([]float64, i+1))
	}
	return k
}

// factor prepares the steps from a point.
func (k *normal) factor(a, w, s, y []float64) bool {
	clear(k.group)
	for _, c := range k.cross {
		clear(c)
	}
	for i, row := range k.chol {
		clear(row)
		row[i] = s[i] / y[i]
		k.resA[i] = 1 - s[i]
	}
	for g := range k.resZ {
		k.resZ[g] = 1
	}
	for j, c := range k.columns {
		d := a[j] / w[j]
		k.d[j] = d
		k.group[c.group] += d
		k.resZ[c.group] -= a[j]
		cross := k.cross[c.group]
		for i, u := range c.use {
			if u == 0 {
				continue
			}
			k.resA[i] -= a[j] * u
			cross[i] += d * u
			row, f := k.chol[i], d*u
			for l, v := range c.use[:i+1] {
				row[l] += f * v
			}
		}
	}
	for g, cross := range k.cross {
		for i, u := range cross {
			if u == 0 {
				continue
			}
			f := u / k.group[g]
			for l, v := range cross[:i+1] {
				k.chol[i][l] -= f * v
			}
		}
	}
	return cholesky(k.chol)
}

// step solves for the change of a point such that products change by ra and rs.
func (k *normal) step(a, w, s, y, ra, rs, da, dw, ds, dy, dz []float64) {
	clear(k.gr)
	for i := range k.rhs {
		k.rhs[i] = rs[i]/y[i] - k.resA[i]
	}
	for j, c := range k.columns {
		h := ra[j] / w[j]
		k.h[j] = h
		k.gr[c.group] += h
		add(k.rhs, h, c.use)
	}
	for g, cross := range k.cross {
		k.gr[g] -= k.resZ[g]
		add(k.rhs, -k.gr[g]/k.group[g], cross)
	}
	copy(dy, k.rhs)
	substitute(k.chol, dy)
	for g, cross := range k.cross {
		dz[g] = (k.gr[g] - dot(cross, dy)) / k.group[g]
	}
	for j, c := range k.columns {
		dw[j] = dot(c.use, dy) + dz[c.group]
		da[j] = k.h[j] - k.d[j]*dw[j]
	}
	for i := range ds {
		ds[i] = (rs[i] - s[i]*dy[i]) / y[i]
	}
}

// cholesky replaces the lower triangle of a symmetric matrix by its factor, and
// reports whether it is positive definite as far as numbers go.
func cholesky(m [][]float64) bool {
	for i, row := range m {
		for j := range row {
			v := row[j] - dot(row[:j], m[j][:j])
			if j < i {
				row[j] = v / m[j][j]
				continue
			}
			if !(v > 0) || math.IsInf(v, 0) {
				return false
			}
			row[i] = math.Sqrt(v)
		}
	}
	return true
}

// substitute solves for x with the factor.
func substitute(m [][]float64, x []float64) {
	for i, row := range m {
		x[i] = (x[i] - dot(row[:i], x[:i])) / row[i]
	}
	for i := len(m) - 1; i >= 0; i-- {
		x[i] /= m[i][i]
		add(x[:i], -x[i], m[i][:i])
	}
}

// reach returns how many times dx can be added to x until one of it vanishes, once
// at most.
func reach(x, dx []float64) float64 {
	r := 1.0
	for i, d := range dx {
		if d < 0 {
			r = min(r, -x[i]/d)
		}
	}
	return r
}

func dot(a, b []float64) float64 {
	sum := 0.0
	for i, x := range a {
		sum += x * b[i]
	}
	return sum
}

// add adds f times b to a.
func add(a []float64, f float64, b []float64) {
	for i, x := range b {
		a[i] += f * x
	}
}
