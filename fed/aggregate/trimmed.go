package aggregate

import (
	"slices"

	"loadstar/fed"
)

var _ fed.Aggregator = Trimmed{}

// Trimmed is the mean of each coordinate without its largest and smallest values (Yin et al.
// 2018, "Byzantine-Robust Distributed Learning", definition 2, with beta = 1/5):
//
//	D_i = mean of delta_k,i over the clients k that are neither among the c largest
//	      nor among the c smallest values of coordinate i,  c = ceil(n/5)
//
// If fewer than a fifth of the clients are hostile, they cannot move a coordinate beyond the
// values of the others. All clients have the same weight, because a client can claim any number
// of examples. The zero value is ready to use.
//
// Deviations: c is rounded up, so at least a fifth of the clients is left out at each end, but
// at least one value always remains. With one or two updates, Trimmed is the mean.
type Trimmed struct{}

// Needs implements [fed.Aggregator].
func (Trimmed) Needs() fed.Needs { return fed.Needs{EachUpdate: true} }

// Aggregate implements [fed.Aggregator].
func (Trimmed) Aggregate(dst []float64, m *fed.Merge) error {
	if err := checkUpdates(dst, m); err != nil {
		return err
	}
	n := len(m.Updates)
	cut := min((n+4)/5, (n-1)/2)
	values := make([]float64, n)
	for i := range dst {
		for k := range m.Updates {
			values[k] = offset(m, &m.Updates[k], i)
		}
		slices.Sort(values)
		sum := 0.0
		for _, v := range values[cut : n-cut] {
			sum += v
		}
		dst[i] = sum / float64(n-2*cut)
	}
	return checkResult(dst)
}
