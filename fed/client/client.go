// Package client implements a client's part of a round. It joins shared and personal weights,
// trains them, and splits them again, so an update can contain only shared weights. Both the
// agent and the simulator use it.
package client

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"loadstar/fed"
	"loadstar/fed/limit"
	"loadstar/forecast"
	"loadstar/nn"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// Job contains the parts of a plan that are the same for all of the plan's clients.
type Job struct {
	// Seed is the plan's seed. It selects examples of the server's own data.
	Seed uint64
	// Draws selects the clients' examples.
	Draws fed.Draws
	// Coarse means that the numbers sent with an update have two significant digits, and that
	// the loss covers a random half of the examples. Agents send only coarse numbers.
	Coarse    bool
	Model     *forecast.Model
	Partition forecast.Partition
	Loss      nn.Loss
	Targets   int // targets of an example
	Batch     int
	Needs     fed.Needs
	// Averaged means that the vectors of tasks and updates contain the shared weights, followed
	// by their moments.
	Averaged bool
	// Noise means that the trainer needs the noise of a client's load.
	Noise bool
	// Own means that a client stores its shared weights after a turn and begins its next turn
	// with them (bose2024, figure 4, lines 1 and 14). ScoreOwn means that the client is also
	// scored with its own shared weights.
	Own, ScoreOwn bool
	// Copy, if not nil, computes the shared weights that are stored after a turn. If Copy is
	// nil, the client stores the weights after training.
	Copy *Copy
}

// ownLen returns the number of values that a client stores for its own shared weights.
func (j *Job) ownLen() int {
	switch n := j.Partition.SharedLen(); {
	case !j.Own:
		return 0
	case j.Copy != nil:
		return 2 * n
	default:
		return n
	}
}

// Join writes all weights with which a client is scored to dst, given the server's shared
// weights and the client's stored state. first means that the client has not trained yet.
func (j *Job) Join(dst, shared, kept []float32, first bool) {
	j.Partition.Join(dst, j.scored(shared, kept, first), kept[:j.Partition.PersonalLen()])
}

// scored returns the shared weights with which a client is scored.
func (j *Job) scored(shared, kept []float32, first bool) []float32 {
	if j.ScoreOwn && !first {
		return kept[j.Partition.PersonalLen():][:j.Partition.SharedLen()]
	}
	return shared
}

// sharedLen returns the length of the vectors of tasks and updates.
func (j *Job) sharedLen() int {
	n := j.Partition.SharedLen()
	if j.Averaged {
		n *= 3
	}
	return n
}

// Worker trains clients, one at a time, with memory that it allocates once. Only one
// goroutine may use it at a time.
type Worker struct {
	job       *Job
	trainer   fed.LocalTrainer
	objective *objective
	turn      fed.Turn
	all       []int // indices of all examples, for Needs.Loss
	trained   time.Duration
}

// NewWorker returns a worker that uses the trainer t, which no other worker may use.
func NewWorker(j *Job, k *kernel.Set, t fed.LocalTrainer) *Worker {
	w := &Worker{
		job: j, trainer: t,
		objective: newObjective(j.Model, k, j.Loss, j.Targets, j.Batch),
		turn: fed.Turn{
			W: make([]float32, j.Model.Net().Weights()), Shared: spans(j.Partition.Shared()),
			Correction: spans(slices.DeleteFunc(j.Model.Correction(), func(l nn.Layer) bool { return l.Kind == nn.KindPReLU })),
		},
	}
	if j.Averaged {
		w.turn.Moments = make([]float32, 2*j.Partition.SharedLen())
	}
	return w
}

// spans returns the positions of layers in the flat weight vector. Adjacent layers form
// one span.
func spans(layers []nn.Layer) []fed.Span {
	var all []fed.Span
	for _, l := range layers {
		if n := len(all); n > 0 && all[n-1].Hi == l.Offset() {
			all[n-1].Hi += l.Len()
			continue
		}
		all = append(all, fed.Span{Lo: l.Offset(), Hi: l.Offset() + l.Len()})
	}
	return all
}

// Kept returns the number of floats that a client stores between rounds. They are its
// personal weights, its own shared weights if it may begin with them, and its trainer's
// state.
func (w *Worker) Kept() int {
	p := w.job.Partition
	return p.PersonalLen() + w.job.ownLen() + w.trainer.Kept(len(w.turn.W), p.SharedLen())
}

// Client is one client, or several clients with pooled readings.
type Client struct {
	ID   fed.ClientID
	Data []series.Examples
	// Kept is the client's state between rounds. First reports whether the client has not
	// trained yet; if so, only the personal weights in Kept are valid.
	Kept  []float32
	First bool
}

// Train trains a client for one round. It changes c.Kept, overwrites u and reuses u's
// slices.
func (w *Worker) Train(ctx context.Context, c *Client, t fed.Task, u *fed.Update) error {
	p := w.job.Partition
	if err := w.check(c, t); err != nil {
		return fmt.Errorf("client %s: %w", c.ID, err)
	}
	shared := p.SharedLen()
	personal, rest := c.Kept[:p.PersonalLen()], c.Kept[p.PersonalLen():]
	own, trainers := rest[:w.job.ownLen()], rest[w.job.ownLen():]
	begin := t.Shared
	if w.job.Own && !c.First {
		begin = own[:shared]
	}
	w.objective.setData(c.Data)
	p.Join(w.turn.W, begin[:shared], personal)
	*u = fed.Update{
		Client: c.ID, Version: t.Version, Claimed: w.objective.Len(),
		Delta: resize(u.Delta, len(t.Shared)), Control: resize(u.Control, len(t.Control)),
	}
	if w.job.Needs.Loss && !w.job.Needs.TrainedLoss {
		u.Loss = w.loss(c, &t)
	}
	turn := &w.turn
	turn.Task, turn.First, turn.Control = t, c.First, u.Control
	if w.job.Own && w.job.Copy != nil {
		turn.Task.Shared = begin // the task that a server with a copy for each client would send
	}
	turn.Kept = trainers
	if w.job.Noise {
		turn.Noise = noise(c.Data)
	}
	turn.Rand, turn.Division = w.job.Draws.Turn("train", &t, c.ID), w.job.Draws.Division(&t, w.objective.Len(), c.ID)
	start := time.Now()
	done, err := w.trainer.Train(ctx, w.objective, turn)
	w.trained += time.Since(start)
	if err != nil {
		return fmt.Errorf("client %s: %w", c.ID, err)
	}
	u.Steps, u.TrainLoss = done.Steps, done.Loss
	if w.job.Needs.TrainedLoss {
		u.Loss = w.loss(c, &t)
	}
	if math.IsNaN(u.Loss) || math.IsInf(u.Loss, 0) {
		return fmt.Errorf("client %s: the loss is %v: %w", c.ID, u.Loss, fed.ErrDiverged)
	}
	p.Cut(turn.W, u.Delta[:shared], personal)
	copy(u.Delta[shared:], turn.Moments)
	w.progress(u.Delta, own, begin, c.First)
	if w.job.Coarse {
		limit.Round(u)
	}
	limit.Apply(t.Limits, u)
	if w.job.Coarse {
		limit.RoundNorms(t.Limits, u)
	}
	c.First = false
	return nil
}

// progress replaces the weights in delta with their change in the turn, and sets the shared
// weights that the client stores. own and before may begin at the same address.
func (w *Worker) progress(delta, own, before []float32, first bool) {
	if !w.job.Own {
		for i, b := range before {
			delta[i] -= b
		}
		return
	}
	for i, b := range before {
		after := delta[i]
		delta[i] -= b
		if w.job.Copy == nil {
			own[i] = after
			continue
		}
		v := &own[len(before)+i]
		if first {
			*v = 0
		}
		own[i] = w.job.Copy.move(b, delta[i], v)
	}
}

// check returns an error if a task does not fit the plan, because tasks come from the network.
func (w *Worker) check(c *Client, t fed.Task) error {
	shared, control := w.job.sharedLen(), 0
	if w.job.Needs.Control {
		control = shared
	}
	switch {
	case len(t.Shared) != shared:
		return fmt.Errorf("the task has %d weights, want %d as in the plan", len(t.Shared), shared)
	case len(t.Control) != control:
		return fmt.Errorf("the task has %d control variates, want %d as in the plan", len(t.Control), control)
	case len(c.Kept) != w.Kept():
		return fmt.Errorf("the stored state has %d numbers, want %d as in the plan", len(c.Kept), w.Kept())
	}
	return nil
}

// Saturated reports whether nearly all forecasts of a random batch, with the weights of a task,
// are wrong in the same direction. The slope of a loss such as pinball is then the same for
// all examples, which makes an update a plain sum of inputs.
func (w *Worker) Saturated(c *Client, t fed.Task) (bool, error) {
	const share = 0.99
	if err := w.check(c, t); err != nil {
		return false, fmt.Errorf("client %s: %w", c.ID, err)
	}
	w.objective.setData(c.Data)
	w.job.Partition.Join(w.turn.W, t.Shared[:w.job.Partition.SharedLen()], c.Kept[:w.job.Partition.PersonalLen()])
	n, rng := w.objective.Len(), w.job.Draws.Turn("saturation", &t, c.ID)
	w.all = w.all[:0]
	for range min(w.job.Batch, n) {
		w.all = append(w.all, rng.IntN(n))
	}
	smaller, larger := w.objective.slopes(w.turn.W, w.all)
	return float64(max(smaller, larger)) > share*float64(len(w.all)*w.job.Model.Net().Outputs()), nil
}

// Weights returns all weights of the client after Train. They are valid until the next
// call of Train.
func (w *Worker) Weights() []float32 { return w.turn.W }

// Engine returns the total time spent on gradients and optimizer steps. It excludes the
// time for gathering examples.
func (w *Worker) Engine() time.Duration { return w.trained - w.objective.gathering }

// loss returns the loss of the client's current weights over all training examples. If the loss
// leaves an agent, it covers only a random half of the examples, because two losses over all
// examples, whose examples differ in one, would reveal the loss of that example.
func (w *Worker) loss(c *Client, t *fed.Task) float64 {
	n := w.objective.Len()
	w.all = w.all[:0]
	for i := range n {
		w.all = append(w.all, i)
	}
	if w.job.Coarse {
		w.job.Draws.Turn("loss", t, c.ID).Shuffle(n, func(i, j int) { w.all[i], w.all[j] = w.all[j], w.all[i] })
		n = (n + 1) / 2
	}
	return w.objective.Loss(w.turn.W, w.all[:n])
}

// noise returns the mean noise of a client's meters.
func noise(data []series.Examples) float64 {
	sum := 0.0
	for _, d := range data {
		sum += d.Noise()
	}
	return sum / float64(len(data))
}

func resize(x []float32, n int) []float32 {
	if cap(x) < n {
		return make([]float32, n)
	}
	return x[:n]
}
