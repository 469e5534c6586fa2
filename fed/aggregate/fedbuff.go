package aggregate

import "loadstar/fed"

var _ fed.Aggregator = Buffered{}

// Buffered is the mean of a buffer of updates, of which stale ones count less
// (FedBuff: Nguyen et al. 2022, "Federated learning with buffered asynchronous
// aggregation", arXiv 2106.06639):
//
//	D = sum_c s(b - a_c) n_c delta_c / sum_c n_c
//
// where c was trained from version a_c and b is that of the weights to be moved. The
// denominator is not discounted, so a buffer of stale updates moves less. With fresh
// updates it is [Mean], to the bit. A nil Discount is [Constant].
//
// Deviations: the paper weighs clients equally and divides by the size of the buffer;
// that is n_c = 1.
type Buffered struct {
	Discount Discount
}

// Needs implements [fed.Aggregator]: sums by version will do.
func (Buffered) Needs() fed.Needs { return fed.Needs{} }

// Aggregate implements [fed.Aggregator].
func (a Buffered) Aggregate(dst []float64, m *fed.Merge) error {
	return discountedMean(dst, m, a.Discount.orConstant())
}
