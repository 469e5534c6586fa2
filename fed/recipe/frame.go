package recipe

import (
	"fmt"
	"io"
	"slices"
	"time"

	"loadstar/fed"
	"loadstar/forecast"
	"loadstar/nn"
	"loadstar/series"
	"loadstar/series/feature"
)

// Problem is the training problem of a plan: the model and, once there is a dataset, its
// examples. The simulator, agents and the server all derive the same Problem from a plan.
type Problem struct {
	// Framer is nil if there is no dataset.
	Framer *series.Framer
	// Inputs lists the inputs of each step. If an example is a row of features, Inputs is empty,
	// and Groups lists the feature groups.
	Inputs    []series.Input
	Groups    []string
	Model     *forecast.Model
	Partition forecast.Partition
	Loss      nn.Loss
	// Outputs is the number of values that the model computes for a window: one per
	// target, or one per target and quantile.
	Outputs int
	// Missing lists the inputs from the model's paper that the dataset does not have. It is
	// empty if the plan lists its own inputs.
	Missing []string

	layout   series.Layout
	split    series.Split
	averaged bool // the server also averages moments

	// These fields are set only if an example is a row of features.
	rows     *feature.Frame // nil if there is no dataset
	gaps     float64
	interval time.Duration
}

// Examples returns the examples of a meter. Windows are scaled by the given ranges, which
// rows of features do not need.
func (q *Problem) Examples(m series.Meter, r series.Ranges) series.Examples {
	if q.rows != nil {
		return q.rows.Rows(m)
	}
	return q.Framer.Windows(m, r)
}

// FeatureBytes returns upper bounds on the memory for the features of a dataset: the memory
// that all meters share, and the memory for one meter's features while its client trains. Both
// are 0 if examples are windows.
func (q *Problem) FeatureBytes(d *series.Dataset) (shared, meter int64) {
	if q.interval == 0 {
		return 0, 0
	}
	return feature.Memory(d, feature.Task{StepsPerDay: d.StepsPerDay(), Horizon: q.layout.Horizon, Targets: q.layout.Targets})
}

// LimitCache limits the memory for precomputed features. It has no effect if examples are
// windows. The dataset must be set.
func (q *Problem) LimitCache(bytes int64) {
	if q.rows != nil {
		q.rows.SetCache(max(bytes, 0))
	}
}

// Interval returns the time between readings, or 0 if the model does not depend on it.
func (q *Problem) Interval() time.Duration { return q.interval }

// PerExample returns the number of targets of an example.
func (q *Problem) PerExample() int { return q.Outputs / q.Loss.Outputs(1) }

// Names returns the names of the inputs or of the groups of features.
func (q *Problem) Names() []string {
	names := slices.Clone(q.Groups)
	for _, in := range q.Inputs {
		names = append(names, in.String())
	}
	return names
}

// InputNames returns the name of each input of an example. Windows have these inputs at each
// step.
func (q *Problem) InputNames() []string {
	if q.interval == 0 {
		return q.Names()
	}
	perDay := int(24 * time.Hour / q.interval)
	return feature.Names(feature.Task{StepsPerDay: perDay, Horizon: q.layout.Horizon, Targets: q.layout.Targets}, q.Groups)
}

// SharedLen returns the length of the shared vector, which the server sends and whose change
// clients return. The vector contains the shared weights and, if the plan averages moments,
// their first and second moments.
func (q *Problem) SharedLen() int {
	n := q.Partition.SharedLen()
	if q.averaged {
		n *= 3
	}
	return n
}

// SharedWeights returns the weights in a shared vector.
func (q *Problem) SharedWeights(shared []float32) []float32 { return shared[:q.Partition.SharedLen()] }

// Inputs returns the inputs of a plan. If the plan does not list its inputs, names contains the
// inputs from the model's paper that every dataset has or that are in given, and missing
// contains the paper's other inputs.
func Inputs(p *fed.Plan, given []string) (names, missing []string) {
	if Rows(p) {
		return groups(p, func(name string) bool { return feature.Given(name, "", given) })
	}
	return inputs(p, func(name string) bool { return slices.Contains(given, name) })
}

func inputs(p *fed.Plan, given func(name string) bool) (names, missing []string) {
	if len(p.Model.Inputs) > 0 {
		return p.Model.Inputs, nil
	}
	paper, _ := forecast.DefaultsOf(p.Model.Name)
	for _, name := range paper.Inputs {
		if series.InEveryDataset(name) || given(name) {
			names = append(names, name)
		} else {
			missing = append(missing, name)
		}
	}
	return names, missing
}

// Frame builds the problem of a plan. If the dataset is nil and the plan does not list its
// inputs, the problem has all inputs of the model's paper or all groups of features. If the
// dataset is nil and the plan is not resolved, [Assume] resolves it.
func Frame(p *fed.Plan, d *series.Dataset) (*Problem, error) {
	q := &Problem{averaged: Averaged(p), split: series.Split{Train: p.Model.Split.Train, Validation: p.Model.Split.Validation}}
	known := d != nil || p.Model.Interval != 0
	var shape forecast.Shape
	var err error
	if d != nil {
		p, err = Resolve(p, d.Interval)
	} else {
		p, err = Assume(p)
	}
	if err != nil {
		return nil, err
	}
	if Rows(p) {
		shape, err = q.frameRows(p, d, known)
	} else {
		shape, err = q.frameWindows(p, d)
	}
	if err != nil {
		return nil, err
	}
	if d != nil {
		if err := q.Open(d); err != nil {
			return nil, err
		}
	}
	if q.Loss, err = loss(p); err != nil {
		return nil, err
	}
	model, _ := forecast.DefaultsOf(p.Model.Name)
	q.Outputs = q.Loss.Outputs(model.PerExample(p.Model.Targets.Steps()))
	shape.Outputs = q.Outputs
	if q.Model, err = forecast.New(p.Model.Name, shape); err != nil {
		return nil, err
	}
	q.Partition, err = q.Model.Partition(p.Partition)
	return q, err
}

// frameWindows prepares the problem of a model whose examples are windows, and returns the
// model's shape. The plan must be resolved.
func (q *Problem) frameWindows(p *fed.Plan, d *series.Dataset) (forecast.Shape, error) {
	given := func(string) bool { return true }
	if d != nil {
		given = func(name string) bool {
			return slices.Contains(d.Weather.Names, name) || slices.Contains(d.StaticNames, name)
		}
	}
	var names []string
	names, q.Missing = inputs(p, given)
	for _, s := range names {
		in, err := series.ParseInput(s)
		if err != nil {
			return forecast.Shape{}, err
		}
		q.Inputs = append(q.Inputs, in)
	}
	q.layout = series.Layout{Lookback: p.Model.Lookback.Steps(), Horizon: p.Model.Horizon.Steps(), Targets: p.Model.Targets.Steps(), Inputs: q.Inputs}
	return forecast.Shape{Lookback: q.layout.Lookback, Inputs: len(q.Inputs)}, nil
}

// EndAtBlocks makes training and validation data end at boundaries of four-week blocks
// ([series.Split]). It takes effect when a dataset is opened.
func (q *Problem) EndAtBlocks() { q.split.Blocks = true }

// Open sets the dataset from which examples are taken. The dataset must have the problem's
// inputs. Open is for callers that need the model before they have read the data.
func (q *Problem) Open(d *series.Dataset) (err error) {
	if q.interval > 0 {
		return q.openRows(d)
	}
	q.Framer, err = series.NewFramer(d, q.layout, q.split)
	return err
}

// WriteShared writes the weights in a shared vector as .safetensors. Equal weights give
// equal bytes, whether they come from a simulated run or from a fleet.
func (q *Problem) WriteShared(w io.Writer, shared []float32, plan string, version int) error {
	whole := make([]float32, q.Model.Net().Weights())
	q.Partition.Join(whole, q.SharedWeights(shared), make([]float32, q.Partition.PersonalLen()))
	return q.Model.WriteWeights(w, whole, q.Partition.Shared(), map[string]string{"plan": plan, "version": fmt.Sprint(version)})
}

func loss(p *fed.Plan) (nn.Loss, error) {
	switch p.Model.Loss {
	case "mse":
		return nn.MSE{}, nil
	case "mae":
		return nn.MAE{}, nil
	case "pinball":
		return nn.NewPinball(p.Model.Quantiles...)
	}
	return nil, fmt.Errorf("loss %q is not known; want mse, mae or pinball", p.Model.Loss)
}
