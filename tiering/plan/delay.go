package plan

import "time"

// maxUtilisation bounds the utilisation that Delay reckons with: beyond it the
// formula is a wall, and measurements of a busy device are not that exact.
const maxUtilisation = 0.95

// Delay returns the time that a request takes on a device with the given service
// time and utilisation (0 to 1), its wait in the queue included:
//
//	d = T_S / (1 - rho)
//
// the residence time of an M/M/1 queue. It is the ServiceTime of a Tier.
func Delay(service time.Duration, utilisation float64) time.Duration {
	rho := min(max(utilisation, 0), maxUtilisation)
	return time.Duration(float64(service) / (1 - rho))
}
