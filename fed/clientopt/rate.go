package clientopt

import "math"

// Rate is a client's learning rate, constant or a staircase (reddi2021, appendix
// E.6, where Factor is 0.1 and Every is 500):
//
//	rate(round) = Base · Factor^⌊round/Every⌋
//
// Deviations: none. Rounds count from 0.
type Rate struct {
	Base   float64
	Factor float64
	Every  int // rounds from one stair to the next; 0 means that Base stays
}

// At returns the learning rate of a round.
func (r Rate) At(round int) float64 {
	if r.Every <= 0 {
		return r.Base
	}
	return r.Base * math.Pow(r.Factor, float64(round/r.Every))
}
