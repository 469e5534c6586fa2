package experiment

import (
	"context"

	"loadstar/fed"
	"loadstar/forecast"
	"loadstar/lab/run"
	"loadstar/metric"
	"loadstar/series"
)

// Baselines backtests baselines on a dataset, with the horizon, targets and split of the
// plan. It writes each baseline's scores for each client into the folder dir.
func Baselines(ctx context.Context, d *series.Dataset, p *fed.Plan, names []string, workers int, dir string) ([]metric.Fleet, error) {
	b := forecast.Backtest{
		Dataset: d, Horizon: p.Model.Horizon, Targets: p.Model.Targets, Part: series.Test, Workers: workers,
		Reference: forecast.Reference(p.Evaluate.Reference),
		Split:     series.Split{Train: p.Model.Split.Train, Validation: p.Model.Split.Validation},
	}
	var (
		fleets []metric.Fleet
		rows   []run.Baseline
	)
	for _, name := range names {
		scores, err := b.Run(ctx, name, nil)
		if err != nil {
			return nil, err
		}
		var all []metric.Scores
		for _, s := range scores {
			p := &s.Overall
			all = append(all, p.Scores())
			rows = append(rows, run.Baseline{Method: name, Client: s.ID, MAE: p.MAE(), RMSE: p.RMSE(), NMAE: p.NMAE(), RelativeMAE: p.RelativeMAE(), Reference: string(s.Reference)})
		}
		fleets = append(fleets, metric.NewFleet(all))
	}
	if len(rows) == 0 {
		return nil, nil
	}
	return fleets, run.WriteBaselines(dir, rows)
}
