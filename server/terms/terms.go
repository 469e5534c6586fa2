// Package terms holds the rules for a run's results: their shape, their bounds and how to add
// them up. Gateways reject results that break the rules, and gateways and the coordinator add
// up results by these rules. An [OwnData] is the server's own dataset, on which some algorithms
// compute gradients.
package terms

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"loadstar/fed"
	"loadstar/fed/exact"
	"loadstar/fed/limit"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/fed/setup"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
)

// Terms are the rules of one run. They do not change.
type Terms struct {
	Plan *fed.Plan
	// Blob is the hash of the plan that agents fetch.
	Blob  string
	Fleet int
	// Shared is the length of the shared vector, which contains the shared weights and the
	// moments that are averaged with them.
	Shared int
	Rules  round.Rules
	setup  *setup.Setup
	floats sync.Pool // *fed.Update values whose slices are reused

	mu     sync.Mutex
	limits map[int64]fed.Limits // by version
}

// usualQuorum is the share of the cohort that must return results, unless the plan sets another
// quorum. Otherwise the round is abandoned, because a few remaining clients must not determine
// the weights.
const usualQuorum = 0.5

// UsualDeadline returns the deadline of a round whose plan sets none. It is longer than a turn
// can take. It is 0, which means no deadline, if turns have no limit.
func UsualDeadline(longest, lease time.Duration) time.Duration {
	if longest == 0 {
		return 0
	}
	return (longest + lease).Round(time.Second)
}

// SetDeadline sets the deadline and the quorum of a synchronous schedule that lacks them. A
// simulated fleet needs neither, because its clients always return.
func SetDeadline(s *fed.Schedule, usual time.Duration) {
	if usual == 0 || s.Kind != "synchronous" {
		return
	}
	s.Deadline = cmp.Or(s.Deadline, fed.Duration(usual))
	if s.Quorum == 0 {
		// A merge of a single client would reveal its update, and agents decline a plan that
		// allows this.
		s.Quorum = min(max(usualQuorum, 2/float64(s.Cohort)), 1)
	}
}

// Settle returns a submitted plan with every value fixed: values that depend on data are set
// from the data of the whole fleet, and durations become numbers of steps of the fleet's
// readings. It returns an error if the fleet cannot train the plan.
func Settle(p *fed.Plan, fleet int64, inputs []string, steps []time.Duration) (*fed.Plan, error) {
	if len(steps) > 1 {
		return nil, fmt.Errorf("clients have different intervals, %v; a model needs a single interval", steps)
	}
	if len(steps) == 1 {
		var err error
		if p, err = recipe.Resolve(p, steps[0]); err != nil {
			return nil, err
		}
	}
	if err := Federated(p, true); err != nil {
		return nil, err
	}
	p, _ = recipe.Sized(p, int(fleet))
	q := *p
	q.Model.Inputs, _ = recipe.Inputs(p, inputs)
	q.Schedule.Cohort = cmp.Or(q.Schedule.Cohort, int(fleet))
	problem, err := frame(&q, inputs, steps)
	if err != nil {
		return nil, err
	}
	if _, err = setup.New(&q, problem, int(fleet)); err != nil || !recipe.ChoosesNearest(&q) {
		return &q, err
	}
	t, err := derive(&q, int(fleet))
	if err != nil {
		return nil, err
	}
	return &q, t.checkStored()
}

// frame checks that clients can train with the inputs that all of them have, and returns
// the problem that they train. Like an agent's check, it uses a meter without readings.
func frame(p *fed.Plan, inputs []string, steps []time.Duration) (*recipe.Problem, error) {
	if len(steps) == 0 {
		return nil, fmt.Errorf("there are no clients")
	}
	if recipe.Rows(p) {
		if missing := recipe.MissingGroups(p, inputs); len(missing) > 0 {
			return nil, fmt.Errorf("not all clients have the data for the inputs %s", strings.Join(missing, ", "))
		}
		return recipe.Frame(p, nil)
	}
	d, err := series.NewDataset(series.Dataset{Name: "of the fleet", Interval: steps[0], Clock: time.UTC, StaticNames: inputs},
		[]series.Meter{{Static: make([]float32, len(inputs))}})
	if err != nil {
		return nil, err
	}
	return recipe.Frame(p, d)
}

// Federated returns an error if no fleet can train a plan, for example because the algorithm
// needs readings on the server. data means that the server has readings. Whether these fit the
// plan is known only when the run begins.
func Federated(p *fed.Plan, data bool) error {
	t, err := derive(p, max(p.Schedule.Cohort, p.Schedule.Buffer, recipe.LeastClients(p), 2))
	if err != nil {
		return err
	}
	own := t.NeedsServerData() || recipe.StartsOnServerData(p)
	switch {
	case p.Start != "" && !recipe.StartsOnServerData(p):
		return fmt.Errorf("start is %s, a path that the server cannot read; a fleet starts from random weights or from server-data, so remove start or use loadstar simulate", p.Start)
	case !t.setup.Parts.Federated:
		return fmt.Errorf("algorithm %s shares no layers, so a server has nothing to do; use loadstar simulate", p.Algorithm)
	case p.Model.Scaling != "client":
		return fmt.Errorf("model.scaling is %s, which would reveal the range of clients' readings; a fleet needs model.scaling: client", p.Model.Scaling)
	case own && !data:
		return MissingOwnData(p)
	case t.maxBytes() > maxNumbers:
		return fmt.Errorf("%d shared weights make results of %d MB, but the limit is %d MB; make more layers personal or shorten the lookback", t.Shared, t.maxBytes()>>20, maxNumbers>>20)
	}
	if own {
		return checkOwnData(t.setup)
	}
	return nil
}

// Read returns the terms of a run from its settled plan and the hash of the plan's blob.
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

// SharedLen returns the length of the shared vector of a plan, for any fleet.
func SharedLen(plan []byte) (int, error) {
	p, err := recipe.Read(plan)
	if err != nil {
		return 0, err
	}
	problem, err := recipe.Frame(p, nil)
	if err != nil {
		return 0, err
	}
	return problem.SharedLen(), nil
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
	return &Terms{Plan: p, Fleet: fleet, Shared: problem.SharedLen(), Rules: s.Rules, setup: s}, nil
}

// Setup returns the plan's setup, without a dataset.
func (t *Terms) Setup() *setup.Setup { return t.setup }

// NeedsServerData reports whether the coordinator computes with the server's data in every
// merge. A plan that starts on the server's data may need it only before the first round.
func (t *Terms) NeedsServerData() bool { return t.Rules.Needs.ServerData }

// Server returns a new round.Server at version 0.
func (t *Terms) Server() *round.Server { return t.setup.NewServer() }

// Machine returns a new round.Machine, in its state before the first round.
func (t *Terms) Machine() *round.Machine { return t.setup.NewMachine() }

// Carries reports whether a client that is still training when its round closes may send its
// result in a later round.
func (t *Terms) Carries() bool { return t.setup.Parts.Scheduler.Carries() }

// Folds reports whether an agent may send a sum of several clients.
func (t *Terms) Folds() bool { return !t.Rules.Needs.EachUpdate }

// SumBytes returns the size of a sum in bytes.
func (t *Terms) SumBytes() int64 {
	n := int64(exact.Bytes(t.Shared))
	if t.Rules.Needs.Control {
		n *= 2
	}
	return n
}

// maxNumbers is the maximum size of a result's numbers, in bytes. It is low enough that several
// results, with their clients' names, fit into memory.
const maxNumbers = 12 << 20

// maxBytes returns the size of the numbers in the largest possible result, in bytes.
func (t *Terms) maxBytes() int64 {
	n := int64(t.Rules.UpdateBytes(t.Shared))
	if t.Folds() {
		n = max(n, t.SumBytes())
	}
	if t.Private() {
		n = max(n, t.MaskedBytes())
	}
	return n
}

// Result is a result that an agent has sent.
type Result struct {
	Version int
	// Limits are the limits of the version.
	Limits fed.Limits
	// Sum reports whether Numbers is the sum of the shares' updates, and Masked whether Numbers
	// is masked.
	Sum, Masked bool
	Shares      []Share
	Numbers     []byte

	// The prepared numbers: an update or a sum.
	update *fed.Update
	sum    *round.Fold
}

// Share is one client's part of a result.
type Share struct {
	Client          string
	Examples, Steps int
	TrainLoss, Loss float64
	// Norm and ControlNorm are the norms of the update and of the change of its control
	// variate. They are 0 in a sum from an older agent.
	Norm, ControlNorm float64
}

// Of returns the result that an agent has sent in one or more chunks. numbers contains the
// joined chunks.
func Of(a *v1.Result, numbers []byte) *Result {
	r := &Result{Version: int(a.Version), Sum: a.Form == v1.Form_FORM_SUM, Masked: a.Form == v1.Form_FORM_MASKED, Numbers: numbers, Shares: make([]Share, len(a.Shares))}
	for i, s := range a.Shares {
		r.Shares[i] = Share{Client: s.Client, Examples: int(s.Examples), Steps: int(s.Steps), TrainLoss: s.TrainLoss, Loss: s.Loss, Norm: s.Norm, ControlNorm: s.ControlNorm}
	}
	return r
}

// Prepare decodes a result, applies its limits, and replaces the shares' claims with the values
// that count. An error means that the result must be rejected. A prepared result can be added
// several times.
func (t *Terms) Prepare(r *Result) error {
	if len(r.Shares) == 0 {
		return fmt.Errorf("the result has no clients")
	}
	if r.Masked {
		return checkMasked(r)
	}
	for _, s := range r.Shares {
		if s.Examples < 1 || s.Steps < 0 {
			return fmt.Errorf("client %s reports %d steps on %d examples", s.Client, s.Steps, s.Examples)
		}
		if !plausible(s.TrainLoss) || !plausible(s.Loss) || !plausible(s.Norm) || !plausible(s.ControlNorm) {
			return fmt.Errorf("a loss or a norm of client %s is negative, not finite or too large", s.Client)
		}
	}
	if r.Sum {
		return t.prepareSum(r)
	}
	if len(r.Shares) != 1 {
		return fmt.Errorf("the update has %d clients, want 1", len(r.Shares))
	}
	s := &r.Shares[0]
	u, ok := t.floats.Get().(*fed.Update)
	if !ok {
		u = &fed.Update{}
	}
	*u = fed.Update{
		Client: fed.ClientID(s.Client), Version: r.Version, Claimed: s.Examples, Steps: s.Steps,
		TrainLoss: s.TrainLoss, Loss: s.Loss, Delta: u.Delta, Control: u.Control,
	}
	if err := t.Rules.ReadUpdate(u, r.Numbers, t.Shared); err != nil {
		return err
	}
	limit.Apply(r.Limits, u)
	limit.RoundNorms(r.Limits, u) // the norms of sums are rounded too
	if err := t.Rules.Check(u); err != nil {
		return err
	}
	s.TrainLoss, s.Loss, s.Norm, s.ControlNorm = u.TrainLoss, u.Loss, u.Norm, u.ControlNorm
	r.update = u
	return nil
}

// Release frees the memory of a prepared result. The result must not be added afterwards.
func (t *Terms) Release(r *Result) {
	if r.update != nil && t.Folds() { // otherwise a fold uses the slices
		t.floats.Put(r.update)
	}
	r.update, r.sum = nil, nil
}

// Add adds a result to a fold, and prepares the result if necessary. If the algorithm needs
// individual updates, from must hold the weights with which the client started. After an error,
// the fold is unchanged.
func (t *Terms) Add(f *round.Fold, r *Result, from []float32) error {
	if r.update == nil && r.sum == nil {
		if err := t.Prepare(r); err != nil {
			return err
		}
	}
	if r.sum != nil {
		return f.Join(r.sum)
	}
	if from == nil {
		from = r.update.Delta // without individual updates, only the length of from matters
	}
	return f.Add(r.update, from)
}

// plausible reports whether a number can be a loss or a norm. The bound is far above any real
// loss, but low enough to keep the mean over a fleet finite.
func plausible(x float64) bool { return x >= 0 && x < 1e100 }

func (t *Terms) prepareSum(r *Result) error {
	names, weights := make([]string, len(r.Shares)), make([]int64, len(r.Shares))
	var weight int64
	for i, s := range r.Shares {
		names[i], weights[i] = s.Client, t.Rules.Weight(limit.Examples(r.Limits, s.Examples))
		weight += weights[i]
	}
	slices.Sort(names)
	if len(slices.Compact(names)) < len(r.Shares) {
		return fmt.Errorf("the sum has the same client twice")
	}
	own := round.NewFold(t.Rules)
	n, total, err := own.AddSums(r.Version, t.Shared, r.Numbers)
	if err != nil {
		return err
	}
	if n != len(r.Shares) || total != weight {
		return fmt.Errorf("the sum holds %d updates of weight %d, but the shares state %d of weight %d", n, total, len(r.Shares), weight)
	}
	if err := t.limitSum(r, weights, &own.Sums()[0]); err != nil {
		return err
	}
	r.sum = own
	return nil
}
