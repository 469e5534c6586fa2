package client

import (
	"slices"
	"time"

	"loadstar/forecast"
	"loadstar/nn"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// objective is a model's mean loss over the training examples of one client, or of several
// clients with pooled readings. It implements fed.Objective.
type objective struct {
	ws      *nn.Workspace
	loss    nn.Loss
	batch   int
	targets int // per example

	data []series.Examples
	// ends[i] is the number of examples in data[0] to data[i].
	ends []int

	y  []float32
	at []series.Example

	gathering time.Duration // total time spent in gather
}

func newObjective(m *forecast.Model, k *kernel.Set, loss nn.Loss, targets, batch int) *objective {
	return &objective{
		ws: m.Net().NewWorkspace(k, batch), loss: loss, batch: batch, targets: targets,
		y: make([]float32, batch*targets), at: make([]series.Example, 0, batch),
	}
}

// setData makes the objective use the examples of the given series.
func (o *objective) setData(data []series.Examples) {
	o.data, o.ends = data, o.ends[:0]
	n := 0
	for _, w := range data {
		n += w.Len(series.Train) * w.PerOrigin()
		o.ends = append(o.ends, n)
	}
}

// Len returns the number of training examples.
func (o *objective) Len() int { return o.ends[len(o.ends)-1] }

// Gradient implements [fed.Objective].
func (o *objective) Gradient(g, w []float32, examples []int) float64 {
	return o.ws.ColumnsGradient(g, w, o.gather(examples), o.loss)
}

// Loss returns the mean loss over the examples. It computes the loss batch by batch.
func (o *objective) Loss(w []float32, examples []int) float64 {
	sum, n := 0.0, len(examples)
	for b := range slices.Chunk(examples, o.batch) {
		sum += o.ws.ColumnsLoss(w, o.gather(b), o.loss) * float64(len(b))
	}
	return sum / float64(n)
}

// slopes returns how many outputs for the examples are too large and how many are too small.
// The examples must fit into a batch.
func (o *objective) slopes(w []float32, examples []int) (large, small int) {
	return o.ws.ColumnsSlopes(w, o.gather(examples), o.loss)
}

// gather copies the examples' inputs into the workspace and returns their targets.
func (o *objective) gather(examples []int) (y []float32) {
	start := time.Now()
	defer func() { o.gathering += time.Since(start) }()
	x, stride := o.ws.Columns(len(examples))
	y = o.y[:len(examples)*o.targets]
	if len(o.data) == 1 {
		o.at = o.at[:0]
		for _, e := range examples {
			o.at = append(o.at, example(o.data[0], e))
		}
		o.data[0].GatherColumns(x, stride, y, o.at)
		return y
	}
	for i, e := range examples {
		d, _ := slices.BinarySearch(o.ends, e+1)
		if d > 0 {
			e -= o.ends[d-1]
		}
		o.at = append(o.at[:0], example(o.data[d], e))
		o.data[d].GatherColumns(x[i:], stride, y[i*o.targets:(i+1)*o.targets], o.at)
	}
	return y
}

// example returns training example e of a series.
func example(from series.Examples, e int) series.Example {
	per := from.PerOrigin()
	return series.Example{Last: from.At(series.Train, e/per), Target: e % per}
}
