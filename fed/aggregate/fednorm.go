package aggregate

import (
	"fmt"
	"math"

	"loadstar/fed"
)

var _ fed.Aggregator = FedNorm{}

// FedNorm gives more weight to clients whose contribution is close to the mean
// contribution of the merge (fekri2023, section 4, equations 2 to 4):
//
//	lambda_k = ||phi - phi_k||_1 (loss_k - mean(loss))
//	f_k      = a exp(-(lambda_k - mean(lambda))^2 / (2 std(lambda)^2))
//	x_k      = e^f_k / sum_j e^f_j
//	phi      = sum_k x_k phi_k
//
// where loss_k is the loss, on client k's data, of the weights that the client received or, if
// Trained is set, of the weights phi_k that it returns. The means and the standard deviation
// are over the updates of the merge. The server optimizer is plain descent at rate 1. The zero
// value is the default.
//
// The new weights are a weighted mean of the clients' weights, so no client can move the new
// weights outside the range of the clients' weights. The x_k are equal if all contributions are
// equal, for example with one update or with equal losses. They are also equal with two
// updates, because both are equally far from their mean.
//
// Deviations: we read "a is the maximum" as the height of the curve, 1. PeakMaxLambda selects
// the other possible reading. Line 10 of the paper's algorithm has n_j/N only in the
// denominator, so its weights do not add up to 1; ByExamples therefore puts n_k into the
// numerator as well. Equation 2 uses the loss psi_k(w) of the global weights w, while equation
// 1b defines psi_k(w) by the local weights w_k. The default follows equation 2, because the
// loss then shows how badly the global weights suit the client. Trained follows equation 1b
// literally.
type FedNorm struct {
	// PeakMaxLambda sets a to the largest lambda. The largest lambda is never negative, because
	// not all losses are below their mean. If the largest lambda is 0, all x_k are equal. The
	// larger a is, the more weight the client nearest the mean has. With this setting, a
	// depends on the unit of the loss and on the number of weights.
	PeakMaxLambda bool
	// ByExamples makes x_k proportional to n_k e^f_k.
	ByExamples bool
	// MaxExamples is an upper limit for n_k, because a client can claim any n_k. 0 means no
	// limit.
	MaxExamples int
	// Trained uses the losses of the weights that clients return (equation 1b) instead of the
	// losses of the weights that they receive.
	Trained bool
}

// Needs implements [fed.Aggregator].
func (a FedNorm) Needs() fed.Needs {
	return fed.Needs{EachUpdate: true, Loss: true, TrainedLoss: a.Trained}
}

// Aggregate implements [fed.Aggregator].
func (a FedNorm) Aggregate(dst []float64, m *fed.Merge) error {
	if err := checkUpdates(dst, m); err != nil {
		return err
	}
	x, err := a.weights(m)
	if err != nil {
		return err
	}
	clear(dst)
	for k := range m.Updates {
		for i := range dst {
			dst[i] += float64(x[k] * offset(m, &m.Updates[k], i))
		}
	}
	return checkResult(dst)
}

// weights returns the weights x_k of the updates. Apart from the height of the curve, the
// formula does not depend on the scale of losses and distances. Losses and distances are
// therefore first divided by powers of two near their largest values, so that later steps
// cannot overflow. The division is exact except for values that are negligible compared with
// the largest.
func (a FedNorm) weights(m *fed.Merge) ([]float64, error) {
	lambda := make([]float64, len(m.Updates))
	loss := make([]float64, len(m.Updates))
	for k := range m.Updates {
		u := &m.Updates[k]
		if math.IsNaN(u.Loss) || math.IsInf(u.Loss, 0) {
			return nil, fmt.Errorf("aggregate: the loss of client %s is %g, want a finite number", u.Client, u.Loss)
		}
		if a.ByExamples && u.Examples < 1 {
			return nil, fmt.Errorf("aggregate: client %s has %d examples, want at least 1", u.Client, u.Examples)
		}
		loss[k] = u.Loss
		for i := range m.Shared {
			lambda[k] += math.Abs(offset(m, u, i))
		}
	}
	lossExp, distanceExp := shrink(loss), shrink(lambda)
	subtractMean(loss)
	for k := range lambda {
		lambda[k] *= loss[k]
	}

	peak := 1.
	if a.PeakMaxLambda {
		peak = 0
		for _, l := range lambda {
			peak = max(peak, l)
		}
		peak = min(math.Ldexp(peak, lossExp+distanceExp), math.MaxFloat64)
	}
	f := bell(lambda)
	highest := 0.
	for _, y := range f {
		highest = max(highest, y)
	}
	// Subtracting the highest value from all exponents does not change the softmax.
	var sum float64
	for k, y := range f {
		f[k] = math.Exp(peak * (y - highest))
		if a.ByExamples {
			n := m.Updates[k].Examples
			if a.MaxExamples > 0 {
				n = min(n, a.MaxExamples)
			}
			f[k] *= float64(n)
		}
		sum += f[k]
	}
	for k := range f {
		f[k] /= sum
	}
	return f, nil
}

// bell replaces each element of x with exp(-(element - mean)^2 / (2 std^2)), or with 1 if all
// elements are equal. The elements must be within [-2, 2].
func bell(x []float64) []float64 {
	subtractMean(x)
	shrink(x) // squares of small numbers would underflow
	var square float64
	for _, d := range x {
		square += float64(d * d)
	}
	variance := square / float64(len(x))
	for k, d := range x {
		x[k] = 1
		if variance > 0 {
			x[k] = math.Exp(-float64(d*d) / (2 * variance))
		}
	}
	return x
}

// subtractMean subtracts the mean of x from every element. If all elements are equal, the
// results are exactly 0.
func subtractMean(x []float64) {
	first, mean := x[0], 0.
	for _, y := range x {
		mean += (y - first) / float64(len(x))
	}
	for k := range x {
		x[k] = (x[k] - first) - mean
	}
}

// shrink divides the elements of x by a power of two, so that the largest magnitude is
// between 1/2 and 1, and returns the exponent.
func shrink(x []float64) int {
	var size float64
	for _, y := range x {
		size = max(size, math.Abs(y))
	}
	if size == 0 {
		return 0
	}
	_, exp := math.Frexp(size)
	for k := range x {
		x[k] = math.Ldexp(x[k], -exp)
	}
	return exp
}
