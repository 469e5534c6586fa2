// Package bench contains the code that the benchmarks in its subpackages share: the model,
// the training workload, the random data and the median.
package bench

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"loadstar/forecast"
	"loadstar/nn"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// The workload consists of one client's local training steps. Unless a benchmark chooses
// another model, the model is bose2023.
const (
	Model = "bose2023"
	Batch = 64
)

// Progress is called as a benchmark advances, with the number of completed and total steps
// and a note to show next to them.
type Progress func(done, total int, note string)

// Workload trains one model with one kernel set. It is not safe for concurrent use.
type Workload struct {
	Kernel *kernel.Set
	// X and Y are the inputs and targets of a batch.
	X, Y []float32

	ws            *nn.Workspace
	loss          nn.Loss
	w, g, m, v    []float32
	initial       []float32
	many, outputs []float32
	step          int
	perWindow     int // outputs
}

// inferMost is the maximum batch size of Infer.
const inferMost = 256

// NewWorkload returns a workload with random data. The model has its default shape. Its loss
// is the squared error, or the pinball loss if the model forecasts quantiles by default.
func NewWorkload(k *kernel.Set, name string) (*Workload, error) {
	model, err := forecast.New(name, forecast.Shape{})
	if err != nil {
		return nil, err
	}
	var loss nn.Loss = nn.MSE{}
	if d, _ := forecast.DefaultsOf(name); len(d.Quantiles) > 0 {
		if loss, err = nn.NewPinball(d.Quantiles...); err != nil {
			return nil, err
		}
	}
	net := model.Net()
	outputs := net.Outputs()
	n, window := net.Weights(), net.Lookback()*net.Inputs()
	rng := rand.New(rand.NewPCG(1, 1))
	normal := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		return x
	}
	return &Workload{
		Kernel: k, X: normal(Batch * window), Y: normal(Batch * outputs / loss.Outputs(1)),
		ws: net.NewWorkspace(k, Batch), loss: loss, perWindow: outputs,
		w: model.InitialWeights(1), initial: model.InitialWeights(1), g: make([]float32, n), m: make([]float32, n), v: make([]float32, n),
		many: normal(inferMost * window), outputs: make([]float32, inferMost*outputs),
	}, nil
}

// fresh is the number of steps after which a workload restarts from its initial weights.
// After thousands of steps on one batch, numbers become so small that CPUs compute with
// them at half the speed. This does not happen in training, where the batches change.
const fresh = 1000

// Train runs one training step: forward pass, backward pass and Adam.
func (w *Workload) Train() {
	if w.step == fresh {
		w.step = 0
		copy(w.w, w.initial)
		clear(w.m)
		clear(w.v)
	}
	w.step++
	w.ws.Gradient(w.g, w.w, w.X, w.Y, w.loss)
	w.Kernel.Adam(w.w, w.g, w.m, w.v, kernel.AdamStep{Rate: 0.001, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: w.step})
}

// Infer forecasts a batch of at most 256 windows.
func (w *Workload) Infer(batch int) {
	w.ws.Predict(w.outputs[:batch*w.perWindow], w.w, w.many[:batch*len(w.many)/inferMost])
}

// RandomFleet returns meters with a year of hourly random numbers each.
func RandomFleet(meters int) (*series.Dataset, error) {
	rng := rand.New(rand.NewPCG(1, 1))
	year := func() []float32 {
		x := make([]float32, 8760)
		for i := range x {
			x[i] = rng.Float32()
		}
		return x
	}
	all := make([]series.Meter, meters)
	for i := range all {
		all[i] = series.Meter{ID: fmt.Sprint(i), Load: year(), Static: []float32{rng.Float32(), rng.Float32(), rng.Float32()}}
	}
	return series.NewDataset(series.Dataset{
		Name: "bench", Generated: true, Interval: time.Hour, Clock: time.UTC, StaticNames: []string{"floor_area", "wall_area", "window_area"},
		Weather: series.Weather{Names: []string{"temperature", "wind"}, Columns: [][]float32{year(), year()}},
	}, all)
}

// Median returns the median of a non-empty list of numbers.
func Median(x []float64) float64 {
	s := slices.Sorted(slices.Values(x))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}
