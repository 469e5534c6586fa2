package forecast

import (
	"cmp"
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"loadstar/series"
)

// Backtest measures how well a baseline would have forecast historical data.
type Backtest struct {
	Dataset *series.Dataset
	// Horizon is the number of steps from the newest known load to the first target.
	// Targets is the number of consecutive steps to forecast.
	Horizon, Targets int
	// Lookback is the number of hours before the cutoff in which the load must be complete for a
	// window to be used; 0 means 168, a week. All baselines have the same Lookback, so that they
	// forecast the same windows.
	Lookback int
	// Stride is the number of steps between the scored origins. An origin is scored if its
	// next step, counted from the start of the series, is a multiple of Stride. 0 means 1.
	Stride int
	Split  series.Split
	// Part is the split to score. Baselines are fitted to the training split, so only the
	// other splits show how well they forecast unseen data.
	Part series.Part
	// Reference is the forecast to which the relative MAE refers.
	Reference Reference
	// Workers is the number of clients to process at the same time; 0 means 1.
	Workers int
	// Clients are the indices of the clients to backtest, in ascending order; nil means all.
	Clients []int
	// Concurrent means that Run may call its function for several clients at the same time. The
	// calls for one client are still made in chronological order, by one goroutine.
	Concurrent bool
}

// Run backtests a baseline on every client, in order. If each is not nil, Run calls it with
// every forecast: client by client in chronological order, unless Concurrent is set. A client
// without targets has no scores; this is not an error.
func (b Backtest) Run(ctx context.Context, baseline string, each func(Forecast) error) ([]ClientScore, error) {
	lookback := cmp.Or(b.Lookback, 7*24)
	frame, err := series.NewFramer(b.Dataset, series.Layout{
		Lookback: max(lookback*b.Dataset.StepsPerDay()/24, 1), Horizon: b.Horizon, Targets: b.Targets, Inputs: []series.Input{{Name: "load"}},
	}, b.Split)
	if err != nil {
		return nil, err
	}
	if _, err := NewBaseline(baseline); err != nil {
		return nil, err
	}
	if err := b.Reference.check(); err != nil {
		return nil, err
	}
	clients := b.Clients
	if clients == nil {
		for i := range b.Dataset.Len() {
			clients = append(clients, i)
		}
	}
	scores := make([]ClientScore, len(clients))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(b.Workers, 1))
	if each != nil && !b.Concurrent {
		g.SetLimit(1) // calls each in order, without a buffer
	}
	for i := range scores {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			model, err := NewBaseline(baseline)
			if err != nil {
				return err
			}
			scores[i], err = b.client(frame, model, b.Dataset.Meter(clients[i]), each)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, context.Cause(ctx) // the first failure, or why ctx was cancelled
	}
	return scores, nil
}

// client backtests the baseline on one client. If the training split has too few complete
// examples to fit the baseline, all windows are skipped.
func (b Backtest) client(frame *series.Framer, model Baseline, m series.Meter, each func(Forecast) error) (ClientScore, error) {
	t := newTally(frame, m, b.Reference, each)
	windows := frame.Windows(m, nil)
	if windows.Len(b.Part) == 0 {
		return t.score, nil
	}
	err := model.Fit(Client{Frame: frame, Meter: m})
	fitted := !errors.Is(err, errTooFew) // such a client must not end the backtest of a fleet
	if err != nil && fitted {
		return t.score, err
	}
	out := make([]float64, b.Targets)
	err = windows.Each(b.Part, func(last int) error {
		if !onStride(last, b.Stride) {
			return nil
		}
		if !fitted || !model.Forecast(out, last) {
			t.score.Skipped++
			return nil
		}
		return t.add(last, out)
	})
	return t.score, err
}
