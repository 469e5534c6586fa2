package serveropt

import (
	"encoding"
	"errors"
	"fmt"
	"math"

	"loadstar/fed"
)

var (
	_ fed.ServerOptimizer        = (*Adaptive)(nil)
	_ encoding.BinaryMarshaler   = (*Adaptive)(nil)
	_ encoding.BinaryUnmarshaler = (*Adaptive)(nil)
)

// Rule returns the next second moment of one weight. The rule is the only difference between
// FedAdagrad, FedAdam and FedYogi.
type Rule func(v, square, beta2 float64) float64

// SecondMoment selects the quantity whose squares are accumulated in the second moment.
type SecondMoment int

// The second moment is computed from the displacement, as in bose2023 and in other
// frameworks, or from the momentum (the running mean of displacements), as printed in
// reddi2021.
const (
	OfUpdate SecondMoment = iota
	OfMomentum
)

// Adaptive divides each weight's step by the typical size of its displacements
// (reddi2021, section 3, algorithm 2; bose2023, algorithm 1, lines 24 to 26):
//
//	m = Beta1 m + (1-Beta1) D,            m = 0 at first
//	v = Rule(v, s^2),   s = D or s = m,   v = Tau^2 at first
//	phi += Rate m / (sqrt(v) + Tau)
//
// Tau must be positive and Rule must be set; otherwise, Step panics.
//
// Deviations: [OfMomentum] is exactly reddi2021's algorithm 2; the default is s = D. bose2024
// prints sqrt(v + epsilon), a minus sign in FedAdam's v and no accumulation in FedAdagrad's v;
// we take all three for misprints. Like the papers, Adaptive does not correct the bias of the
// first rounds. bose2023 does not state its epsilon; the default of Tau, 1e-3, is reddi2021's.
// Once sqrt(v) is far below Tau, a step is Rate/Tau times m. With bose2023's Rate of 0.01, this
// is ten times the mean update, so training can diverge late in a run.
type Adaptive struct {
	Rule                    Rule
	Rate, Beta1, Beta2, Tau float64
	SecondMoment            SecondMoment

	m, v []float64
}

// Step implements [fed.ServerOptimizer].
func (o *Adaptive) Step(shared []float32, d []float64) {
	mustMatch(shared, d)
	if o.Rule == nil || !(o.Tau > 0) {
		panic(fmt.Sprintf("serveropt: an adaptive optimizer needs a rule and a positive tau, which is %g", o.Tau))
	}
	if o.m == nil {
		o.m, o.v = make([]float64, len(d)), make([]float64, len(d))
		for i := range o.v {
			o.v[i] = o.Tau * o.Tau
		}
	}
	mustRemember(o.m, d)
	for i, x := range d {
		o.m[i] = float64(o.Beta1*o.m[i]) + float64((1-o.Beta1)*x)
		s := x
		if o.SecondMoment == OfMomentum {
			s = o.m[i]
		}
		o.v[i] = o.Rule(o.v[i], float64(s*s), o.Beta2)
		shared[i] = float32(float64(shared[i]) + o.Rate*o.m[i]/(math.Sqrt(o.v[i])+o.Tau))
	}
}

const adaptiveKind = "adaptive"

// MarshalBinary encodes the first and the second moment.
func (o *Adaptive) MarshalBinary() ([]byte, error) {
	return encode(state{Kind: adaptiveKind, M: o.m, V: o.v}), nil
}

// UnmarshalBinary reads what MarshalBinary wrote. The next step then gives the same bits
// as a step of the optimizer that wrote the state. The state does not include the
// settings.
func (o *Adaptive) UnmarshalBinary(b []byte) error {
	s, err := decode(b, adaptiveKind, len(o.m))
	if err != nil {
		return err
	}
	if len(s.V) != len(s.M) {
		return fmt.Errorf("serveropt: the saved state has %d first and %d second moments, want equal numbers", len(s.M), len(s.V))
	}
	for _, v := range s.V {
		if v < 0 {
			return errors.New("serveropt: the saved state has a negative second moment")
		}
	}
	o.m, o.v = s.M, s.V
	return nil
}
