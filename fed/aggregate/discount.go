package aggregate

import (
	"fmt"
	"math"
)

// Discount returns the factor applied to an update that was trained from weights of the given
// age, in versions. The factor is 1 for a staleness of 0 and is always within [0, 1]. A
// Discount panics if the staleness is negative, because an update cannot come from a future
// version.
type Discount func(staleness int) float64

// Constant applies no discount (Xie et al. 2019, "Asynchronous federated optimization",
// arXiv 1903.03934):
//
//	s(t) = 1
//
// Deviations: none.
func Constant() Discount {
	return func(staleness int) float64 {
		mustNotBeNegative(staleness)
		return 1
	}
}

// Polynomial discounts by a power of the staleness (Xie et al. 2019; FedBuff uses a =
// 1/2):
//
//	s(t) = (1+t)^-a
//
// It panics unless a is finite and not negative.
//
// Deviations: none.
func Polynomial(a float64) Discount {
	mustBeExponent(a)
	return func(staleness int) float64 {
		mustNotBeNegative(staleness)
		return math.Pow(1+float64(staleness), -a)
	}
}

// Hinge discounts only updates older than b versions (Xie et al. 2019):
//
//	s(t) = 1 if t <= b, otherwise 1/(a (t-b) + 1)
//
// It panics unless a is finite and both a and b are not negative.
//
// Deviations: none.
func Hinge(a float64, b int) Discount {
	mustBeExponent(a)
	mustNotBeNegative(b)
	return func(staleness int) float64 {
		mustNotBeNegative(staleness)
		if staleness <= b {
			return 1
		}
		return 1 / (float64(a*float64(staleness-b)) + 1)
	}
}

func mustNotBeNegative(staleness int) {
	if staleness < 0 {
		panic(fmt.Sprintf("aggregate: a staleness of %d", staleness))
	}
}

func mustBeExponent(a float64) {
	if !(a >= 0) || math.IsInf(a, 0) {
		panic(fmt.Sprintf("aggregate: a discount with a = %g", a))
	}
}

func (d Discount) orConstant() Discount {
	if d == nil {
		return Constant()
	}
	return d
}
