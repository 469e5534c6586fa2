package clientopt

import "math"

// Rate is a client's learning rate: constant, or lowered in steps (reddi2021, appendix
// E.6, with Factor 0.1 and Every 500):
//
//	rate(round) = Base · Factor^⌊round/Every⌋
//
// Deviations: none. Rounds count from 0.
type Rate struct {
	Base   float64
	Factor float64
	Every  int // rounds between changes of the rate; 0 means a constant rate
}

// At returns the learning rate of a round.
func (r Rate) At(round int) float64 {
	if r.Every <= 0 {
		return r.Base
	}
	return r.Base * math.Pow(r.Factor, float64(round/r.Every))
}
