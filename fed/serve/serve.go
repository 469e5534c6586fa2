// Package serve makes forecasts from a trained plan. It reads and writes a model's folder,
// fits personal layers for clients that have none, and replays earlier issues.
//
// A [Model] is a plan with its shared weights. [Tails] are the readings that forecasts at a cutoff
// may use. [Model.Frame] combines the two, and the resulting frame has a forecaster for each
// client.
//
// [NewGeneric] returns a model that forecasts the next day of any meter with at least a day of
// readings, without a run and without training. It was trained on public readings of buildings
// and on simulated homes; generic.md in this folder is its model card.
package serve

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/forecast"
	"loadstar/nn"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// The reasons why a client's model cannot forecast.
var (
	// ErrNoHead means that the client has no personal layers.
	ErrNoHead = errors.New("the client has no personal layers")
	// ErrNoScaling means that the scaling that was used in training is unknown.
	ErrNoScaling = errors.New("the scaling of the client's readings is unknown")
	// ErrShort means that a client has too few readings to fit personal layers.
	ErrShort = errors.New("too few readings")
)

// Model is a plan with its shared weights. It is safe for concurrent use.
type Model struct {
	// Name is shown in forecasts, such as day@7.
	Name string
	// Plan lists all inputs.
	Plan    *fed.Plan
	Problem *recipe.Problem // has no dataset
	// Step is the interval of the readings, or 0 if it is not known.
	Step time.Duration

	kernel     *kernel.Set
	shared     []float32
	predictors sync.Pool // of *forecast.Predictor
	levels     []float64
	point      int
	// fleet is the scaling of all clients. It is nil if the plan scales clients individually or
	// if the scaling is unknown.
	fleet *recipe.Scaling
	// young is nil unless newYoung created the model.
	young *young
}

// NewModel returns the model of a plan, for example that of a release. The plan must list its
// inputs and, if the model needs it, the interval of the readings. shared is the shared vector;
// any moments in it are ignored.
func NewModel(name string, p *fed.Plan, shared []float32, k *kernel.Set) (*Model, error) {
	if len(p.Model.Inputs) == 0 {
		return nil, fmt.Errorf("the plan does not list the inputs of its model")
	}
	if recipe.Rows(p) && p.Model.Interval == 0 {
		return nil, fmt.Errorf("the plan does not state the interval of the readings; set model.interval")
	}
	p, err := recipe.Stated(p)
	if err != nil {
		return nil, err
	}
	q, err := recipe.Frame(p, nil)
	if err != nil {
		return nil, err
	}
	if n := q.Partition.SharedLen(); len(shared) != n && len(shared) != q.SharedLen() {
		return nil, fmt.Errorf("there are %d shared weights, but the plan needs %d", len(shared), n)
	}
	shared = slices.Clone(q.SharedWeights(shared))
	if nn.NotFinite(shared) >= 0 {
		return nil, fmt.Errorf("a shared weight is not a finite number")
	}
	m := &Model{Name: name, Plan: p, Problem: q, Step: time.Duration(p.Model.Interval), kernel: k, shared: shared}
	m.predictors.New = func() any { return forecast.NewPredictor(q.Model, k, q.Loss) }
	m.levels, m.point = m.predictors.New().(*forecast.Predictor).Levels()
	return m, nil
}

// Shared returns the shared weights, without moments. The caller must not change them.
func (m *Model) Shared() []float32 { return m.shared }

// Client contains the data that a client has in addition to the plan.
type Client struct {
	Weights []float32 // all weights of the model; the caller must not change them
	Scaling recipe.Scaling

	spare *[]float32 // the memory of Weights, if a folder can reuse it
}

// Client returns a client with the given personal weights, which may be nil if the model
// has none.
func (m *Model) Client(personal []float32, s recipe.Scaling) (Client, error) {
	if err := m.checkScaling(s); err != nil {
		return Client{}, err
	}
	w, err := m.join(personal)
	return Client{Weights: w, Scaling: s}, err
}

// join returns all weights of a client.
func (m *Model) join(personal []float32) ([]float32, error) {
	p := m.Problem.Partition
	switch n := p.PersonalLen(); {
	case len(personal) == 0 && n > 0:
		return nil, ErrNoHead
	case len(personal) != n:
		return nil, fmt.Errorf("there are %d personal weights, but the plan needs %d", len(personal), n)
	case nn.NotFinite(personal) >= 0:
		return nil, fmt.Errorf("a personal weight is not a finite number")
	}
	w := make([]float32, m.Problem.Model.Net().Weights())
	p.Join(w, m.shared, personal)
	return w, nil
}

// one returns a dataset with only the readings of one meter before a time.
func one(d *series.Dataset, meter int, before int64) (*series.Dataset, error) {
	m := d.Meter(meter)
	n := max(min((before-m.Start)/d.Seconds(), int64(len(m.Load))), 0)
	m.Load = m.Load[:n:n]
	return series.NewDataset(fields(d), []series.Meter{m})
}

// fields returns a dataset with only those fields of d that apply to all its meters.
func fields(d *series.Dataset) series.Dataset {
	return series.Dataset{
		Name: d.Name, Generated: d.Generated, Interval: d.Interval, Clock: d.Clock, Country: d.Country,
		Weather: d.Weather, StaticNames: d.StaticNames,
	}
}

// Scaling computes the scaling of a meter from its readings before the given time.
func (m *Model) Scaling(d *series.Dataset, meter int, before int64) (recipe.Scaling, error) {
	if m.fleet != nil {
		return *m.fleet, nil
	}
	own, err := one(d, meter, before)
	if err != nil {
		return recipe.Scaling{}, err
	}
	return m.scaling(own, fed.Split{Train: 1})
}

// scaling returns the scaling of the only meter of a dataset.
func (m *Model) scaling(d *series.Dataset, s fed.Split) (recipe.Scaling, error) {
	if m.fleet != nil {
		return *m.fleet, nil
	}
	q, err := m.split(d, s)
	if err != nil {
		return recipe.Scaling{}, err
	}
	meter := d.Meter(0)
	if !slices.ContainsFunc(meter.Load, func(v float32) bool { return !series.Missing(v) }) {
		return recipe.Scaling{}, fmt.Errorf("meter %s: %w: it has none", meter.ID, ErrShort)
	}
	var ranges series.Ranges
	if !recipe.Rows(m.Plan) {
		ranges = q.Framer.Ranges(meter)
	}
	scaling := q.Scaling(meter, ranges)
	return scaling, m.checkScaling(scaling)
}

// split returns the plan's problem with a dataset and a different split.
func (m *Model) split(d *series.Dataset, s fed.Split) (*recipe.Problem, error) {
	if m.Step != 0 && m.Step != d.Interval {
		return nil, fmt.Errorf("the model is for readings %s apart, but those of %s are %s apart", m.Step, d.Name, d.Interval)
	}
	p := *m.Plan
	p.Model.Split = s
	return recipe.Frame(&p, d)
}
