package series

import "math"

// Example identifies one example of a meter. Last is its origin, the step of the newest
// known load. Target is the number of its target, counted from 0; it is 0 if every example
// has all targets of its origin.
type Example struct{ Last, Target int }

// Readiness states whether a model can forecast from an origin.
type Readiness int

// The states of an origin's inputs.
const (
	Unready  Readiness = iota // too many inputs are missing
	Filled                    // some inputs were missing and have been replaced
	Complete                  // all inputs are known
)

// Examples are a meter's examples in the shape that a model needs: windows of consecutive steps
// ([Windows]) or rows of features (package feature).
type Examples interface {
	// Frame returns the layout, the split and the calendar of the examples.
	Frame() *Framer
	// Len, At and Each are the methods of [Origins].
	Len(p Part) int
	At(p Part, k int) int
	Each(p Part, f func(last int) error) error
	// Ready reports whether the inputs of an origin are known. The targets may be unknown, so
	// that a model can forecast from the newest step of a series.
	Ready(last int) Readiness
	// Inputs returns the number of inputs of an example.
	Inputs() int
	// PerOrigin returns the number of examples of each origin: 1 if an example has all
	// targets of its origin, otherwise the number of targets.
	PerOrigin() int
	// Gather writes the inputs of examples to x and, unless y is nil, their targets to y,
	// row-major by example. It does not allocate.
	Gather(x, y []float32, at []Example)
	// GatherColumns writes the inputs of examples to x, one column per example, with rows
	// stride floats apart. It writes targets to y as Gather does. It does not allocate.
	GatherColumns(x []float32, stride int, y []float32, at []Example)
	// Unscale converts an output of the model for an example to kW.
	Unscale(at Example, v float32) float32
	// Noise returns the mean absolute change of the load from step to step in the training
	// split, divided by the standard deviation of the load. The result is at most 1. If the
	// quotient is not defined, the result is 0.
	Noise() float64
}

// Noise computes the noise described at [Examples].Noise from the loads of a training split.
func Noise(load []float32) float64 {
	var sum, squares, changes float64
	n, pairs := 0, 0
	for i, v := range load {
		if Missing(v) {
			continue
		}
		sum += float64(v)
		n++
		if i > 0 && !Missing(load[i-1]) {
			changes += math.Abs(float64(v) - float64(load[i-1]))
			pairs++
		}
	}
	if pairs == 0 {
		return 0
	}
	mean := sum / float64(n)
	for _, v := range load {
		if !Missing(v) {
			d := float64(v) - mean
			squares += float64(d * d)
		}
	}
	deviation := math.Sqrt(squares / float64(n))
	if deviation == 0 {
		return 0
	}
	return math.Min(changes/float64(pairs)/deviation, 1)
}
