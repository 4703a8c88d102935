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
// the residence time of an M/M/1 queue.
func Delay(service time.Duration, utilisation float64) time.Duration {
	return time.Duration(float64(service) * stretch(utilisation))
}

// Utilisation is the inverse of Delay: what utilisation makes requests of a device with
// the given service time take as long as they were seen to take.
func Utilisation(service, delay time.Duration) float64 {
	if service <= 0 || delay <= service {
		return 0
	}
	return min(1-float64(service)/float64(delay), maxUtilisation)
}

func stretch(utilisation float64) float64 {
	return 1 / (1 - min(max(utilisation, 0), maxUtilisation))
}
