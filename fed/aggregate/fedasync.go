package aggregate

import (
	"fmt"

	"loadstar/fed"
)

var _ fed.Aggregator = Async{}

// Async mixes each client's weights into the shared weights (FedAsync: Xie et al. 2019,
// "Asynchronous federated optimization", arXiv 1903.03934):
//
//	phi = (1-x) phi + x phi_c,   x = Alpha s(b - a_c)
//
// Updates are applied one after the other, in the order of the merge. The displacement is the
// value of phi after the last update minus its value before the first. Clients add a proximal
// term to their loss. The server optimizer is plain descent at rate 1. Alpha is within (0, 1].
// A nil Discount is [Constant].
//
// Deviations: the paper merges each update on arrival. Here, one merge can contain several
// updates. They are mixed in the order of client IDs, not in the order of arrival, and their
// staleness is counted from the version before the merge.
type Async struct {
	Alpha    float64
	Discount Discount
}

// Needs implements [fed.Aggregator].
func (Async) Needs() fed.Needs { return fed.Needs{EachUpdate: true} }

// Aggregate implements [fed.Aggregator].
func (a Async) Aggregate(dst []float64, m *fed.Merge) error {
	if !(a.Alpha > 0 && a.Alpha <= 1) {
		return fmt.Errorf("aggregate: alpha is %g, want a value above 0 and at most 1", a.Alpha)
	}
	if err := checkUpdates(dst, m); err != nil {
		return err
	}
	discount := a.Discount.orConstant()
	clear(dst)
	for k := range m.Updates {
		u := &m.Updates[k]
		x := float64(a.Alpha * discount(m.Version-u.Version))
		for i := range dst {
			dst[i] = float64((1-x)*dst[i]) + float64(x*offset(m, u, i))
		}
	}
	return checkResult(dst)
}
