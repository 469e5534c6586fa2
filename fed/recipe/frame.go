package recipe

import (
	"fmt"
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

// Frame looks at a dataset the way a plan that was read does. The dataset may be nil:
// then it has all inputs.
func Frame(p *fed.Plan, d *series.Dataset) (*Problem, error) {
	q := &Problem{}
	names := p.Model.Inputs
	if len(names) == 0 {
		for _, name := range paperInputs[p.Model.Name] {
			if d != nil && slices.Contains(optional, name) && !slices.Contains(d.Weather.Names, name) && !slices.Contains(d.StaticNames, name) {
				q.Missing = append(q.Missing, name)
				continue
			}
			names = append(names, name)
		}
	}
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
