package feature

import (
	"sync"

	"loadstar/series"
)

// Rows has the examples of a meter: one for each origin and target. It implements
// [series.Examples].
type Rows struct {
	series.Origins
	frame *Frame
	meter series.Meter
}

var _ series.Examples = (*Rows)(nil)

// Inputs returns the number of inputs of an example.
func (r *Rows) Inputs() int { return r.frame.width }

// PerOrigin returns the number of targets, because each target is an example.
func (r *Rows) PerOrigin() int { return r.frame.task.Targets }

// Scaling returns what the inputs know about the training split. The caller must not change
// it.
func (r *Rows) Scaling() *Scaling { return r.frame.columns(r.meter).scaling }

// Noise implements [series.Examples].
func (r *Rows) Noise() float64 { return series.Noise(r.meter.Load[:r.frame.framer.Train(r.meter)]) }

// Unscale converts an output for an example to kW.
func (r *Rows) Unscale(at series.Example, v float32) float32 {
	c := r.frame.columns(r.meter)
	z := float64(v) + float64(c.at[at.Last].level)
	return float32(float64(z*c.scaling.Deviation) + c.scaling.Mean)
}

// Gather writes the inputs of examples to x, row-major, and their targets to y.
func (r *Rows) Gather(x, y []float32, at []series.Example) {
	r.gather(x, 1, r.frame.width, y, at)
}

// GatherColumns writes the inputs of examples to x, one column per example, with rows
// stride floats apart, and their targets to y. A target after the end of the meter's series
// is 0.
func (r *Rows) GatherColumns(x []float32, stride int, y []float32, at []series.Example) {
	r.gather(x, stride, 1, y, at)
}

// gather writes input i of example e to x[i*down+e*right].
func (r *Rows) gather(x []float32, down, right int, y []float32, at []series.Example) {
	b := blocks.Get().(*block)
	b.frame, b.columns = r.frame, r.frame.columns(r.meter)
	b.first = r.frame.clock.first(r.meter)
	b.down, b.right = down, right
	for from := 0; from < len(at); from += blockSize {
		part := at[from:min(from+blockSize, len(at))]
		b.x, b.row = x[from*right:], 0
		b.start(part)
		for i := range r.frame.groups {
			r.frame.groups[i].write(b)
		}
		if y != nil {
			b.targets(y[from:])
		}
	}
	b.frame, b.columns, b.x = nil, nil, nil
	blocks.Put(b)
}

var blocks = sync.Pool{New: func() any { return new(block) }}
