package metric

import (
	"errors"
	"fmt"
	"math"
)

// Power is the exponent p of the loss |error|^p.
type Power int

// The powers that DieboldMariano accepts.
const (
	Absolute Power = 1
	Squared  Power = 2 // as in fekri2023
)

// Comparison is the outcome of a Diebold-Mariano test of two forecasts.
type Comparison struct {
	// Statistic is negative if the first forecast has the smaller loss. If the forecasts
	// are equally good, it has approximately a standard normal distribution.
	Statistic       float64 `json:"statistic"`
	MeanDifference  float64 `json:"mean_difference"`   // mean loss, first minus second
	LongRunVariance float64 `json:"long_run_variance"` // variance of the difference of losses
	Lags            int     `json:"lags"`              // number of autocovariances in the variance
	N               int     `json:"n"`
}

// Significant reports whether the difference is significant at the 5 % level.
func (c Comparison) Significant() bool { return math.Abs(c.Statistic) > 1.96 }

// ErrVariance means that two forecasts cannot be compared, because the estimated long-run
// variance of their losses' difference is not positive. This happens for forecasts with equal
// losses, for fewer than four targets, and sometimes for alternating differences.
var ErrVariance = errors.New("metric: the long-run variance of the difference is not positive, so there is no Diebold-Mariano statistic; compare over more targets")

// DieboldMariano tests whether the losses of two forecasts of the same n targets differ by more
// than chance (fekri2023, section 6.2, equation 5):
//
//	DM  = mean(d) / sqrt((γ_0 + 2 sum_{k=1..m} γ_k) / n),   m = ⌊n^(1/3)⌋ + 1
//	γ_k = 1/n sum_i (d_i - mean(d)) (d_{i-k} - mean(d))
//	d_i = e_i^2 - r_i^2
//
// The errors e and r are in chronological order. With [Absolute], d_i = |e_i| - |r_i|. Lags are
// counted in targets, so gaps in time between targets make the test less reliable.
// DieboldMariano returns an error if a number is not finite, and [ErrVariance] if the variance
// is not larger than its possible rounding error.
//
// Deviations: the paper prints n^(1/3 + 1) as the last lag, which is more than the number of
// targets. We use the integer part of n^(1/3) + 1. The paper's sum for γ_k begins at i = 1,
// where d_{i-k} does not exist. We begin at i = k+1, and still divide by n.
func DieboldMariano(e, r []float64, power Power) (Comparison, error) {
	n := len(e)
	if n == 0 || len(r) != n {
		return Comparison{}, fmt.Errorf("metric: comparing %d errors with %d; want those of the same targets, at least one", n, len(r))
	}
	d := make([]float64, n)
	var total sum
	var size float64 // the largest |d|
	for i := range d {
		switch power {
		case Squared:
			d[i] = (e[i] - r[i]) * (e[i] + r[i])
		case Absolute:
			d[i] = math.Abs(e[i]) - math.Abs(r[i])
		default:
			return Comparison{}, fmt.Errorf("metric: comparing errors to the power of %d; want %d or %d", power, Absolute, Squared)
		}
		if !(d[i]*d[i] <= largest) {
			return Comparison{}, fmt.Errorf("metric: errors %v and %v at target %d: want finite numbers; check the model and the data", e[i], r[i], i)
		}
		total.add(d[i])
		size = max(size, math.Abs(d[i]))
	}

	mean := total.value() / float64(n)
	var reach float64 // the largest |d - mean(d)|
	for i := range d {
		d[i] -= mean
		reach = max(reach, math.Abs(d[i]))
	}
	m := lastLag(n)
	variance := autocovariance(d, 0)
	for k := 1; k <= m; k++ {
		variance += 2 * autocovariance(d, k)
	}
	// Cancellation amplifies rounding errors. Each deviation is wrong by up to an ulp of the
	// largest |d|, and the variance consists of 1+2m sums of products of two deviations.
	const ulp = 0x1p-52
	if rounding := 4 * ulp * float64(1+2*m) * size * reach; !(variance > rounding) {
		return Comparison{}, fmt.Errorf("%w (%d targets, %d lags, variance %.3g)", ErrVariance, n, m, variance)
	}
	return Comparison{
		Statistic:       mean / math.Sqrt(variance/float64(n)),
		MeanDifference:  mean,
		LongRunVariance: variance,
		Lags:            m,
		N:               n,
	}, nil
}

// lastLag returns the integer part of n^(1/3) + 1.
func lastLag(n int) int {
	root := 1
	for (root+1)*(root+1)*(root+1) <= n {
		root++
	}
	return root + 1
}

// autocovariance returns the sum of products of deviations that are k apart, divided by the
// number of all deviations.
func autocovariance(deviations []float64, k int) float64 {
	var products sum
	for i := k; i < len(deviations); i++ {
		products.add(deviations[i] * deviations[i-k])
	}
	return products.value() / float64(len(deviations))
}
