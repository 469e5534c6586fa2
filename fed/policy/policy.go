// Package policy says which plans an agent trains. The server writes the plans, and without
// secure aggregation it sees each update. If an update was trained on few readings, they can
// be computed from it, so an agent declines such plans whatever the server asks for.
//
// Agents apply their own policy. Server and command line know the default one only, and warn
// of plans that it declines.
package policy

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/internal/config"
)

// Policy is what an agent demands of a plan. A limit of 0 demands nothing.
type Policy struct {
	// LeastExamples is the smallest number of examples that an update may be trained on. It
	// also applies to the examples that a client has, and to each reported score.
	LeastExamples int `yaml:"least_examples"`
	// LeastBatch is the smallest number of examples per gradient.
	LeastBatch int `yaml:"least_batch"`
	// LeastSteps is the smallest number of gradient steps in an update. An update that passes
	// over all examples of its client may have fewer.
	LeastSteps int `yaml:"least_steps"`
	// LeastLookback is the smallest number of steps of history in an example, or of hours for
	// the model dense.
	LeastLookback int `yaml:"least_lookback"`
	// LeastCohort is the smallest number of clients that train at a time and, if the plan has
	// a quorum, that a round may end with.
	LeastCohort int `yaml:"least_cohort"`
	// LeastMerge is the smallest number of updates that the plan may merge into one version
	// of the weights. 1 allows fedasync, which merges each update alone, and fednorm, which
	// merges what has arrived in a period.
	LeastMerge int `yaml:"least_merge"`
	// LeastFleet is the smallest number of clients in a run.
	LeastFleet int `yaml:"least_fleet"`
	// Algorithms are those that the agent trains, such as [fedavg, fedadam]; empty means all.
	Algorithms []string `yaml:"algorithms,flow"`
	// ShareLosses is whether training losses and validation errors may leave the agent. If
	// not, plans whose algorithm needs losses are declined.
	ShareLosses bool `yaml:"share_losses"`
	// RoundsPerDay is the largest number of rounds that the agent trains in a day (UTC), over
	// all runs; 0 means any number.
	RoundsPerDay int `yaml:"rounds_per_day"`
}

// Default returns the policy of an agent that sets none. Exact reconstruction is published
// for batches of up to about 25 examples, so the least batch is above that. The limits on
// cohort and fleet are low, so that small fleets can train: see docs/privacy.md.
func Default() Policy {
	return Policy{
		LeastExamples: 64, LeastBatch: 32, LeastSteps: 2, LeastLookback: 4,
		LeastCohort: 2, LeastMerge: 1, LeastFleet: 2, ShareLosses: true,
	}
}

// None returns the policy that accepts every plan.
func None() Policy { return Policy{ShareLosses: true} }

// Set changes the policy: the text is KEY=VALUE with a key of agent.yaml, or none for [None].
func (p *Policy) Set(text string) error {
	if text == "none" {
		*p = None()
		return nil
	}
	key, value, ok := strings.Cut(text, "=")
	if !ok {
		return fmt.Errorf("policy %q: write KEY=VALUE, such as least_batch=16, or none", text)
	}
	q := *p
	if err := config.Decode(fmt.Appendf(nil, "{%s: %s}", key, value), &q); err != nil {
		return fmt.Errorf("policy %q: %w", text, err)
	}
	if key, problem := q.Wrong(); problem != "" {
		return fmt.Errorf("policy %s %s", key, problem)
	}
	*p = q
	return nil
}

// Wrong returns the first key whose value is invalid, and what is wrong with it.
func (p *Policy) Wrong() (key, problem string) {
	for _, x := range p.limits() {
		if x.value < 0 {
			return x.key, fmt.Sprintf("is %d; write 0 or more", x.value)
		}
	}
	for _, a := range p.Algorithms {
		if !slices.Contains(recipe.Names(), a) {
			return "algorithms", fmt.Sprintf("has %q; %s", a, config.Suggest(a, recipe.Names()))
		}
	}
	return "", ""
}

type limit struct {
	key   string
	value int
}

func (p *Policy) limits() []limit {
	return []limit{
		{"least_examples", p.LeastExamples},
		{"least_batch", p.LeastBatch},
		{"least_steps", p.LeastSteps},
		{"least_lookback", p.LeastLookback},
		{"least_cohort", p.LeastCohort},
		{"least_merge", p.LeastMerge},
		{"least_fleet", p.LeastFleet},
		{"rounds_per_day", p.RoundsPerDay},
	}
}

// String returns the policy in one line, as keys and values.
func (p Policy) String() string {
	var all []string
	for _, x := range p.limits() {
		all = append(all, fmt.Sprintf("%s %d", x.key, x.value))
	}
	names := "all"
	if len(p.Algorithms) > 0 {
		names = strings.Join(p.Algorithms, " ")
	}
	return strings.Join(append(all, "algorithms "+names, fmt.Sprintf("share_losses %t", p.ShareLosses)), ", ")
}

// Check returns the reasons to decline a plan, or nothing. The plan must be valid. Fleet is
// the number of clients in the run; if it is 0, it is not known and not checked.
func (p *Policy) Check(plan *fed.Plan, fleet int) (reasons []string) {
	below := func(key, setting string, value, least int) {
		if value < least {
			reasons = append(reasons, fmt.Sprintf("%s is %d, the least is %d (policy.%s)", setting, value, least, key))
		}
	}
	if len(p.Algorithms) > 0 && !slices.Contains(p.Algorithms, plan.Algorithm) {
		reasons = append(reasons, fmt.Sprintf("algorithm is %s, allowed are %s (policy.algorithms)", plan.Algorithm, strings.Join(p.Algorithms, ", ")))
	}
	d := recipe.DrawOf(plan)
	if d.Batch > 0 {
		below("least_batch", "client.batch", d.Batch, p.LeastBatch)
	}
	if d.Steps > 0 {
		below("least_steps", "client.steps", d.Steps, p.LeastSteps)
	}
	if d.Examples > 0 {
		below("least_examples", "the number of examples in an update", d.Examples, p.LeastExamples)
	}
	below("least_lookback", "model.lookback", plan.Model.Lookback, p.LeastLookback)
	if plan.Evaluate.Every > 0 && p.ShareLosses {
		below("least_examples", "evaluate.windows", plan.Evaluate.Windows, p.LeastExamples)
	}
	cohort, merge := together(plan, fleet)
	if cohort > 0 {
		below("least_cohort", "the smallest number of clients in a round", cohort, p.LeastCohort)
	}
	if merge > 0 {
		below("least_merge", "the smallest number of updates in a merge", merge, p.LeastMerge)
	}
	if fleet > 0 {
		below("least_fleet", "the number of clients in the run", fleet, p.LeastFleet)
	}
	if !p.ShareLosses && recipe.NeedsOf(plan).Loss {
		reasons = append(reasons, fmt.Sprintf("algorithm %s needs the clients' losses, which may not leave (policy.share_losses)", plan.Algorithm))
	}
	return reasons
}

// Warn returns why agents that set no policy decline a plan, in one sentence, or nothing. The
// size of the fleet is not known before the plan runs.
func Warn(plan *fed.Plan) string {
	usual := Default()
	reasons := usual.Check(plan, 0)
	if len(reasons) == 0 {
		return ""
	}
	return "agents with default settings decline this plan: " + strings.Join(reasons, "; ")
}

// together returns the smallest number of clients in a round and of updates in a merge that
// the plan promises, or 0 if it depends on a fleet of unknown size. A plan promises nothing
// about clients that are lost or decline.
func together(plan *fed.Plan, fleet int) (cohort, merge int) {
	s := &plan.Schedule
	cohort = s.Cohort
	if cohort == 0 {
		cohort = fleet
	}
	switch s.Kind {
	case "buffered":
		return cohort, s.Buffer
	case "periodic":
		return cohort, 1
	}
	if s.Deadline > 0 && cohort > 0 { // without a quorum, one update is enough
		cohort = max(int(math.Ceil(float64(cohort)*s.Quorum-1e-9)), 1)
	}
	return cohort, cohort
}

// CheckClient returns the reason not to train a client that has the given number of training
// examples, or nothing.
func (p *Policy) CheckClient(plan *fed.Plan, examples int) string {
	n, of := examples, "training examples"
	if share := recipe.DrawOf(plan).Share; share < 1 {
		n, of = int(share*float64(examples)), "training examples in one of the two sets of client.query"
	}
	if n < p.LeastExamples {
		return fmt.Sprintf("it has %d %s, the least is %d (policy.least_examples)", n, of, p.LeastExamples)
	}
	// The last batch of an epoch has the examples that are left. Among few batches its
	// gradient would stand out, and a server that knows the number of examples can choose a
	// batch that leaves one.
	if d := recipe.DrawOf(plan); d.Steps == 0 && d.Batch > 0 {
		n := recipe.EpochOf(plan, examples)
		if rest := n % d.Batch; 0 < rest && rest < p.LeastBatch && n/d.Batch < mixed {
			return fmt.Sprintf("an epoch of %d of its training examples ends with a batch of %d, the least is %d (policy.least_batch)", n, rest, p.LeastBatch)
		}
	}
	return ""
}

// mixed is the number of full batches among which a smaller one is allowed.
const mixed = 4
