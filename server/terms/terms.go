// Package terms says what a run asks of its results: their shape, their bounds and how
// they add up. Gateways refuse what does not meet them, aggregators and the
// coordinator add by them.
package terms

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"loadstar/fed"
	"loadstar/fed/exact"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/fed/setup"
	"loadstar/series"
)

// Terms are those of one run. They do not change.
type Terms struct {
	Plan *fed.Plan
	// Blob is the plan as agents fetch it.
	Blob  string
	Fleet int
	// Shared is the number of shared weights.
	Shared int
	Rules  round.Rules
	setup  *setup.Setup
	spare  sync.Pool // of *round.Fold, empty
	floats sync.Pool // of *fed.Update, for its numbers
}

// Settle makes of a submitted plan the one that is carried out: what it leaves to the
// data is decided by what the whole fleet has. It refuses what a fleet cannot do,
// with the reason.
func Settle(p *fed.Plan, fleet int64, inputs []string, steps []time.Duration) (*fed.Plan, error) {
	if err := Federated(p); err != nil {
		return nil, err
	}
	if len(steps) > 1 {
		return nil, fmt.Errorf("clients read every %v: one model cannot be trained on different steps", steps)
	}
	q := *p
	q.Data = "" // a path on somebody's machine
	q.Model.Inputs, _ = recipe.Inputs(p, inputs)
	if q.Schedule.Cohort == 0 {
		q.Schedule.Cohort = int(fleet)
	}
	problem, err := readable(&q, inputs, steps)
	if err != nil {
		return nil, err
	}
	_, err = setup.New(&q, problem, int(fleet))
	return &q, err
}

// readable returns what clients train with the inputs that all of them have, or why they
// cannot: it looks at a meter without readings as an agent looks at its own.
func readable(p *fed.Plan, inputs []string, steps []time.Duration) (*recipe.Problem, error) {
	if len(steps) == 0 {
		return nil, fmt.Errorf("there are no clients")
	}
	d, err := series.NewDataset(series.Dataset{Name: "of the fleet", Interval: steps[0], Clock: time.UTC, StaticNames: inputs},
		[]series.Meter{{Static: make([]float32, len(inputs))}})
	if err != nil {
		return nil, err
	}
	return recipe.Frame(p, d)
}

// Federated says why a plan cannot be carried out by a fleet, if it cannot.
func Federated(p *fed.Plan) error {
	t, err := derive(p, max(p.Schedule.Cohort, p.Schedule.Buffer, 2))
	switch {
	case err != nil:
		return err
	case !t.setup.Parts.Federated:
		return fmt.Errorf("algorithm %s shares nothing: there is nothing for a server to do; use loadstar simulate", p.Algorithm)
	case p.Model.Scaling != "client":
		return fmt.Errorf("model.scaling is %s: the ranges of others' readings would have to be told to everybody; a fleet trains with scaling client", p.Model.Scaling)
	case t.Rules.Needs.ServerData:
		return fmt.Errorf("algorithm %s needs readings on the server, and this server has none; use loadstar simulate", p.Algorithm)
	case t.mostBytes() > maxNumbers:
		return fmt.Errorf("%d shared weights make results of %d MB, and at most %d can travel; make more layers personal, or the lookback shorter", t.Shared, t.mostBytes()>>20, maxNumbers>>20)
	}
	return nil
}

// Read returns the terms of a run from its settled plan, which agents find as a blob.
func Read(plan, blob string, fleet int64) (*Terms, error) {
	p, err := recipe.Read([]byte(plan))
	if err != nil {
		return nil, err
	}
	t, err := derive(p, int(fleet))
	if err != nil {
		return nil, err
	}
	t.Blob = blob
	return t, nil
}

// derive computes the terms of a plan for a fleet of a given size.
func derive(p *fed.Plan, fleet int) (*Terms, error) {
	problem, err := recipe.Frame(p, nil)
	if err != nil {
		return nil, err
	}
	s, err := setup.New(p, problem, fleet)
	if err != nil {
		return nil, err
	}
	return &Terms{Plan: p, Fleet: fleet, Shared: problem.Partition.SharedLen(), Rules: s.Rules, setup: s}, nil
}

// Server returns a new server at version 0.
func (t *Terms) Server() *round.Server { return t.setup.NewServer() }

// Machine returns the state of the rounds before the first one.
func (t *Terms) Machine() *round.Machine { return t.setup.NewMachine() }

// Carries reports whether a client that is still running when its round closes may
// return in a later one.
func (t *Terms) Carries() bool { return t.setup.Parts.Scheduler.Carries() }

// Folds says that an agent may send its clients' sum.
func (t *Terms) Folds() bool { return !t.Rules.Needs.EachUpdate }

// SumBytes returns how long the numbers of a sum are.
func (t *Terms) SumBytes() int64 {
	n := int64(exact.Bytes(t.Shared))
	if t.Rules.Needs.Control {
		n *= 2
	}
	return n
}

// maxNumbers bounds the numbers of a result, so that with the names of its clients they
// are a message that the bus carries.
const maxNumbers = 12 << 20

// mostBytes returns how long the numbers of any result of these terms can be.
func (t *Terms) mostBytes() int64 {
	n := int64(t.Rules.UpdateBytes(t.Shared))
	if t.Folds() {
		n = max(n, t.SumBytes())
	}
	return n
}

// Result is what came from an agent.
type Result struct {
	Version int
	// Sum says that Numbers are a sum of the shares' updates.
	Sum     bool
	Shares  []Share
	Numbers []byte
}

// Share is one client's part.
type Share struct {
	Client          string
	Examples, Steps int
	TrainLoss, Loss float64
}

// Add adds a result to a fold of these terms, with the weights it was trained from
// where each update is needed. If it returns an error, the result is to be refused,
// and the fold is as it was.
func (t *Terms) Add(f *round.Fold, r *Result, from []float32) error {
	if len(r.Shares) == 0 {
		return fmt.Errorf("a result of nobody")
	}
	for _, s := range r.Shares {
		if s.Examples < 1 || s.Steps < 0 {
			return fmt.Errorf("client %s took %d steps on %d examples", s.Client, s.Steps, s.Examples)
		}
		if !plausible(s.TrainLoss) || !plausible(s.Loss) {
			return fmt.Errorf("a loss of client %s is not finite, or no loss", s.Client)
		}
	}
	if r.Sum {
		return t.addSum(f, r)
	}
	if len(r.Shares) != 1 {
		return fmt.Errorf("one update of %d clients", len(r.Shares))
	}
	s := r.Shares[0]
	u := fed.Update{
		Client: fed.ClientID(s.Client), Version: r.Version, Examples: s.Examples, Steps: s.Steps,
		TrainLoss: s.TrainLoss, Loss: s.Loss,
	}
	if t.Folds() { // and does not keep it
		if had, ok := t.floats.Get().(*fed.Update); ok {
			u.Delta, u.Control = had.Delta, had.Control
		}
		defer t.floats.Put(&u)
	}
	if err := t.Rules.ReadUpdate(&u, r.Numbers, t.Shared); err != nil {
		return err
	}
	if from == nil {
		from = u.Delta // only its length is looked at
	}
	return f.Add(&u, from)
}

// plausible says whether a number can be a loss. The bound is far beyond any; below it
// the mean over a fleet is finite.
func plausible(x float64) bool { return math.Abs(x) < 1e100 }

func (t *Terms) addSum(f *round.Fold, r *Result) error {
	names := make([]string, len(r.Shares))
	var weight int64
	for i, s := range r.Shares {
		names[i] = s.Client
		weight += t.Rules.Weight(s.Examples)
	}
	slices.Sort(names)
	if len(slices.Compact(names)) < len(r.Shares) {
		return fmt.Errorf("a client is twice in one sum")
	}
	alone := round.NewFold(t.Rules) // so that a sum that is refused is in nothing
	n, heavy, err := alone.AddSums(r.Version, t.Shared, r.Numbers)
	if err != nil {
		return err
	}
	if n != len(r.Shares) || heavy != weight {
		return fmt.Errorf("a sum of %d updates of weight %d, said to be %d of weight %d", n, heavy, len(r.Shares), weight)
	}
	return f.Join(alone)
}

// Check says why Add would refuse a result.
func (t *Terms) Check(r *Result) error {
	f, ok := t.spare.Get().(*round.Fold)
	if !ok {
		f = round.NewFold(t.Rules)
	}
	err := t.Add(f, r, nil)
	f.Reset()
	t.spare.Put(f)
	return err
}
