// Package skew tells how unevenly the load lies on the data: which share of the heat the
// hottest share of the extents has, and so how large a tier has to be for a share of the
// load, and what a tier of a size could serve at best.
//
// A Curve is fed every extent, in any order, in memory that does not grow with their
// number: extents of nearly the same heat (16 classes to a doubling) share a counter
// and an exact sum. The curve is therefore exact at its points, and straight between
// them, where it could be off by the 4 % that heats within a class differ.
package skew
