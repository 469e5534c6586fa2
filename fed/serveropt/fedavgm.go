package serveropt

import (
	"encoding"

	"loadstar/fed"
)

var (
	_ fed.ServerOptimizer        = (*Momentum)(nil)
	_ encoding.BinaryMarshaler   = (*Momentum)(nil)
	_ encoding.BinaryUnmarshaler = (*Momentum)(nil)
)

// Momentum moves the weights along a decaying sum of displacements (FedAvgM: reddi2021,
// section 2; FedAvgMomentum: bose2023, algorithm 1, lines 22 and 23):
//
//	m = Beta1 m + (1-Dampening) D,   m = 0 at first
//	phi += Rate m
//
// reddi2021 uses Dampening = 0, bose2023 uses Dampening = Beta1.
//
// Deviations: the sign, as explained at [Descent].
type Momentum struct {
	Rate, Beta1, Dampening float64

	m []float64
}

// Step implements [fed.ServerOptimizer].
func (o *Momentum) Step(shared []float32, d []float64) {
	mustMatch(shared, d)
	if o.m == nil {
		o.m = make([]float64, len(d))
	}
	mustRemember(o.m, d)
	for i, x := range d {
		o.m[i] = float64(o.Beta1*o.m[i]) + float64((1-o.Dampening)*x)
		shared[i] = float32(float64(shared[i]) + float64(o.Rate*o.m[i]))
	}
}

const momentumKind = "momentum"

// MarshalBinary encodes the momentum.
func (o *Momentum) MarshalBinary() ([]byte, error) {
	return encode(state{Kind: momentumKind, M: o.m}), nil
}

// UnmarshalBinary reads what MarshalBinary wrote. The next step then gives the same bits
// as a step of the optimizer that wrote the state. The state does not include the
// settings.
func (o *Momentum) UnmarshalBinary(b []byte) error {
	s, err := decode(b, momentumKind, len(o.m))
	if err != nil {
		return err
	}
	o.m = s.M
	return nil
}
