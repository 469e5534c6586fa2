package aggregate

import "loadstar/fed"

var _ fed.Aggregator = Mean{}

// Mean is the weighted mean of updates (reddi2021, section 2 and algorithm 4; bose2023,
// algorithm 1, line 20):
//
//	D = sum_c n_c delta_c / sum_c n_c
//
// n_c is the weight with which the update was added to the sums: its number of examples, or 1.
// The versions of the updates are ignored.
//
// Deviations: bose2024 prints a sum without weights. bose2023 weighs by the sizes of the
// clients' minibatches, which are all equal, so its mean is in effect unweighted; the default
// here is weighting by the number of training examples, as in reddi2021, and server.weighting:
// uniform gives bose2023's mean.
type Mean struct{}

// Needs implements [fed.Aggregator]. It needs only the sums of updates.
func (Mean) Needs() fed.Needs { return fed.Needs{} }

// Aggregate implements [fed.Aggregator].
func (Mean) Aggregate(dst []float64, m *fed.Merge) error {
	return discountedMean(dst, m, Constant())
}

// discountedMean writes the weighted mean of the updates to dst, with each version's sum
// multiplied by its discount.
func discountedMean(dst []float64, m *fed.Merge, discount Discount) error {
	if err := checkSums(dst, m); err != nil {
		return err
	}
	var weight float64
	var total []float64
	for i, s := range m.Sums {
		factor := discount(m.Version - s.Version)
		weight += float64(s.Delta.Weight())
		if i == 0 { // usually all updates have the same version
			s.Delta.Total(dst)
			scale(dst, factor)
			continue
		}
		if total == nil {
			total = make([]float64, len(dst))
		}
		s.Delta.Total(total)
		for j, x := range total {
			dst[j] += float64(factor * x)
		}
	}
	for j := range dst {
		dst[j] /= weight
	}
	return checkResult(dst)
}

func scale(x []float64, factor float64) {
	if factor == 1 {
		return
	}
	for i := range x {
		x[i] *= factor
	}
}
