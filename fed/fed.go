// Package fed is the vocabulary of federated training: what a client receives and
// returns, and the small interfaces that the algorithms fill. It holds no
// algorithm; those are in the packages below it, a file each, and fed/recipe
// puts them together under the names of the papers.
//
// A client's weights are one flat vector. A partition splits it into shared
// weights, which travel, and personal ones, which never leave the client. A server
// sends a [Task] with the shared weights of one version; a client trains and
// returns an [Update], the change of the shared weights. An [Aggregator] makes one
// displacement of the updates that are merged together, and a [ServerOptimizer]
// moves the shared weights by it: that is the next version.
//
// Nothing here has a clock or a source of randomness of its own. Time is an
// argument, measured from the start of the run; every draw comes from [Rand], so
// that it depends on what it is for and never on who came first.
package fed

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"loadstar/fed/exact"
)

// ErrDiverged says that numbers grew beyond all bounds in training.
var ErrDiverged = errors.New("training diverges: lower a learning rate, or look for outliers in the data")

// ClientID names one meter or building. One agent may host many clients.
type ClientID string

// Span is a run of the flat weight vector.
type Span struct{ Lo, Hi int }

// Task is what a client receives. Its slices are shared by all clients of a
// version: nobody may change them.
type Task struct {
	// Round numbers the task. With the client it seeds all draws of the training,
	// so a client is never given the same round twice.
	Round int
	// Version is that of Shared.
	Version int
	Shared  []float32
	// Control is SCAFFOLD's server control variate, and nil otherwise.
	Control []float32
}

// Update is what a client returns, and all that leaves it.
type Update struct {
	Client ClientID
	// Version is that of the weights that the client trained from.
	Version int
	// Examples is the size of the client's training part.
	Examples int
	// Delta is the shared weights after training minus those received, so that
	// servers add.
	Delta []float32
	// Control is the change of the client's control variate, if Needs.Control.
	Control []float32
	// Loss is that of the received weights on the client's training part, if
	// Needs.Loss.
	Loss float64
	// TrainLoss is the mean over the batches trained on, for people to look at.
	TrainLoss float64
	// Steps counts the gradients taken.
	Steps int
}

// Objective is what a client minimises: the mean loss of a model over its training
// examples, as a function of the whole weights. It belongs to one worker.
type Objective interface {
	// Len returns the number of examples.
	Len() int
	// Gradient overwrites g with the gradient at w of the mean loss over the
	// numbered examples, and returns that loss. It takes any number of them up to
	// the plan's batch.
	Gradient(g, w []float32, examples []int) float64
	// Loss returns the mean loss at w over the numbered examples, of any number.
	Loss(w []float32, examples []int) float64
}

// Turn is one client's part of one round, as its trainer sees it. Slices belong to
// the worker and are valid until Train returns.
type Turn struct {
	Task Task
	// W are the whole weights: the received shared ones and the client's personal
	// ones. They are trained in place.
	W []float32
	// Shared says where in W the shared weights lie, in their order in Task.Shared.
	Shared []Span
	// Kept is what the trainer keeps at this client from one round to the next.
	// First says that there is nothing in it yet.
	Kept  []float32
	First bool
	// Control receives the change of the client's control variate, if Needs.Control.
	Control []float32
	// Rand draws the batches.
	Rand *rand.Rand
}

// Trained is what a trainer says of a turn.
type Trained struct {
	Steps int     // gradients taken
	Loss  float64 // mean over the batches of these, at the weights of their step
}

// LocalTrainer does one client's work of one round. It is used by one goroutine at
// a time, for any number of clients in turn, and remembers nothing from one turn to
// the next but through Turn.Kept.
type LocalTrainer interface {
	// Kept returns how many floats are kept at each client, given the numbers of
	// weights.
	Kept(weights, shared int) int
	// Train moves t.W. What is then in its shared part, minus what was received,
	// is sent. A weight or a loss that is not finite is an error.
	Train(ctx context.Context, o Objective, t *Turn) (Trained, error)
}

// ClientOptimizer takes the steps of a turn. It is used as a LocalTrainer is.
type ClientOptimizer interface {
	// Kept is as that of LocalTrainer.
	Kept(weights, shared int) int
	// Begin starts a turn: moments of the turn before are forgotten. The optimizer
	// may keep t until End.
	Begin(t *Turn)
	// Step moves w against the gradient g, and may overwrite g.
	Step(w, g []float32)
	// End finishes a turn: what is to be kept or sent besides the weights.
	End(t *Turn)
}

// Needs says what an Aggregator must be given. A plan whose needs cannot be met is
// refused when it is read.
type Needs struct {
	EachUpdate bool // every single update, not only sums: not under secure aggregation
	Loss       bool // Update.Loss
	Control    bool // control variates in tasks and updates
	ServerData bool // gradients on data that the server has
}

// Sums is the exact sum of the updates that were trained from one version.
type Sums struct {
	Version int
	Delta   *exact.Sum
	Control *exact.Sum // nil unless Needs.Control
}

// Received is an update as the server sees it.
type Received struct {
	Update
	// From are the shared weights that the client trained from.
	From []float32
}

// Merge is what an aggregator makes a displacement of. It must not change or
// retain anything in it.
type Merge struct {
	// Round counts rounds from 0, those that were abandoned too.
	Round int
	// Version is that of Shared, the weights to be moved.
	Version int
	Shared  []float32
	// Fleet is the number of clients that could have been asked.
	Fleet int
	// Sums are in ascending order of version, at least one.
	Sums []Sums
	// Updates are in ascending order of client and version, at least one, if
	// Needs.EachUpdate; otherwise there are none.
	Updates []Received
	// Server is nil unless Needs.ServerData.
	Server ServerData
}

// ServerData is the loss of a batch that the server has, the same batch throughout
// one merge, as a function of the shared weights.
type ServerData interface {
	// Gradient overwrites g with the gradient at the given shared weights.
	Gradient(g, shared []float32) error
}

// Aggregator turns the updates that are merged together into one displacement of
// the shared weights. If it remembers something between merges, it implements
// encoding.BinaryMarshaler and encoding.BinaryUnmarshaler.
type Aggregator interface {
	Needs() Needs
	// Aggregate overwrites dst. It gives the same bits for the same merge.
	Aggregate(dst []float64, m *Merge) error
}

// Starter is an Aggregator with something to add to every Task.
type Starter interface {
	// Start completes a task that has its shared weights. What it adds is not
	// changed by later merges.
	Start(t *Task)
}

// ServerOptimizer moves the shared weights by a displacement, which it treats as a
// negative gradient. State between steps is as with Aggregator.
type ServerOptimizer interface {
	Step(shared []float32, d []float64)
}

// Situation is what a Scheduler decides upon. Times are from the start of the run.
type Situation struct {
	Now    time.Duration
	Opened time.Duration // when the current round was opened
	// Asked counts the clients asked in this round, Running those of this and
	// earlier rounds that have neither returned nor been lost, Waiting the counted
	// updates that are not merged yet, Lost those of this round that will not return.
	Asked, Running, Waiting, Lost int
}

// Decision is what becomes of the current round.
type Decision int

// The decisions: let it go on; merge what waits and open the next; close it without
// a merge and open the next.
const (
	Wait Decision = iota
	MergeNow
	Abandon
)

// Scheduler decides how many clients are asked, and when their updates are merged.
// It is a pure function of the situation.
type Scheduler interface {
	// Ask returns how many more clients to ask now.
	Ask(s Situation) int
	// Decide is called after everything that happened at one time.
	Decide(s Situation) Decision
	// Wake returns when Decide must be called although nothing happened.
	Wake(s Situation) (at time.Duration, ok bool)
	// Carries says that a client still running when a round closes may return in a
	// later one. Otherwise its update is refused.
	Carries() bool
}
