package forecast

import (
	"errors"
	"math"
)

// normal accumulates the sums in the normal equations of Ridge. To save time, it computes few
// products of features: all targets share the products of lags, and the products of an
// indicator with another feature sum to the other feature's sum by hour of the week.
type normal struct {
	r     *Ridge
	lasts []int
	load  []float64 // minus shift, which reduces rounding errors
	shift float64
	lags  []float64 // Σ of the products of lags, which all targets share

	// The following fields belong to one target. The dense columns are the lags, the features
	// specific to the target, and the target itself.
	width  int
	origin []float64 // subtracted from each dense column
	row    []float64
	xx     []float64 // Σ of products of dense columns, by rows; the lower triangle is set
	sums   []float64 // Σ of each dense column, by hour of the week
	counts []float64 // the number of examples, by hour of the week
}

func newNormal(r *Ridge, lasts []int) *normal {
	width := r.lags + len(r.own) + 1
	n := &normal{
		r: r, lasts: lasts, width: width, load: make([]float64, len(r.c.Meter.Load)), lags: make([]float64, r.lags*r.lags),
		origin: make([]float64, width), row: make([]float64, width), xx: make([]float64, width*width),
		sums: make([]float64, hours*days*width), counts: make([]float64, hours*days),
	}
	if len(lasts) > 0 {
		n.shift = r.c.load(lasts[0])
	}
	for i, v := range r.c.Meter.Load {
		n.load[i] = float64(v) - n.shift
	}
	for _, last := range lasts {
		x := n.load[last-r.lags+1 : last+1]
		for i, v := range x {
			addTo(n.lags[i*r.lags:], v, x[:i+1])
		}
	}
	return n
}

func addTo(sum []float64, v float64, x []float64) {
	sum = sum[:len(x)]
	for i, w := range x {
		sum[i] += float64(v * w)
	}
}

// sum computes the sums for the target that is ahead steps after the last known step.
func (n *normal) sum(ahead int) {
	lags, y, w := n.r.lags, n.width-1, n.width
	clear(n.xx)
	clear(n.sums)
	clear(n.counts)
	for i := range lags {
		copy(n.xx[i*w:], n.lags[i*lags:(i+1)*lags])
		n.origin[i] = n.shift
	}
	n.origin[y] = n.shift
	for k, last := range n.lasts {
		step := last + ahead
		copy(n.row, n.load[last-lags+1:last+1])
		n.row[y] = n.load[step]
		for i, f := range n.r.own {
			v := f(last, step)
			if k == 0 {
				n.origin[lags+i] = v
			}
			n.row[lags+i] = v - n.origin[lags+i]
		}
		for i := lags; i < w; i++ {
			addTo(n.xx[i*w:], n.row[i], n.row[:i+1])
		}
		cell := n.r.cells[step]
		n.counts[cell]++
		addTo(n.sums[cell*w:], 1, n.row)
	}
}

// errTooFew means that the client has too few examples to fit.
var errTooFew = errors.New("fewer than two complete examples")

// solve returns the coefficients of the regression of the target on the features.
func (n *normal) solve(lambda float64) (linearModel, error) {
	if len(n.lasts) < 2 {
		return linearModel{}, errTooFew
	}
	p := n.r.features()
	a, mean := n.products(p)
	count := float64(len(n.lasts))
	// The row after the features belongs to the target.
	for i := range p + 1 {
		for j := range i + 1 {
			a[i*(p+1)+j] -= float64(mean[i] * mean[j] / count)
		}
	}
	scale := make([]float64, p) // scale of each feature; 0 if the feature is constant
	for i := range scale {
		if v := a[i*(p+1)+i] / count; v > 1e-12 {
			scale[i] = 1 / math.Sqrt(v)
		}
	}
	b := make([]float64, p)
	for i := range p {
		b[i] = a[p*(p+1)+i] * scale[i]
		for j := range i + 1 {
			a[i*p+j] = a[i*(p+1)+j] * scale[i] * scale[j] // moves the value to a smaller index, already read
		}
		a[i*p+i] += lambda
	}
	if err := cholesky(a, b); err != nil {
		return linearModel{}, err
	}
	m := linearModel{slopes: b, intercept: n.origin[n.width-1] + mean[p]/count}
	for i := range b {
		b[i] *= scale[i]
		center := mean[i] / count
		if i < n.width-1 {
			center += n.origin[i]
		}
		m.intercept -= float64(b[i] * center)
	}
	return m, nil
}

// products returns sums of products for all p features and the target, which has the last row,
// and the sums of the features and the target themselves. Only the lower triangle of the
// products is set. The origins of the dense columns have been subtracted.
func (n *normal) products(p int) (xx, sum []float64) {
	dense := n.width - 1
	xx, sum = make([]float64, (p+1)*(p+1)), make([]float64, p+1)
	at := func(i, j int) *float64 { return &xx[max(i, j)*(p+1)+min(i, j)] }
	column := func(i int) int { // the position of dense column i
		if i == dense {
			return p
		}
		return i
	}
	for i := range n.width {
		for j := range i + 1 {
			*at(column(i), column(j)) = n.xx[i*n.width+j]
		}
	}
	for cell, count := range n.counts {
		if count == 0 {
			continue
		}
		set := n.indicators(cell)
		for _, i := range set {
			sum[i] += count
			for _, j := range set {
				if j <= i {
					*at(i, j) += count
				}
			}
		}
		for k, v := range n.sums[cell*n.width : (cell+1)*n.width] {
			sum[column(k)] += v
			for _, i := range set {
				*at(i, column(k)) += v
			}
		}
	}
	return xx, sum
}

// indicators returns the indicator features that are 1 at an hour of the week.
func (n *normal) indicators(cell int) []int {
	first := n.width - 1
	day, hour := cell/hours, cell%hours
	set := []int{first + hour, first + hours + day}
	if n.r.Rich && day >= saturday {
		set = append(set, first+hours+days+hour)
	}
	return set
}

// cholesky solves A·x = b in place for a symmetric positive definite A, given by its lower
// triangle.
func cholesky(a, b []float64) error {
	p := len(b)
	for i := range p {
		for j := range i + 1 {
			sum := a[i*p+j]
			x, y := a[i*p:i*p+j], a[j*p:j*p+j]
			for k, v := range x {
				sum -= float64(v * y[k])
			}
			if i > j {
				a[i*p+j] = sum / a[j*p+j]
				continue
			}
			if !(sum > 0) {
				return errors.New("the equations have no stable solution")
			}
			a[i*p+i] = math.Sqrt(sum)
		}
	}
	for i := range p {
		for k := range i {
			b[i] -= float64(a[i*p+k] * b[k])
		}
		b[i] /= a[i*p+i]
	}
	for i := p - 1; i >= 0; i-- {
		for k := i + 1; k < p; k++ {
			b[i] -= float64(a[k*p+i] * b[k])
		}
		b[i] /= a[i*p+i]
	}
	return nil
}
