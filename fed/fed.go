// Package fed contains the types of federated training: what a client receives and returns,
// and the small interfaces that algorithms implement. The algorithms are in its subpackages,
// one file each, and fed/recipe composes them under the names of their papers.
//
// A client's weights are one flat vector. A partition splits it into shared weights,
// which are sent, and personal weights, which never leave the client. A server sends a
// [Task] with the shared weights of one version. A client trains and returns an [Update],
// the change of the shared weights. An [Aggregator] combines the updates of a merge into
// one displacement. A [ServerOptimizer] moves the shared weights by the displacement,
// which gives the next version.
//
// No code here has its own clock or source of randomness. Time is an argument, measured from
// the start of the run. Random numbers come from [Rand] or, if they select a client's examples,
// from [Draws]. They depend on their purpose and never on the order of events.
package fed

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"loadstar/fed/exact"
)

// ErrDiverged reports that a weight, loss or gradient became infinite or NaN in training.
var ErrDiverged = errors.New("training diverges: lower a learning rate, or check the data for outliers")

// ClientID names one meter or building. One agent may host many clients.
type ClientID string

// Span is a range [Lo, Hi) of the flat weight vector.
type Span struct{ Lo, Hi int }

// Task is what a client receives. All clients that receive the same version share its slices,
// so no client may change them.
type Task struct {
	// Run names the run in a fleet. It is empty in a simulation.
	Run string
	// Round is the number of the round. The server never sends a client the same round
	// twice, because a client draws the same examples for the same task.
	Round int
	// Version is the version of Shared.
	Version int
	Shared  []float32
	// Control is SCAFFOLD's server control variate, or nil.
	Control []float32
	// Limits bounds the update. Both the client and the server apply the limits.
	Limits Limits
}

// Limits bounds the contribution of one update. Each version of the shared weights has its own
// limits. 0 means no limit.
type Limits struct {
	// Norm is the largest Euclidean norm of Update.Delta. Control is the largest
	// norm of Update.Control. A longer vector is scaled down.
	Norm, Control float64
	// Coordinate is the largest magnitude of a number in Update.Delta. Larger numbers are
	// clipped to this magnitude before the norm is limited.
	Coordinate float64
	// Examples and Loss cap the claimed number of examples and the loss.
	Examples int64
	Loss     float64
}

// Update is the result of a client's turn. Nothing else leaves the client.
type Update struct {
	Client ClientID
	// Version is the version of the weights from which the client trained.
	Version int
	// Examples is the number of training examples with which the update is counted, after the
	// limits are applied. Claimed is the number before the limits.
	Examples, Claimed int
	// Delta is the shared weights after training minus those before training, so a server adds
	// it to its weights. Training begins with the received weights, unless the plan lets clients
	// begin with their own.
	Delta []float32
	// Control is the change of the client's control variate, if Needs.Control is set.
	Control []float32
	// Loss, if Needs.Loss is set, is the loss on the client's training examples: the loss of the
	// trained weights if Needs.TrainedLoss is also set, and otherwise the loss of the received
	// weights.
	Loss float64
	// TrainLoss is the mean loss over the batches that the client trained on. It is only
	// displayed.
	TrainLoss float64
	// Steps is the number of gradients that the client computed.
	Steps int
	// Norm and ControlNorm are the Euclidean norms of Delta and Control.
	Norm, ControlNorm float64
}

// Objective is the function that a client minimises. It is the mean loss of a model over
// the client's training examples, as a function of all weights. Only one worker may use it.
type Objective interface {
	// Len returns the number of examples.
	Len() int
	// Gradient overwrites g with the gradient, at w, of the mean loss over the given examples,
	// and returns that mean loss. The number of examples is at most the plan's batch size.
	Gradient(g, w []float32, examples []int) float64
	// Loss returns the mean loss at w over any number of examples.
	Loss(w []float32, examples []int) float64
}

// Turn is one client's part of one round, as seen by its trainer. Its slices belong to the
// worker and are valid until Train returns.
type Turn struct {
	Task Task
	// W contains all weights: the received shared weights and the client's personal weights. If
	// the plan lets clients begin with their own shared weights, W contains these instead of the
	// received ones. The trainer changes W in place.
	W []float32
	// Shared lists the positions of the shared weights in W, in the order of Task.Shared.
	Shared []Span
	// Kept is the state that the trainer stores for this client between rounds. First reports
	// whether Kept has no state yet.
	Kept  []float32
	First bool
	// Control receives the change of the client's control variate, if Needs.Control is
	// set.
	Control []float32
	// Moments receives the optimizer's two moments of the shared weights, if the plan
	// averages them. Task.Shared then contains the received moments after the weights.
	Moments []float32
	// Correction lists the positions in W of the matrices and biases of the correction
	// layers, which adapt a shared forecast to a client. It is empty if the model has none.
	Correction []Span
	// Noise is the irregularity of the client's load: the mean absolute change from step to
	// step, divided by the standard deviation. It is set only if the plan needs it.
	Noise float64
	// Before the optimizer begins, the trainer sets Steps, the number of optimizer
	// steps in this turn, and Done, the number of steps that led to the received
	// weights.
	Steps, Done int
	// Half, if not nil, receives the weights after half of the steps.
	Half []float32
	// Rand is the random source for sampling batches. Division is the random source for dividing
	// the examples into a support set and a query set, and is the same in every round.
	Rand, Division *rand.Rand
}

// Trained contains the numbers that a trainer reports after a turn.
type Trained struct {
	Steps int     // number of gradients computed
	Loss  float64 // mean loss over these gradients' batches, each with the weights of its step
}

// LocalTrainer trains clients, each for one round. Only one goroutine may use it at a time. It
// can train any number of clients in succession. Turn.Kept is the only state that passes from
// one turn to the next.
type LocalTrainer interface {
	// Kept returns the number of floats to store for each client, given its number of
	// weights and how many of them are shared.
	Kept(weights, shared int) int
	// Train changes t.W. The client sends the change of the shared weights in t.W. A weight or a loss that is not finite is an error.
	Train(ctx context.Context, o Objective, t *Turn) (Trained, error)
}

// ClientOptimizer takes the gradient steps of a turn. As with a LocalTrainer, only one
// goroutine may use it at a time, and only Turn.Kept passes state from one turn to the next.
type ClientOptimizer interface {
	// Kept returns the number of floats to store for each client, as in LocalTrainer.
	Kept(weights, shared int) int
	// Begin starts a turn. The optimizer may retain t until End.
	Begin(t *Turn)
	// Step moves w against the gradient g and may overwrite g.
	Step(w, g []float32)
	// End completes a turn and writes t.Kept, t.Control and t.Moments.
	End(t *Turn)
}

// Needs lists an aggregator's requirements. If a plan cannot meet them, reading it is an error.
type Needs struct {
	EachUpdate bool // every individual update, not only sums
	Loss       bool // Update.Loss
	// TrainedLoss means that Update.Loss is the loss of the weights after training.
	TrainedLoss bool
	Control     bool // control variates in tasks and updates
	ServerData  bool // gradients on the server's own data
}

// Sums is the exact sum of the updates that were trained from one version.
type Sums struct {
	Version int
	Delta   *exact.Sum
	Control *exact.Sum // nil unless Needs.Control is set
}

// Received is an update together with the shared weights from which the client trained.
type Received struct {
	Update
	// From is the shared weights from which the client trained.
	From []float32
}

// Merge is the input of an aggregator, which must not change it or retain any part of it.
type Merge struct {
	// Round is the number of the round, counted from 0 and including abandoned rounds.
	Round int
	// Version is the version of Shared, the weights to which the displacement will be
	// applied.
	Version int
	Shared  []float32
	// Fleet is the number of clients that can be asked to train.
	Fleet int
	// Sums has at least one element, in ascending order of version.
	Sums []Sums
	// Updates has at least one element, in ascending order of client and version, if
	// Needs.EachUpdate is set. Otherwise it is empty.
	Updates []Received
	// Server is nil unless Needs.ServerData is set.
	Server ServerData
}

// ServerData is the loss on a batch of the server's data, as a function of the shared
// weights. The batch is the same throughout one merge.
type ServerData interface {
	// Gradient overwrites g with the gradient at the given shared weights.
	Gradient(g, shared []float32) error
}

// Aggregator combines the updates of a merge into one displacement of the shared weights.
// If it has state between merges, it implements encoding.BinaryMarshaler and
// encoding.BinaryUnmarshaler.
type Aggregator interface {
	Needs() Needs
	// Aggregate overwrites dst with the displacement. Equal merges and equal state give
	// bit-identical results.
	Aggregate(dst []float64, m *Merge) error
}

// Starter is an Aggregator that adds data to every Task.
type Starter interface {
	// Start adds the data to a task that already has its shared weights. Later merges do
	// not change the added data.
	Start(t *Task)
}

// ServerOptimizer moves the shared weights by a displacement, which it treats as a
// negative gradient. If it has state, it implements the same encoding interfaces as an
// Aggregator.
type ServerOptimizer interface {
	Step(shared []float32, d []float64)
}

// Situation is the input of a Scheduler. Times are measured from the start of the run.
type Situation struct {
	Now    time.Duration
	Opened time.Duration // time at which the current round was opened
	// Asked is the number of clients asked in this round. Running is the number of clients, of
	// this and earlier rounds, that have neither returned nor been lost. Waiting is the number
	// of counted updates that have not been merged yet. Lost is the number of clients of this
	// round that will not return.
	Asked, Running, Waiting, Lost int
}

// Decision is a scheduler's decision on the current round.
type Decision int

// Wait keeps the round open. MergeNow merges the waiting updates and opens the next
// round. Abandon closes the round without a merge and opens the next one.
const (
	Wait Decision = iota
	MergeNow
	Abandon
)

// Scheduler decides how many clients to ask and when to merge their updates. It is a pure
// function of the situation.
type Scheduler interface {
	// Ask returns the number of additional clients to ask now.
	Ask(s Situation) int
	// Decide returns the decision for the current round. It is called once all simultaneous
	// events have been processed.
	Decide(s Situation) Decision
	// Wake returns the time at which Decide must be called even if nothing has happened by then.
	Wake(s Situation) (at time.Duration, ok bool)
	// Carries reports whether a client that is still training when a round closes may return
	// its update in a later round. Otherwise, the late update is rejected.
	Carries() bool
}
