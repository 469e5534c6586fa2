package feature

import (
	"sync"
	"sync/atomic"

	"loadstar/series"
)

// Rows holds the examples of a meter: one for each origin and target. It implements
// [series.Examples].
type Rows struct {
	series.Origins
	frame *Frame
	meter series.Meter
	// frozen is the scaling that the caller passed, or nil.
	frozen *Scaling
	since  int                    // the first origin that is needed
	used   atomic.Pointer[cached] // the cache entry that was used last
}

var _ series.Examples = (*Rows)(nil)

// servedGaps is the maximum share of the last 168 hours in which loads may be missing for a
// forecast. servedFill is the maximum length, as a share of a day, of a gap that ends at the
// origin. Both limits are higher than for training, because a forecast with replaced loads is
// still better than last week's loads. With 2 % of the readings removed in blocks of 6 to 24
// hours, the higher limits reduced the error of the served forecasts by 3 to 10 %.
const (
	servedGaps = 1. / 3
	servedFill = 1. / 4
)

// Ready implements [series.Examples].
func (r *Rows) Ready(last int) series.Readiness {
	week := 7 * r.frame.clock.perDay
	gaps, fill := r.frame.gaps, min(originFill, r.frame.gaps)
	if gaps > 0 {
		gaps = max(gaps, int(servedGaps*float64(week)))
		fill = max(fill, int(servedFill*float64(r.frame.clock.perDay)))
	}
	if last < week-1 || last >= len(r.meter.Load) {
		return series.Unready
	}
	missing, since := 0, 0
	for i, v := range r.meter.Load[last-week+1 : last+1] {
		if series.Missing(v) {
			missing++
		} else {
			since = week - 1 - i
		}
	}
	switch {
	case missing == 0:
		return series.Complete
	case missing <= gaps && since <= fill:
		return series.Filled
	}
	return series.Unready
}

// Inputs returns the number of inputs of an example.
func (r *Rows) Inputs() int { return r.frame.width }

// PerOrigin returns the number of targets, because each target is an example.
func (r *Rows) PerOrigin() int { return r.frame.task.Targets }

// Scaling returns the scaling from the training split. The caller must not change it.
func (r *Rows) Scaling() *Scaling { return r.lastColumns().scaling }

// Noise implements [series.Examples].
func (r *Rows) Noise() float64 { return series.Noise(r.meter.Load[:r.frame.framer.Train(r.meter)]) }

// Unscale converts an output for an example to kW.
func (r *Rows) Unscale(at series.Example, v float32) float32 {
	c := r.lastColumns()
	z := float64(v) + float64(c.at[at.Last].level)
	return float32(float64(z*c.scaling.Deviation) + c.scaling.Mean)
}

// Gather writes the inputs of examples to x, row-major, and, unless y is nil, their targets to
// y.
func (r *Rows) Gather(x, y []float32, at []series.Example) {
	b := r.block()
	defer b.release()
	width := r.frame.width
	if len(b.rows) < width*blockSize {
		b.rows = make([]float32, width*blockSize)
	}
	b.x, b.down = b.rows, blockSize
	for from := 0; from < len(at); from += blockSize {
		b.fill(at[from:min(from+blockSize, len(at))])
		for e := range b.n {
			row := x[(from+e)*width:][:width]
			for i := range row {
				row[i] = b.x[i*blockSize+e]
			}
		}
		if y != nil {
			b.targets(y[from:])
		}
	}
}

// GatherColumns writes the inputs of examples to x, one column per example, with rows stride
// floats apart, and, unless y is nil, their targets to y. A target after the end of the meter's
// series is 0.
func (r *Rows) GatherColumns(x []float32, stride int, y []float32, at []series.Example) {
	b := r.block()
	defer b.release()
	b.down = stride
	for from := 0; from < len(at); from += blockSize {
		b.x = x[from:]
		b.fill(at[from:min(from+blockSize, len(at))])
		if y != nil {
			b.targets(y[from:])
		}
	}
}

var blocks = sync.Pool{New: func() any { return new(block) }}

// block returns a block for the meter's examples.
func (r *Rows) block() *block {
	b := blocks.Get().(*block)
	b.frame, b.columns = r.frame, r.columns()
	b.first = r.frame.clock.first(r.meter)
	return b
}

func (b *block) release() {
	b.frame, b.columns, b.x = nil, nil, nil
	blocks.Put(b)
}

// fill writes the inputs of examples to b.x.
func (b *block) fill(at []series.Example) {
	b.row = 0
	b.start(at)
	for i := range b.frame.groups {
		b.frame.groups[i].write(b)
	}
}
