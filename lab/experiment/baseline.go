package experiment

import (
	"context"
	"math"
	"slices"
	"strings"

	"loadstar/fed"
	"loadstar/forecast"
	"loadstar/lab/backtest"
	"loadstar/lab/run"
	"loadstar/metric"
	"loadstar/series"
)

// Scored contains the scores of a baseline.
type Scored struct {
	Method string
	Fleet  metric.Fleet
	errors []clientErrors
	// mae contains the errors by client. reference contains the reference's errors on the same
	// targets.
	mae, reference map[string]float64
}

// Baselines backtests baselines on a dataset, with the horizon, targets and split of the
// plan. It writes each baseline's scores for each client into the folder dir.
func Baselines(ctx context.Context, d *series.Dataset, p *fed.Plan, names []string, workers int, dir string) ([]Scored, error) {
	b := backtest.Of(d, p, workers)
	var (
		all  []Scored
		rows []run.Baseline
	)
	for _, name := range names {
		days := map[string]*run.Days{}
		scores, err := b.Run(ctx, name, func(f forecast.Forecast) error {
			if days[f.Client] == nil {
				days[f.Client] = &run.Days{}
			}
			days[f.Client].Add(f.Time, math.Abs(f.Forecast-f.Actual))
			return nil
		})
		if err != nil {
			return nil, err
		}
		one := Scored{Method: name, mae: map[string]float64{}, reference: map[string]float64{}}
		var clients []metric.Scores
		for _, s := range scores {
			p := &s.Overall
			clients = append(clients, p.Scores())
			one.mae[s.ID], one.reference[s.ID] = p.MAE(), p.MAE()/p.RelativeMAE()
			if d := days[s.ID]; d != nil {
				one.errors = append(one.errors, clientErrors{s.ID, slices.Collect(d.Rows(s.ID))})
			}
			rows = append(rows, run.Baseline{Method: name, Client: s.ID, MAE: p.MAE(), RMSE: p.RMSE(), NMAE: p.NMAE(), RelativeMAE: p.RelativeMAE(), Reference: string(s.Reference)})
		}
		one.Fleet = metric.NewFleet(clients)
		slices.SortFunc(one.errors, func(a, b clientErrors) int { return strings.Compare(a.client, b.client) })
		all = append(all, one)
	}
	if len(rows) == 0 {
		return nil, nil
	}
	return all, run.WriteBaselines(dir, rows)
}
