package aggregate

import "loadstar/fed"

var _ fed.Aggregator = Buffered{}

// Buffered is the mean of a buffer of updates with a discount for stale ones (FedBuff:
// Nguyen et al. 2022, "Federated learning with buffered asynchronous aggregation", arXiv
// 2106.06639):
//
//	D = sum_c s(b - a_c) n_c delta_c / sum_c n_c
//
// where client c trained from version a_c, and b is the version of the weights to which the
// displacement is applied. The denominator is not discounted, so a buffer of stale updates
// moves the weights less. If all updates are fresh, the result equals [Mean] bit for bit. A nil
// Discount is [Constant].
//
// Deviations: the paper gives all clients equal weight and divides by the size of the
// buffer, which is the case n_c = 1.
type Buffered struct {
	Discount Discount
}

// Needs implements [fed.Aggregator]. It needs only the sum of the updates of each version.
func (Buffered) Needs() fed.Needs { return fed.Needs{} }

// Aggregate implements [fed.Aggregator].
func (a Buffered) Aggregate(dst []float64, m *fed.Merge) error {
	return discountedMean(dst, m, a.Discount.orConstant())
}
