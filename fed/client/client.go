// Package client is one client's part of a round: shared and personal weights are
// joined, trained, and cut apart again, so that an update can only ever hold the
// shared ones. Agent and simulator both run it.
package client

import (
	"context"
	"fmt"
	"time"

	"loadstar/fed"
	"loadstar/forecast"
	"loadstar/nn"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// Job is what all clients of a plan have in common.
type Job struct {
	Seed      uint64
	Model     *forecast.Model
	Partition forecast.Partition
	Loss      nn.Loss
	Targets   int
	Batch     int
	Needs     fed.Needs
}

// Worker does clients' turns, one at a time, with memory that it allocates once. It
// is used by one goroutine at a time.
type Worker struct {
	job       *Job
	trainer   fed.LocalTrainer
	objective *objective
	turn      fed.Turn
	all       []int // numbers of examples, for Needs.Loss
	trained   time.Duration
}

// NewWorker returns a worker with a trainer of its own.
func NewWorker(j *Job, k *kernel.Set, t fed.LocalTrainer) *Worker {
	return &Worker{
		job: j, trainer: t,
		objective: newObjective(j.Model, k, j.Loss, j.Targets, j.Batch),
		turn:      fed.Turn{W: make([]float32, j.Model.Net().Weights()), Shared: spans(j.Partition)},
	}
}

// spans returns where the shared weights lie; layers side by side are one span.
func spans(p forecast.Partition) []fed.Span {
	var all []fed.Span
	for _, l := range p.Shared() {
		if n := len(all); n > 0 && all[n-1].Hi == l.Offset() {
			all[n-1].Hi += l.Len()
			continue
		}
		all = append(all, fed.Span{Lo: l.Offset(), Hi: l.Offset() + l.Len()})
	}
	return all
}

// Kept returns how many floats a client keeps from one round to the next: its
// personal weights, and behind them what the trainer keeps.
func (w *Worker) Kept() int {
	p := w.job.Partition
	return p.PersonalLen() + w.trainer.Kept(len(w.turn.W), p.SharedLen())
}

// Client is one client, or several whose readings are pooled.
type Client struct {
	ID   fed.ClientID
	Data []*series.Windows
	// Kept is what the client keeps. First says that it has not trained yet: then
	// only its personal weights mean something.
	Kept  []float32
	First bool
}

// Train does a client's turn: it changes c.Kept, and overwrites u, whose slices it
// uses again.
func (w *Worker) Train(ctx context.Context, c *Client, t fed.Task, u *fed.Update) error {
	p := w.job.Partition
	if err := w.check(c, t); err != nil {
		return fmt.Errorf("client %s: %w", c.ID, err)
	}
	personal := c.Kept[:p.PersonalLen()]
	w.objective.setData(c.Data)
	p.Join(w.turn.W, t.Shared, personal)
	*u = fed.Update{
		Client: c.ID, Version: t.Version, Examples: w.objective.Len(),
		Delta: resize(u.Delta, len(t.Shared)), Control: resize(u.Control, len(t.Control)),
	}
	if w.job.Needs.Loss {
		u.Loss = w.receivedLoss()
	}
	turn := &w.turn
	turn.Task, turn.First, turn.Control = t, c.First, u.Control
	turn.Kept = c.Kept[p.PersonalLen():]
	turn.Rand = fed.Rand(w.job.Seed, "train", t.Round, c.ID)
	start := time.Now()
	done, err := w.trainer.Train(ctx, w.objective, turn)
	w.trained += time.Since(start)
	if err != nil {
		return fmt.Errorf("client %s: %w", c.ID, err)
	}
	u.Steps, u.TrainLoss = done.Steps, done.Loss
	p.Cut(turn.W, u.Delta, personal)
	for i, received := range t.Shared {
		u.Delta[i] -= received
	}
	c.First = false
	return nil
}

// check refuses a task that is not of this plan: it came from elsewhere.
func (w *Worker) check(c *Client, t fed.Task) error {
	shared, control := w.job.Partition.SharedLen(), 0
	if w.job.Needs.Control {
		control = shared
	}
	switch {
	case len(t.Shared) != shared:
		return fmt.Errorf("a task of %d weights, the plan shares %d", len(t.Shared), shared)
	case len(t.Control) != control:
		return fmt.Errorf("a task of %d control variates, the plan has %d", len(t.Control), control)
	case len(c.Kept) != w.Kept():
		return fmt.Errorf("it keeps %d numbers, the plan has %d", len(c.Kept), w.Kept())
	}
	return nil
}

// Weights returns a client's whole weights after Train, until the next call of it.
func (w *Worker) Weights() []float32 { return w.turn.W }

// Engine returns the time that went into gradients and optimizers' steps so far:
// all of the training but for gathering examples.
func (w *Worker) Engine() time.Duration { return w.trained - w.objective.gathering }

// receivedLoss returns the loss of the received weights over the whole training part.
func (w *Worker) receivedLoss() float64 {
	for i := len(w.all); i < w.objective.Len(); i++ {
		w.all = append(w.all, i)
	}
	return w.objective.Loss(w.turn.W, w.all[:w.objective.Len()])
}

func resize(x []float32, n int) []float32 {
	if cap(x) < n {
		return make([]float32, n)
	}
	return x[:n]
}
