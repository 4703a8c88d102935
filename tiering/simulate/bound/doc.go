// Package bound tells what no placement of extents can do better than: a lower
// bound on the delay of a load whose accesses are all known, against which the
// planner is judged. Solve finds it, Verify proves it anew from a few prices, and
// Fixed is the best placement that never moves.
//
// # Problem
//
// Time is cut into cycles, in which placement stands still. Before each cycle but
// the first, extents may be moved: at most Problem.Promotions of them into a faster
// tier, and as many as one likes into slower ones. In cycle 0 extents lie where the
// problem says. Each access takes the delay of the tier that its extent lies in.
//
// A budget that counts moves of both directions is one of half as many promotions
// only while the tiers above are full, so that each promotion needs a move down in
// the same cycle; else any of its moves may be a promotion.
//
// # Bound
//
// At the boundary below tier k, let x(e,t) tell whether extent e lies above it in
// cycle t, p(e,t) whether it came there before t, and n(e,t) its accesses. Every
// placement keeps to
//
//	x(e,t) - x(e,t-1) <= p(e,t)     sum over e of x(e,t) <= C, what tiers to k hold
//	0 <= x <= 1,  0 <= p            sum over e of p(e,t) <= B, the promotions
//
// and the sum of n*x is what these tiers serve. An access in tier j saves, against
// the last tier, the differences of delay at all boundaries below j. So the delay is
// at least that of all accesses in the last tier, less, for each boundary, its
// difference times the most that can be served above it. With two tiers this is the
// optimum. With more it is a bound, since each boundary is solved by itself: the sets
// above them need not be nested, and each has the whole budget.
//
// The problem of one boundary is a flow of greatest gain: C units of room pass
// through time, each through an extent or idle; B of them may enter extents before a
// cycle (Ahuja, Magnanti and Orlin, Network Flows, 1993, chapter 9, has such flows).
// So its optimum is a whole number, and nothing between is lost by fractions.
//
// # Method
//
// Lagrangian relaxation (Held and Karp 1970; Fisher, Management Science 27, 1981):
// room in a cycle and promotions before it get prices, two for each cycle. Then
// extents are free of each other, and a dynamic program over the accesses of each
// finds its best cycles. What that yields, and the prices times the limits, is never
// less than the optimum, whatever the prices: this is the bound, and the prices are
// its certificate.
//
// Up to 64 cycles, the best prices are found by column generation (Dantzig and Wolfe
// 1960): what the extents, in some groups, chose at each earlier prices is a column;
// the best combination of columns that keeps to the limits is a placement of the
// relaxed problem, whose worth is Boundary.Feasible; its prices, drawn halfway to the
// best so far (Wentges 1997), are the next to try. The combination is solved by an
// interior point method, and but roughly while much is open, so that prices are
// central (Gondzio, Gonzalez-Brevis and Munari, European Journal of Operational
// Research 224, 2013). The search ends when the two sides meet, as they do as a rule:
// then the bound is proven optimal at this boundary, to the access.
//
// With more cycles, combinations take too long, and prices descend along the slopes
// instead, with steps that fit each price (Adam: Kingma and Ba, ICLR 2015); Feasible is
// what an even mix of the later choices serves. This bound is about as tight, but
// Feasible is not, so that it is less often proven.
//
// # Cost
//
// A round takes time by the number of accesses (extents times cycles with an access,
// those alike taken together). Combinations take some 40 to 180 rounds, and each time
// by the cube of the cycles; descent takes 300 to 3,000 short ones, fewer the more
// accesses there are. With 24 cycles and three tiers, 10,000 extents take less than a
// second and 100,000 two (BenchmarkSolve).
//
// # Numbers
//
// Counts are whole numbers below 2^52 in all, so that sums of them are exact. Sums
// that contain prices are allowed to be off by one part in 10^9, to the safe side:
// up to some 10^8 accesses a bound can be proven optimal, with more it is tight to
// that part.
//
// The package opens no file and asks for no time, and the same problem has the same
// result.
package bound
