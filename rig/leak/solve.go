package leak

// Entry is a nonzero number of a sparse matrix.
type Entry struct {
	Row, Column int
	Value       float64
}

// LeastSquares solves a x = b with the conjugate gradient method on the normal equations. With
// few iterations it stops early, which makes it robust to noise in b.
func LeastSquares(a []Entry, columns int, b []float64, iterations int) []float64 {
	back := func(r []float64) []float64 {
		g := make([]float64, columns)
		for _, e := range a {
			g[e.Column] += e.Value * r[e.Row]
		}
		return g
	}
	x, r := make([]float64, columns), append([]float64(nil), b...)
	g := back(r)
	p, size := append([]float64(nil), g...), dot(g, g)
	for first := size; iterations > 0 && size > 1e-20*first; iterations-- {
		q := make([]float64, len(b))
		for _, e := range a {
			q[e.Row] += e.Value * p[e.Column]
		}
		step := size / dot(q, q)
		for j := range x {
			x[j] += step * p[j]
		}
		for i := range r {
			r[i] -= step * q[i]
		}
		g = back(r)
		before := size
		size = dot(g, g)
		for j := range p {
			p[j] = g[j] + size/before*p[j]
		}
	}
	return x
}

func dot(x, y []float64) (sum float64) {
	for i := range x {
		sum += x[i] * y[i]
	}
	return sum
}
