package issue

import (
	"cmp"
	"math"
	"slices"
)

// LeastShapes is the minimum number of earlier forecasts for joint scenarios.
const LeastShapes = 10

// AddPaths adds n joint scenarios to the rows of a forecast. The k-th scenarios of all rows
// form one course of the load. Each row's scenarios have the distribution of its quantiles, of
// which there must be at least two. Earlier forecasts for the same client determine which
// values form a course. If, relative to an earlier forecast, the load ranked third at one step
// and fifth at the next, one of the scenarios also ranks third and then fifth. load returns the
// measured load of the step that starts at a time, or NaN. AddPaths uses the newest earlier
// forecasts, and repeats them if there are fewer than n. If there are fewer than both
// [LeastShapes] and n, it returns false and adds nothing.
//
// M. Clark et al., The Schaake shuffle, Journal of Hydrometeorology 5 (2004). Instead of
// observations, we rank errors in units of the spread of their forecasts, because forecasts
// differ from day to day.
func AddPaths(f *Forecast, earlier []Forecast, load func(at int64) float64, n int) bool {
	shapes := scores(f, earlier, load, n)
	if len(shapes) < min(n, LeastShapes) || n < 1 {
		return false
	}
	all := make([]float64, n*len(f.Rows))
	order := make([]int, n)
	z := f.scores()
	for i := range f.Rows {
		r := &f.Rows[i]
		r.Paths = all[i*n:][:n:n]
		for k := range order {
			order[k] = k
		}
		slices.SortStableFunc(order, func(a, b int) int {
			return cmp.Compare(shapes[a%len(shapes)][i], shapes[b%len(shapes)][i])
		})
		for rank, k := range order {
			r.Paths[k] = interpolated(normal((float64(rank)+0.5)/float64(n)), z, r.Values)
			if f.nonnegative {
				r.Paths[k] = max(r.Paths[k], 0)
			}
		}
	}
	return true
}

// scores returns the courses of the newest forecasts that are as long as f. For each row, a
// course contains the distance of the load from the median in standard deviations.
func scores(f *Forecast, earlier []Forecast, load func(at int64) float64, n int) (shapes [][]float64) {
	for _, e := range slices.Backward(earlier) {
		if len(shapes) == n {
			break
		}
		if len(e.Rows) != len(f.Rows) || e.Cutoff >= f.Cutoff {
			continue
		}
		z := e.scores()
		shape, known, last := make([]float64, len(e.Rows)), 0, 0.0
		for i, r := range e.Rows {
			// For a missing load, assume the same distance from the forecast as in the previous step.
			if v := load(r.Time); r.Time < f.Cutoff && !math.IsNaN(v) && !math.IsNaN(r.Mean) {
				last = interpolated(v, r.Values, z)
				known++
			}
			shape[i] = last
		}
		if 2*known >= len(shape) {
			shapes = append(shapes, shape)
		}
	}
	return shapes
}

// scores returns the levels of a forecast as quantiles of a normal distribution.
func (f *Forecast) scores() []float64 {
	z := make([]float64, len(f.Levels))
	for i, level := range f.Levels {
		z[i] = normal(level)
	}
	return z
}

// normal returns a quantile of the standard normal distribution.
func normal(level float64) float64 { return math.Sqrt2 * math.Erfinv(2*level-1) }

// interpolated returns y at x, given ascending points. Beyond the first or the last point, the
// slope is that of the line from this point to the middle point.
func interpolated(x float64, xs, ys []float64) float64 {
	last, middle := len(xs)-1, (len(xs)-1)/2
	from, to := 0, 0
	switch i, _ := slices.BinarySearch(xs, x); {
	case i == 0:
		from, to = 0, max(middle, 1)
	case i > last:
		from, to = min(middle, last-1), last
	default:
		from, to = i-1, i
	}
	width := xs[to] - xs[from]
	if width <= 0 {
		return ys[from] // all quantiles are equal
	}
	near := from
	if x > xs[to] {
		near = to
	}
	return ys[near] + float64((x-xs[near])*((ys[to]-ys[from])/width))
}
