package coordinator

import (
	"context"
	"fmt"
	"time"

	"loadstar/fed/recipe"
	"loadstar/server/terms"
)

// start trains a run's initial weights on the server's data. It runs in the background, because
// it can take hours and other runs must not wait. Repeating it after an interruption gives
// bit-identical results. Once the run has begun, the weights are stored as version 0.
type start struct {
	run string
	// plan is the settled plan without the parts that depend on the fleet's size, because
	// clients that join in the meantime must not restart the training.
	plan    string
	cancel  context.CancelFunc
	done    chan struct{}
	weights []float32
	err     error
}

// startWeights returns the initial shared weights of a run, or nil if their training is not
// complete. It begins the training unless the initial weights of another run are being trained.
// An error ends the run.
func (d *driver) startWeights(ctx context.Context, t *terms.Terms, interval time.Duration) ([]float32, error) {
	p := *t.Plan
	p.Schedule.Cohort = 0
	text, err := recipe.Write(&p)
	if err != nil {
		return nil, fmt.Errorf("writing the plan: %w", err)
	}
	k := d.coordinator
	if s := k.start; s != nil && s.run == d.id && s.plan != string(text) {
		k.endStart()
	}
	switch s := k.start; {
	case s == nil:
		ctx, cancel := context.WithCancel(ctx)
		s = &start{run: d.id, plan: string(text), cancel: cancel, done: make(chan struct{})}
		k.start = s
		d.log.Info("training the first weights on the server's data", "steps", p.Server.StartSteps)
		k.trainings.Go(func() {
			defer close(s.done)
			s.weights, s.err = k.Data.TrainStart(ctx, t.Setup(), interval)
		})
		return nil, nil
	case s.run != d.id:
		return nil, nil // one training at a time
	default:
		select {
		case <-s.done:
		default:
			return nil, nil
		}
		if s.err != nil {
			k.endStart()
			if ctx.Err() != nil {
				return nil, nil // the coordinator is stopping
			}
		}
		return s.weights, s.err
	}
}

// endStart stops the training of a run's initial weights, and discards its state.
func (k *coordinator) endStart() {
	if k.start != nil {
		k.start.cancel()
		k.start = nil
	}
}
