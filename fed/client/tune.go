package client

import (
	"context"
	"fmt"
	"math"

	"loadstar/fed"
	"loadstar/nn/kernel"
)

// Tuner determines the weights with which a client forecasts after the last round. It trains
// them on the client's data and, if the plan requires it, chooses the candidate with the best
// score. Only one goroutine may use it at a time.
type Tuner struct {
	job *Job
	// stored describes the state of clients, which differs from the worker's state if
	// clients store their own shared weights.
	stored Job
	// worker fine-tunes. It is nil if the plan does not fine-tune.
	worker *Worker
	choose bool

	before, mixed, best, half []float32
	kept                      []float32
	update                    fed.Update
}

// NewTuner returns a tuner that trains with t, which no other worker may use. If t is nil, the
// tuner does not train. If choose is true, it chooses the weights by their score.
func NewTuner(j *Job, k *kernel.Set, t fed.LocalTrainer, choose bool) *Tuner {
	own := *j
	own.Needs = fed.Needs{} // updates of fine-tuning are not aggregated
	own.Own = false         // the task determines where fine-tuning begins
	n := j.Model.Net().Weights()
	x := &Tuner{job: &own, stored: *j, choose: choose, before: make([]float32, n)}
	if t != nil {
		x.worker = NewWorker(&own, k, t)
		x.kept = make([]float32, x.worker.Kept())
	}
	if choose {
		x.mixed, x.best = make([]float32, n), make([]float32, n)
		if t != nil {
			x.half = make([]float32, n)
			x.worker.turn.Half = x.half
		}
	}
	return x
}

// shares are the points between the weights before fine-tuning (0) and after it (1) at which a
// tuner scores interpolated weights.
var shares = []float32{0, 0.25, 0.5, 0.75, 1}

// Tune returns the weights of a client, valid until the next call. The task contains the
// shared vector of the last version. c.Kept contains the client's state after its last
// round, which Tune does not change. Tune continues the moments that the trainer keeps
// between rounds.
//
// If the tuner chooses, the candidates are interpolations between the weights before and after
// fine-tuning, the weights after half of the steps, and the weights in earlier. Tune returns
// the first candidate with the lowest score or, if every score is NaN, the weights after
// fine-tuning. If the tuner does not choose, score is not called.
func (x *Tuner) Tune(ctx context.Context, c *Client, t fed.Task, earlier [][]float32, score func(w []float32) (float64, error)) ([]float32, error) {
	p := x.job.Partition
	personal := p.PersonalLen()
	least := personal + x.stored.ownLen()
	if len(t.Shared) != x.job.sharedLen() || len(c.Kept) < least {
		return nil, fmt.Errorf("client %s: %d shared and %d stored numbers, want %d and at least %d as in the plan", c.ID, len(t.Shared), len(c.Kept), x.job.sharedLen(), least)
	}
	t.Shared = x.stored.scored(t.Shared, c.Kept, c.First)
	p.Join(x.before, t.Shared[:p.SharedLen()], c.Kept[:personal])
	after := x.before
	if x.worker != nil {
		own := Client{ID: c.ID, Data: c.Data, Kept: x.kept, First: true}
		clear(x.kept)
		copy(x.kept, c.Kept[:personal])
		if state := c.Kept[least:]; len(state) == len(x.kept)-personal {
			own.First = c.First
			copy(x.kept[personal:], state)
		} // other states, such as control variates, are useless for this optimizer
		if err := x.worker.Train(ctx, &own, t, &x.update); err != nil {
			return nil, err
		}
		after = x.worker.Weights()
	}
	if !x.choose {
		return after, nil
	}
	return x.pick(after, earlier, score)
}

// pick returns the candidate with the lowest score.
func (x *Tuner) pick(after []float32, earlier [][]float32, score func(w []float32) (float64, error)) ([]float32, error) {
	lowest := math.NaN()
	try := func(w []float32) error {
		s, err := score(w)
		if err == nil && (s < lowest || math.IsNaN(lowest) && !math.IsNaN(s)) {
			lowest = s
			copy(x.best, w)
		}
		return err
	}
	copy(x.best, after)
	candidates := earlier
	if x.worker == nil {
		candidates = append([][]float32{x.before}, candidates...)
	} else {
		for _, a := range shares {
			for i, b := range x.before {
				x.mixed[i] = b + float32(a*float32(after[i]-b))
			}
			if a == 1 {
				copy(x.mixed, after)
			}
			if err := try(x.mixed); err != nil {
				return nil, err
			}
		}
		candidates = append([][]float32{x.half}, candidates...)
	}
	for _, w := range candidates {
		if err := try(w); err != nil {
			return nil, err
		}
	}
	return x.best, nil
}
