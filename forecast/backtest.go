package forecast

import (
	"context"
	"sync"
	"time"

	"loadstar/metric"
	"loadstar/series"
)

// Backtest is a question to the past: how well would a baseline have forecast?
type Backtest struct {
	Dataset *series.Dataset
	// Horizon is how many steps after the newest known load the first target
	// lies, and Targets how many are forecast from there on.
	Horizon, Targets int
	Split            series.Split
	// Part is what is scored. Everything is fitted to the training part, so only
	// the test part tells about the future.
	Part series.Part
	// Workers is how many clients are done at a time; 0 means 1.
	Workers int
}

// Forecast is one forecast value with what became of it.
type Forecast struct {
	Client   string
	Cutoff   time.Time // the end of the newest known interval
	Time     time.Time // the start of the forecast interval
	Forecast float64
	Actual   float64
}

// ClientScore is what a backtest says of one client.
type ClientScore struct {
	ID string
	// Overall is over all targets, Steps over each distance of them.
	Overall metric.Point
	Steps   []metric.Point
	// Skipped counts the examples that the baseline could not forecast.
	Skipped int
}

// Run backtests a baseline on every client, in order. It calls each with every
// forecast, client by client and in order of time, unless each is nil, and keeps
// none. A client without a single target has no scores, and no error.
func (b Backtest) Run(ctx context.Context, baseline string, each func(Forecast) error) ([]ClientScore, error) {
	frame, err := series.NewFramer(b.Dataset, series.Layout{
		Lookback: 1, Horizon: b.Horizon, Targets: b.Targets, Inputs: []series.Input{{Name: "load"}},
	}, b.Split)
	if err != nil {
		return nil, err
	}
	if _, err := NewBaseline(baseline); err != nil {
		return nil, err
	}
	scores := make([]ClientScore, b.Dataset.Len())
	workers := min(max(b.Workers, 1), max(b.Dataset.Len(), 1))
	if each != nil {
		workers = 1 // in order, without keeping what comes early
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			model, _ := NewBaseline(baseline)
			for i := range next {
				s, err := b.client(frame, model, b.Dataset.Meter(i), each)
				if err != nil {
					cancel(err)
					return
				}
				scores[i] = s
			}
		})
	}
feed:
	for i := range scores {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return scores, nil
}

// client backtests one client.
func (b Backtest) client(frame *series.Framer, model Baseline, m series.Meter, each func(Forecast) error) (ClientScore, error) {
	t := newTally(frame, m, each)
	windows := frame.Windows(m, nil)
	if windows.Len(b.Part) == 0 {
		return t.score, nil
	}
	if err := model.Fit(Client{Frame: frame, Meter: m}); err != nil {
		return t.score, err
	}
	out := make([]float64, b.Targets)
	err := windows.Each(b.Part, func(last int) error {
		if !model.Forecast(out, last) {
			t.score.Skipped++
			return nil
		}
		return t.add(last, out)
	})
	return t.score, err
}
