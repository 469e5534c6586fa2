package forecast

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Ridge is linear regression with a small penalty on the coefficients. There is a separate
// regression for each client and target:
//
//	minimise  Σ (y - b₀ - x·b)² + λ‖b‖²
//
// over the complete examples of the training split. Every feature x is scaled to mean 0
// and variance 1, so that λ has the same effect on all features. b₀ is not penalised.
//
// Features are the last 12 loads. If Rich, they are the last 24 loads, the loads at the
// target's clock time 48, 72 and 168 hours before, the target's hour and day of the week
// as indicators, and at the target's time the holiday, and temperature, its square, wind,
// humidity and solar radiation if the dataset has them. The weather is the measured
// weather, as if it had been forecast without error.
type Ridge struct {
	Rich bool
	// Lambda is λ; 0 means 1.
	Lambda float64

	c        Client
	weather  []string
	features int
	models   []linearModel // one per target
	x        []float64
}

// linearModel has the coefficients b₀ and b, for unscaled features.
type linearModel struct {
	intercept float64
	slopes    []float64
}

// richLags lists the lags of the additional loads, in days before the target.
var richLags = []int{2, 3, 7}

// Fit solves the normal equations of every target.
func (r *Ridge) Fit(c Client) error {
	r.c, r.features, r.weather = c, 12, nil
	if r.Rich {
		for _, name := range []string{"holiday", "temperature", "wind", "humidity", "solar"} {
			if c.Frame.Known(name) {
				r.weather = append(r.weather, name)
			}
		}
		r.features = 24 + len(richLags) + 24 + 7 + len(r.weather)
		if slices.Contains(r.weather, "temperature") {
			r.features++
		}
	}
	r.x = make([]float64, r.features)
	l := c.Frame.Layout()
	r.models = make([]linearModel, l.Targets)
	for target := range r.models {
		ahead := l.Horizon + target
		n := newNormal(r.features)
		for last := range max(c.Frame.Train(c.Meter)-ahead, 0) {
			y := c.load(last + ahead)
			if y == y && r.fill(last, ahead) {
				n.add(r.x, y)
			}
		}
		lambda := r.Lambda
		if lambda == 0 {
			lambda = 1
		}
		m, err := n.solve(lambda)
		if err != nil {
			return fmt.Errorf("ridge of meter %s: %w", c.Meter.ID, err)
		}
		r.models[target] = m
	}
	return nil
}

// Forecast computes the regression's forecast of each target.
func (r *Ridge) Forecast(out []float64, last int) bool {
	for target := range out {
		if !r.fill(last, r.c.Frame.Layout().Horizon+target) {
			return false
		}
		v := r.models[target].intercept
		for i, b := range r.models[target].slopes {
			v += b * r.x[i]
		}
		out[target] = v
	}
	return true
}

// fill computes the features for the target that is ahead steps after last. It returns
// false if a feature is missing.
func (r *Ridge) fill(last, ahead int) bool {
	at := 0
	complete := true
	put := func(v float64) {
		r.x[at] = v
		at++
		complete = complete && v == v
	}
	lags := 12
	if r.Rich {
		lags = 24
	}
	for i := range lags {
		put(r.c.load(last - i))
	}
	if !complete || !r.Rich {
		return complete
	}
	step := last + ahead
	for _, days := range richLags {
		put(r.c.sameTime(step, last, days))
	}
	indicators := func(name string, n int) {
		clear(r.x[at : at+n])
		r.x[at+int(r.c.Frame.Value(r.c.Meter, name, step))] = 1
		at += n
	}
	indicators("hour", 24)
	indicators("day_of_week", 7)
	for _, name := range r.weather {
		v := float64(r.c.Frame.Value(r.c.Meter, name, step))
		put(v)
		if name == "temperature" {
			put(v * v)
		}
	}
	return complete
}

// normal accumulates the sums in the normal equations of a regression.
type normal struct {
	n      float64
	origin []float64 // the first x, subtracted to reduce rounding errors
	y0     float64
	mean   []float64 // Σ(x - origin), with the target last
	xx     []float64 // Σ(x - origin)(x - origin)ᵀ, lower triangle by rows
	d      []float64
}

func newNormal(p int) *normal {
	return &normal{mean: make([]float64, p+1), xx: make([]float64, (p+1)*(p+2)/2), d: make([]float64, p+1)}
}

// add adds one example with features x and target y. The target has the last row of the
// sums.
func (s *normal) add(x []float64, y float64) {
	if s.n == 0 {
		s.origin, s.y0 = slices.Clone(x), y
	}
	s.n++
	d := s.d
	for i, v := range x {
		d[i] = v - s.origin[i]
	}
	d[len(x)] = y - s.y0
	at := 0
	for i, v := range d {
		s.mean[i] += v
		if v != 0 { // most indicators are 0
			row := s.xx[at : at+i+1]
			for j := range row {
				row[j] += v * d[j]
			}
		}
		at += i + 1
	}
}

// covariance returns Σ(a - mean a)(b - mean b) for rows i >= j.
func (s *normal) covariance(i, j int) float64 {
	return s.xx[i*(i+1)/2+j] - s.mean[i]*s.mean[j]/s.n
}

// errTooFew means that there are too few examples to fit.
var errTooFew = errors.New("fewer than two complete examples")

// solve returns the coefficients of the regression of the target on the features.
func (s *normal) solve(lambda float64) (linearModel, error) {
	if s.n < 2 {
		return linearModel{}, errTooFew
	}
	p := len(s.mean) - 1
	scale := make([]float64, p) // scale of each feature; 0 if the feature is constant
	for i := range scale {
		if v := s.covariance(i, i) / s.n; v > 1e-12 {
			scale[i] = 1 / math.Sqrt(v)
		}
	}
	a, b := make([]float64, p*p), make([]float64, p)
	for i := range p {
		for j := range i + 1 {
			a[i*p+j] = s.covariance(i, j) * scale[i] * scale[j]
		}
		a[i*p+i] += lambda
		b[i] = s.covariance(p, i) * scale[i]
	}
	if err := cholesky(a, b); err != nil {
		return linearModel{}, err
	}
	m := linearModel{slopes: b, intercept: s.y0 + s.mean[p]/s.n}
	for i := range b {
		b[i] *= scale[i]
		m.intercept -= b[i] * (s.origin[i] + s.mean[i]/s.n)
	}
	return m, nil
}

// cholesky solves A·x = b in place for a symmetric positive definite A, given by its lower
// triangle.
func cholesky(a, b []float64) error {
	p := len(b)
	for i := range p {
		for j := range i + 1 {
			sum := a[i*p+j]
			for k := range j {
				sum -= a[i*p+k] * a[j*p+k]
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
			b[i] -= a[i*p+k] * b[k]
		}
		b[i] /= a[i*p+i]
	}
	for i := p - 1; i >= 0; i-- {
		for k := i + 1; k < p; k++ {
			b[i] -= a[k*p+i] * b[k]
		}
		b[i] /= a[i*p+i]
	}
	return nil
}
