package paper

import "math"

// SeekRotate returns the service time of a drive in ms: a mean seek, and half a
// revolution at so many a minute. Transfer is left out, as in the paper.
func SeekRotate(seekMS, rpm float64) float64 { return seekMS + 60000/rpm/2 }

// Residence returns the time in ms that a request spends at a device with the service
// time ts in ms and the utilisation rho, 0 to below 1: waiting and service of M/M/1.
func Residence(ts, rho float64) float64 { return ts / (1 - rho) }

// InSystem returns Little's law: how many requests are under way at a time, at so many a
// second that take so many ms each.
func InSystem(perSecond, ms float64) float64 { return perSecond * ms / 1000 }

// Throughput is Little's law the other way round: the requests a second that so many
// under way at a time make, of so many ms each.
func Throughput(inSystem, ms float64) float64 { return inSystem / ms * 1000 }

// Split divides total in proportion to the shares, whose sum is above 0.
func Split(total float64, shares []float64) []float64 {
	all := sum(shares)
	out := make([]float64, len(shares))
	for i, s := range shares {
		out[i] = total * s / all
	}
	return out
}

// Weighted returns the mean of the times, each weighted by its count.
func Weighted(counts, times []float64) float64 {
	var total float64
	for i, c := range counts {
		total += c * times[i]
	}
	return total / sum(counts)
}

func sum(list []float64) (total float64) {
	for _, v := range list {
		total += v
	}
	return total
}

// round rounds v to so many digits after the point.
func round(v float64, digits int) float64 {
	f := math.Pow(10, float64(digits))
	return math.Round(v*f) / f
}
