// Package plan chooses which extents to relocate. It is a pure function: Next is
// shown the tiers, every extent with its heat and policy, and a budget, and
// returns moves in the order to make them, with a reason each, and a count by
// reason of the extents that stay. It moves nothing, remembers nothing and is
// told the time in cycles. The relocator validates each move again; a stale one
// costs nothing.
//
// # What a move is worth
//
// Rates r are random accesses per second, derived from heat. Tier k answers one in
// d_k seconds, queueing included. Exchanging a, in the slower tier l, for b, in the
// faster tier u, gains
//
//	g = (r_a - (1+eta) r_b) (d_l - d_u)
//
// seconds of latency per second; into a free slot, r_b is 0. The hysteresis eta
// keeps extents of about the same heat from changing places for ever. What is known of
// rates is noisy, too: an exchange has to win by more standard deviations than chance
// makes likely,
//
//	r_a - (1+eta) r_b > z sqrt(v_a r_a + v_b (1+eta)^2 r_b),  v = heat.Score.Noise, z = Confidence
//
// so that a load without hot spots moves nothing. On real traces z = 4 saves 14 to 42 % of
// the moves for 1.4 % of latency at most, and gains 1.3 % on one. The move is
// worth its copies if
//
//	g * H0 > kappa * c,  c = size * sum over the copies of (1/bw_from + 1/bw_to)
//
// The horizon H0 is the same for young extents and old ones: that what is known of a
// young one may not last is in its heat already (package heat).
// An extent that moved less than Residence cycles ago has to earn four times that.
// If nothing gains, the plan is empty.
//
// Tiers are compared by d_k = T_S/(1 - rho) of this cycle, and each move of the plan
// shifts its share of the load with it. A faster tier that is overloaded answers slower
// than the next one, and the same formula then takes hot extents out of it, until both
// answer alike.
//
// # The plan
//
//  1. Policies: extents whose volume or pin names another tier than they are in,
//     those on the way down first.
//  2. Emergency: the coldest of a tier that is nearly out of slots.
//  3. Heat: of all pairs of tiers the move of the greatest gain per byte, again and
//     again, until the budget is spent or nothing gains. A promotion takes a free
//     slot above the headroom, else the place of the coldest extent there. What
//     makes room goes to a tier in between that has slots to spare, else to
//     the place that becomes free; if neither tier has a single slot to turn round
//     in, to any slower tier with slots to spare. Both moves of an
//     exchange count against the budget.
//  4. Headroom: the coldest of tiers that have less of it free, with what is left of the
//     budget. To keep it at the cost of hotter moves loses 2 to 12 % of latency.
//  5. Rebalance, if the view has backings: the hottest extents of a tier's busiest
//     backing to its least busy one, until half of the spread is gone; of the fullest to
//     the emptiest where the load is even.
//
// What moves have brought is looked at afterwards (Audit), by the accesses that their
// extents got: where nothing of what was expected comes true, moves for heat are left a
// twentieth of the budget until they pay again.
//
// Invariants (held by property tests): the bytes of all moves never exceed the
// budget, and those into a tier never its endurance; at no prefix of the moves does a tier
// hold more than its slots; no extent moves twice, a pinned one never; every extent of the
// view is a move or counted under one reason; the order in which the view tells its extents
// does not matter.
//
// # Cost
//
// One pass over the extents with memory for as many candidates as the budget has
// moves (a quarter more, per tier and direction), by selection without sorting;
// then k log k for those that fit. Reasons of the candidates are exact. Of the
// rest, too many to keep, a histogram of log2 rates tells how many the budget held
// up; the others have no gain.
//
// The hysteresis, greedy order and half-lives were measured by replaying real
// traces (TestEvaluation of package simulate); the cost factor, horizon, residence and spread are
// proposals.
package plan
