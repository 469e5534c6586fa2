package serve

import (
	"context"
	"errors"
	"fmt"

	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/recipe"
	"loadstar/forecast"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// FitSteps is the usual number of steps for fitting personal layers.
const FitSteps = 200

const (
	// heldDays is the number of days that are held back to judge fitted layers.
	heldDays = 14
	// fitBatch is the batch size for plans that have none.
	fitBatch = 64
	// scoredOrigins limits the origins at which fitted layers are judged.
	scoredOrigins = 128
)

// Fitted contains the mean losses on held-back readings before and after fitting the
// personal layers.
type Fitted struct{ Before, After float64 }

// Better reports whether fitting lowered the loss on the held-back readings.
func (f Fitted) Better() bool { return f.After < f.Before }

// Fit fits personal layers for a meter on its own readings before a cutoff. The shared layers
// do not change. The last 14 days before the cutoff are held back for the comparison. from
// contains the initial personal weights; nil means the model's own initial weights. The error
// is ErrShort if there are too few readings.
func (m *Model) Fit(ctx context.Context, d *series.Dataset, meter int, cutoff int64, from []float32, steps int) (Client, Fitted, error) {
	c, fitted, err := m.fit(ctx, d, meter, cutoff, from, steps)
	if err != nil {
		err = fmt.Errorf("meter %s: %w", d.Meter(meter).ID, err)
	}
	return c, fitted, err
}

func (m *Model) fit(ctx context.Context, d *series.Dataset, meter int, cutoff int64, from []float32, steps int) (c Client, fitted Fitted, err error) {
	part := m.Problem.Partition
	if part.PersonalLen() == 0 || part.SharedLen() == 0 {
		return c, fitted, fmt.Errorf("the model has no personal layers to fit, or no shared layers to which they could be fitted")
	}
	own, err := one(d, meter, cutoff)
	if err != nil {
		return c, fitted, err
	}
	series1 := own.Meter(0)
	held := float64(heldDays*own.StepsPerDay()) / float64(len(series1.Load))
	if len(series1.Load) == 0 || held >= 1 {
		return c, fitted, ErrShort
	}
	split := fed.Split{Train: 1 - held, Validation: held}
	q, err := m.split(own, split)
	if err != nil {
		return c, fitted, err
	}
	if c.Scaling, err = m.scaling(own, split); err != nil {
		return c, fitted, err
	}
	data := q.Frozen(series1, c.Scaling)
	if data.Len(series.Train) == 0 || data.Len(series.Validation) == 0 {
		return c, fitted, ErrShort
	}
	if from == nil {
		from = make([]float32, part.PersonalLen())
		part.Cut(m.Problem.Model.InitialWeights(m.Plan.Seed), make([]float32, part.SharedLen()), from)
	}
	if c.Weights, err = m.join(from); err != nil {
		return c, fitted, err
	}
	scorer := forecast.NewScorer(m.Problem.Model, m.kernel, m.Problem.Loss)
	if _, fitted.Before, err = scorer.Score(c.Weights, series1, data, series.Validation, scoredOrigins, nil); err != nil {
		return c, fitted, err
	}
	personal, err := FitTo(ctx, m.Plan, m.Problem, m.kernel, m.shared, data, fed.ClientID(series1.ID), from, steps)
	if err != nil {
		return c, fitted, err
	}
	if c.Weights, err = m.join(personal); err != nil {
		return c, fitted, err
	}
	_, fitted.After, err = scorer.Score(c.Weights, series1, data, series.Validation, scoredOrigins, nil)
	return c, fitted, err
}

// FitTo fits a client's personal layers to examples without changing the shared layers. from
// contains the initial personal weights. FitTo returns the fitted weights.
func FitTo(ctx context.Context, plan *fed.Plan, q *recipe.Problem, k *kernel.Set, shared []float32, data series.Examples, id fed.ClientID, from []float32, steps int) ([]float32, error) {
	if steps < 1 {
		return nil, errors.New("fitting needs at least 1 step")
	}
	p := *plan
	if p.Client.Batch < 1 {
		p.Client.Batch = fitBatch
	}
	job := &client.Job{
		Seed: p.Seed, Draws: fed.Seeded(p.Seed), Model: q.Model, Partition: q.Partition, Loss: q.Loss,
		Targets: q.PerExample(), Batch: p.Client.Batch, Noise: p.Client.WeightDecay.Correction > 0,
	}
	worker := client.NewWorker(job, k, recipe.NewFitter(&p, k, steps))
	c := &client.Client{ID: id, Data: []series.Examples{data}, Kept: make([]float32, worker.Kept()), First: true}
	n := copy(c.Kept, from)
	var u fed.Update
	if err := worker.Train(ctx, c, fed.Task{Shared: shared}, &u); err != nil {
		return nil, err
	}
	return c.Kept[:n], nil
}
