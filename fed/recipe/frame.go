package recipe

import (
	"fmt"
	"io"
	"slices"

	"loadstar/fed"
	"loadstar/forecast"
	"loadstar/nn"
	"loadstar/series"
)

// Problem is what a plan trains, given a dataset: the same for the simulator, an
// agent and whoever scores.
type Problem struct {
	// Framer is nil if there is no dataset.
	Framer    *series.Framer
	Inputs    []series.Input
	Model     *forecast.Model
	Partition forecast.Partition
	Loss      nn.Loss
	// Outputs is how many values the model computes for a window: one for each target,
	// or one for each target and quantile.
	Outputs int
	// Missing are the inputs of the model's paper that the dataset does not have, if
	// the plan leaves the inputs to it.
	Missing []string
}

// paperInputs are those of each model's paper.
var paperInputs = map[string][]string{
	"bose2023":  {"load", "time_of_day", "day_of_week", "temperature", "wind", "floor_area", "wall_area", "window_area"},
	"bose2024":  {"load", "time_of_day", "day_of_week", "temperature", "wind", "floor_area", "wall_area", "window_area"},
	"fekri2023": {"load", "day_of_year", "day_of_month", "week_of_year", "day_of_week", "hour"},
}

// optional are inputs that a dataset may lack: weather and what is known of meters.
var optional = []string{"temperature", "wind", "floor_area", "wall_area", "window_area"}

// Inputs returns the inputs of a plan: its own, or those of the model's paper as far
// as they are the load's and the calendar's or the data has them; and what of the
// paper's is missing.
func Inputs(p *fed.Plan, has []string) (names, missing []string) {
	if len(p.Model.Inputs) > 0 {
		return p.Model.Inputs, nil
	}
	for _, name := range paperInputs[p.Model.Name] {
		if slices.Contains(optional, name) && !slices.Contains(has, name) {
			missing = append(missing, name)
			continue
		}
		names = append(names, name)
	}
	return names, missing
}

// Frame looks at a dataset the way a plan that was read does. The dataset may be nil:
// then it has all inputs.
func Frame(p *fed.Plan, d *series.Dataset) (*Problem, error) {
	q := &Problem{}
	has := optional
	if d != nil {
		has = slices.Concat(d.Weather.Names, d.StaticNames)
	}
	var names []string
	names, q.Missing = Inputs(p, has)
	for _, s := range names {
		in, err := series.ParseInput(s)
		if err != nil {
			return nil, err
		}
		q.Inputs = append(q.Inputs, in)
	}
	var err error
	if d != nil {
		layout := series.Layout{Lookback: p.Model.Lookback, Horizon: p.Model.Horizon, Targets: p.Model.Targets, Inputs: q.Inputs}
		split := series.Split{Train: p.Model.Split.Train, Validation: p.Model.Split.Validation}
		if q.Framer, err = series.NewFramer(d, layout, split); err != nil {
			return nil, err
		}
	}
	if q.Loss, err = loss(p); err != nil {
		return nil, err
	}
	q.Outputs = q.Loss.Outputs(p.Model.Targets)
	q.Model, err = forecast.New(p.Model.Name, forecast.Shape{Lookback: p.Model.Lookback, Inputs: len(q.Inputs), Outputs: q.Outputs})
	if err != nil {
		return nil, err
	}
	q.Partition, err = q.Model.Partition(p.Partition)
	return q, err
}

// WriteShared writes shared weights of a version as .safetensors: a simulated run and a
// fleet's that agree write the same bytes.
func (q *Problem) WriteShared(w io.Writer, shared []float32, plan string, version int) error {
	whole := make([]float32, q.Model.Net().Weights())
	q.Partition.Join(whole, shared, make([]float32, q.Partition.PersonalLen()))
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
	return nil, fmt.Errorf("no loss %q", p.Model.Loss)
}
