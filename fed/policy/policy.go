// Package policy determines which plans an agent trains. The server writes the plans and sees
// each update. It could compute readings from updates that are trained on few readings, or from
// many updates that differ in few readings. An agent therefore declines plans that allow this.
//
// Agents apply their own policy. The server and the command line know only the default
// policy, and warn about plans that it declines.
package policy

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"loadstar/fed"
	"loadstar/fed/member"
	"loadstar/fed/recipe"
	"loadstar/internal/config"
)

// Policy contains an agent's requirements for a plan. A limit of 0 requires nothing.
type Policy struct {
	// LeastExamples is the smallest number of examples on which an update may be trained. It
	// also applies to the number of training examples that a client has, and to the number of
	// examples behind each reported score.
	LeastExamples int `yaml:"least_examples"`
	// LeastClientExamples is the smallest number of training examples of a client. The more
	// examples a client has, the more rounds a server needs to learn something about one of
	// them.
	LeastClientExamples int `yaml:"least_client_examples"`
	// FullPasses allows updates that pass over all training examples of a client. The examples
	// of such updates are not drawn at random, so two updates can differ in a single example.
	// If FullPasses is false, a client needs at least eight times as many examples as a batch
	// contains.
	FullPasses bool `yaml:"full_passes"`
	// Optimizers are the client optimizers with which the agent trains; empty means all. A step of
	// Adam or AMSGrad has about the same size for every weight, so a weight that responds to few
	// examples reveals little about their values.
	Optimizers []string `yaml:"optimizers,flow"`
	// MostEpsilon is the largest permitted epsilon of Adam and AMSGrad, because with a large
	// epsilon these optimizers become plain gradient descent; 0 means any.
	MostEpsilon float64 `yaml:"most_epsilon"`
	// LeastRate is the smallest permitted learning rate of clients. With a very small rate, the
	// weights hardly change, so many rounds measure the same quantity.
	LeastRate float64 `yaml:"least_lr"`
	// MostStep is the largest Euclidean distance between two successive versions of the shared
	// weights. 0 disables the check. Otherwise the agent computes the first version itself,
	// compares each version with the one that it saw last, and declines plans whose weights
	// cannot be checked in this way.
	MostStep float64 `yaml:"most_step"`
	// WholeBlocks makes training and validation data end at boundaries of four-week blocks
	// ([series.Split]).
	WholeBlocks bool `yaml:"whole_blocks"`
	// LeastBatch is the smallest number of examples per gradient.
	LeastBatch int `yaml:"least_batch"`
	// LeastSteps is the smallest number of gradient steps in an update. An update that passes
	// over all examples of its client may have fewer steps.
	LeastSteps int `yaml:"least_steps"`
	// LeastLookback is the smallest number of steps of history in an example, or of hours for
	// the model dense.
	LeastLookback int `yaml:"least_lookback"`
	// LeastCohort is the smallest number of clients that train at the same time and, if the plan
	// has a quorum, the smallest number of updates with which a round may end.
	LeastCohort int `yaml:"least_cohort"`
	// LeastMerge is the smallest number of updates that the plan may merge into one version
	// of the weights. 1 allows fedasync, which merges each update alone, and fednorm, which
	// merges the updates of a period.
	LeastMerge int `yaml:"least_merge"`
	// LeastFleet is the smallest number of clients in a run.
	LeastFleet int `yaml:"least_fleet"`
	// Algorithms are the algorithms that the agent trains, such as [fedavg, fedadam]. Empty means all.
	Algorithms []string `yaml:"algorithms,flow"`
	// ShareLosses is true if training losses and validation errors may leave the agent.
	// Otherwise the agent declines plans whose algorithm needs losses.
	ShareLosses bool `yaml:"share_losses"`
	// RoundsPerDay is the largest number of rounds that the agent trains in a day (UTC), over
	// all runs; 0 means any number.
	RoundsPerDay int `yaml:"rounds_per_day"`
	// PlansPerWeek is the largest number of different plans that the agent trains in seven
	// days; 0 means any number.
	PlansPerWeek int `yaml:"plans_per_week"`
	// Private is never, allow or require. It determines whether the agent trains private plans,
	// in which the server learns only sums, and whether it trains other plans. A private plan is
	// never trained without privacy.
	Private string `yaml:"private"`
	// Keepers are the identities of the keepers that the agent trusts with the keys of its masks,
	// such as [sha256:0a1b...]. The agent declines a private plan with any other keeper.
	Keepers []string `yaml:"keepers,flow"`
	// LeastMembers is the smallest value that the agent accepts for these keepers' minimum
	// number of agents per sum.
	LeastMembers int `yaml:"least_members"`
}

// The values of Policy.Private. An empty value means PrivateAllow.
const (
	PrivateNever   = "never"
	PrivateAllow   = "allow"
	PrivateRequire = "require"
)

// Default returns the policy of an agent that does not set one. Exact reconstruction has been
// published for batches of up to about 25 examples, so the minimum batch size is above that.
// docs/privacy.md explains the attack that each limit prevents.
func Default() Policy {
	return Policy{
		LeastExamples: 64, LeastClientExamples: 2000, LeastBatch: 32, LeastSteps: 2, LeastLookback: 4,
		LeastCohort: 10, LeastMerge: 10, LeastFleet: 10, ShareLosses: true,
		Optimizers: []string{"adam", "amsgrad"}, MostEpsilon: 1e-6, LeastRate: 1e-5, MostStep: 2, WholeBlocks: true,
		RoundsPerDay: 400, PlansPerWeek: 3,
		Private: PrivateAllow, LeastMembers: 20,
	}
}

// Trial returns a policy for small fleets with only a few weeks of readings, for example for
// trials on one's own or generated data, and for the papers' plans. It protects the readings
// less than [Default].
func Trial() Policy {
	return Policy{
		LeastExamples: 64, LeastBatch: 32, LeastSteps: 2, LeastLookback: 4,
		LeastCohort: 2, LeastMerge: 1, LeastFleet: 2, ShareLosses: true, FullPasses: true,
		Private: PrivateAllow, LeastMembers: 2,
	}
}

// None returns the policy that accepts every plan.
func None() Policy { return Policy{ShareLosses: true, FullPasses: true, Private: PrivateAllow} }

// Set changes the policy. The text is KEY=VALUE with a key from agent.yaml, trial for [Trial],
// or none for [None].
func (p *Policy) Set(text string) error {
	switch text {
	case "none":
		*p = None()
		return nil
	case "trial":
		*p = Trial()
		return nil
	}
	key, value, ok := strings.Cut(text, "=")
	if !ok {
		return fmt.Errorf("policy %q: write KEY=VALUE, such as least_batch=16, or trial, or none", text)
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

// Wrong returns the first key with an invalid value, and a description of the problem.
func (p *Policy) Wrong() (key, problem string) {
	for _, x := range p.limits() {
		if x.value < 0 {
			return x.key, fmt.Sprintf("is %d; write 0 or more", x.value)
		}
	}
	for key, value := range map[string]float64{"most_epsilon": p.MostEpsilon, "least_lr": p.LeastRate, "most_step": p.MostStep} {
		if !(value >= 0) {
			return key, fmt.Sprintf("is %g; write 0 or more", value)
		}
	}
	if modes := []string{PrivateNever, PrivateAllow, PrivateRequire}; p.Private != "" && !slices.Contains(modes, p.Private) {
		return "private", fmt.Sprintf("is %q; %s", p.Private, config.Suggest(p.Private, modes))
	}
	for i, k := range p.Keepers {
		if _, err := member.ParsePin(k); err != nil {
			return "keepers", fmt.Sprintf("has %v", err)
		}
		if slices.Contains(p.Keepers[:i], k) {
			return "keepers", fmt.Sprintf("has %s twice", k)
		}
	}
	for _, o := range p.Optimizers {
		if names := recipe.ClientOptimizers(); !slices.Contains(names, o) {
			return "optimizers", fmt.Sprintf("has %q; %s", o, config.Suggest(o, names))
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
		{"least_client_examples", p.LeastClientExamples},
		{"least_batch", p.LeastBatch},
		{"least_steps", p.LeastSteps},
		{"least_lookback", p.LeastLookback},
		{"least_cohort", p.LeastCohort},
		{"least_merge", p.LeastMerge},
		{"least_fleet", p.LeastFleet},
		{"rounds_per_day", p.RoundsPerDay},
		{"plans_per_week", p.PlansPerWeek},
		{"least_members", p.LeastMembers},
	}
}

// String returns the policy in one line, as keys and values.
func (p Policy) String() string {
	var all []string
	for _, x := range p.limits() {
		all = append(all, fmt.Sprintf("%s %d", x.key, x.value))
	}
	names := func(list []string) string {
		if len(list) == 0 {
			return "all"
		}
		return strings.Join(list, " ")
	}
	return strings.Join(append(all,
		fmt.Sprintf("least_lr %g", p.LeastRate), fmt.Sprintf("most_epsilon %g", p.MostEpsilon), fmt.Sprintf("most_step %g", p.MostStep),
		"optimizers "+names(p.Optimizers), "algorithms "+names(p.Algorithms),
		fmt.Sprintf("private %s", cmp.Or(p.Private, PrivateAllow)), fmt.Sprintf("keepers [%s]", strings.Join(p.Keepers, " ")),
		fmt.Sprintf("full_passes %t", p.FullPasses), fmt.Sprintf("whole_blocks %t", p.WholeBlocks), fmt.Sprintf("share_losses %t", p.ShareLosses)), ", ")
}

// Check returns the reasons to decline a plan, or nil. The plan must be valid. fleet is the
// number of clients in the run; 0 means that it is not known and therefore not checked.
func (p *Policy) Check(plan *fed.Plan, fleet int) (reasons []string) {
	below := func(key, setting string, value, least int) {
		if value < least {
			reasons = append(reasons, fmt.Sprintf("%s is %d, the minimum is %d (policy.%s)", setting, value, least, key))
		}
	}
	if len(p.Algorithms) > 0 && !slices.Contains(p.Algorithms, plan.Algorithm) {
		reasons = append(reasons, fmt.Sprintf("algorithm is %s, allowed are %s (policy.algorithms)", plan.Algorithm, strings.Join(p.Algorithms, ", ")))
	}
	switch private := recipe.Private(plan); {
	case private && p.Private == PrivateNever:
		reasons = append(reasons, "the plan is private, and this agent trains only plain plans (policy.private)")
	case !private && p.Private == PrivateRequire:
		reasons = append(reasons, "the plan is not private: the server would see each update (policy.private)")
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
	reasons = append(reasons, p.checkSteps(plan, d)...)
	if q, err := recipe.Assume(plan); err == nil { // a valid plan gives no error
		below("least_lookback", "model.lookback", q.Model.Lookback.Steps(), p.LeastLookback)
	}
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
		reasons = append(reasons, fmt.Sprintf("algorithm %s needs the clients' losses, which must not leave the agent (policy.share_losses)", plan.Algorithm))
	}
	if _, problem := recipe.StepLimit(plan); problem != "" && p.MostStep > 0 {
		reasons = append(reasons, fmt.Sprintf("the weights cannot be checked: %s (policy.most_step)", problem))
	}
	return reasons
}

// checkSteps returns the reasons to decline a plan because of its local steps: how they draw
// examples, and which optimizer they use.
func (p *Policy) checkSteps(plan *fed.Plan, d recipe.Draw) (reasons []string) {
	if d.Steps == 0 && !p.FullPasses {
		reasons = append(reasons, "an update passes over all examples of its client, so two updates can differ in one example (policy.full_passes)")
	}
	c := &plan.Client
	if len(p.Optimizers) > 0 && !slices.Contains(p.Optimizers, c.Optimizer) {
		reasons = append(reasons, fmt.Sprintf("client.optimizer is %s, allowed are %s (policy.optimizers)", c.Optimizer, strings.Join(p.Optimizers, ", ")))
	}
	if p.MostEpsilon > 0 && c.Epsilon > p.MostEpsilon {
		reasons = append(reasons, fmt.Sprintf("client.epsilon is %g, the maximum is %g (policy.most_epsilon)", c.Epsilon, p.MostEpsilon))
	}
	rate, setting := c.Rate, "client.lr"
	switch {
	case c.RateEnd > 0:
		rate, setting = c.RateEnd, "client.lr_end"
	case c.Decay.Every > 0:
		rate, setting = c.Rate*math.Pow(c.Decay.Factor, float64(plan.Rounds/c.Decay.Every)), "client.lr at the end of its decay"
	}
	if rate < p.LeastRate {
		reasons = append(reasons, fmt.Sprintf("%s is %g, the minimum is %g (policy.least_lr)", setting, rate, p.LeastRate))
	}
	return reasons
}

// Warn returns a sentence that explains why agents with the default policy decline a plan, or
// an empty string. fleet is the number of clients, or 0 if it is not known yet.
func Warn(plan *fed.Plan, fleet int) string {
	usual := Default()
	reasons := usual.Check(plan, fleet)
	if len(reasons) == 0 {
		return ""
	}
	with := ""
	if fleet > 0 {
		with = fmt.Sprintf(" with a fleet of %d", fleet)
	}
	return "agents with default settings decline this plan" + with + ": " + strings.Join(reasons, "; ")
}

// together returns the plan's minimum numbers of clients in a round and of updates in a merge.
// A number is 0 if it depends on a fleet of unknown size. Lost and declining clients may lower
// these numbers.
func together(plan *fed.Plan, fleet int) (cohort, merge int) {
	s := &plan.Schedule
	cohort = cmp.Or(s.Cohort, fleet)
	switch s.Kind {
	case "buffered":
		return cohort, s.Buffer
	case "periodic":
		return cohort, 1
	}
	if s.Deadline > 0 && cohort > 0 { // without a quorum, one update suffices
		cohort = max(int(math.Ceil(float64(cohort)*s.Quorum-1e-9)), 1)
	}
	return cohort, cohort
}

// CheckKeeper returns the reason to decline a private plan because of a keeper with the given
// identity and minimum number of agents per sum, or an empty string.
func (p *Policy) CheckKeeper(pin member.Pin, least int64) string {
	switch {
	case len(p.Keepers) == 0:
		return "this agent trusts no keeper (policy.keepers)"
	case !slices.Contains(p.Keepers, pin.String()):
		return fmt.Sprintf("keeper %s is not one that this agent trusts (policy.keepers)", pin)
	case least < int64(p.LeastMembers):
		return fmt.Sprintf("keeper %s releases sums of %d agents, the minimum is %d (policy.least_members)", pin, least, p.LeastMembers)
	}
	return ""
}

// CheckKeepers returns the reason to decline a private plan, if one is known before the keepers
// answer, and otherwise the condition that their rules must meet. Both may be empty.
func (p *Policy) CheckKeepers(plan *fed.Plan) (reason, condition string) {
	if !recipe.Private(plan) || p.Private == PrivateNever {
		return "", ""
	}
	named := len(plan.Privacy.Keepers)
	switch {
	case len(p.Keepers) == 0:
		return "this agent trusts no keeper (policy.keepers)", ""
	case len(p.Keepers) < named:
		return fmt.Sprintf("the plan has %d keepers, and this agent trusts %d (policy.keepers)", named, len(p.Keepers)), ""
	case p.LeastMembers == 0:
		return "", ""
	}
	condition = fmt.Sprintf("each of its keepers has least: %d or more in keeper.yaml", p.LeastMembers)
	if plan.Privacy.Least < p.LeastMembers {
		return fmt.Sprintf("privacy.least is %d and policy.least_members is %d, unless %s", plan.Privacy.Least, p.LeastMembers, condition), ""
	}
	return "", condition + " (policy.least_members)"
}

// CheckClient returns the reason not to train a client with the given number of training
// examples, or an empty string.
func (p *Policy) CheckClient(plan *fed.Plan, examples int) string {
	if examples < p.LeastClientExamples {
		return fmt.Sprintf("it has %d training examples, the minimum is %d (policy.least_client_examples)", examples, p.LeastClientExamples)
	}
	n, of := examples, "training examples"
	if share := recipe.DrawOf(plan).Share; share < 1 {
		n, of = int(share*float64(examples)), "training examples in one of the two sets of client.query"
	}
	if n < p.LeastExamples {
		return fmt.Sprintf("it has %d %s, the minimum is %d (policy.least_examples)", n, of, p.LeastExamples)
	}
	if d := recipe.DrawOf(plan); !p.FullPasses && n < undrawn*d.Batch {
		return fmt.Sprintf("it has %d %s, fewer than %d batches of %d (policy.full_passes)", n, of, undrawn, d.Batch)
	}
	// The last batch of an epoch contains the remaining examples. If there are only a few
	// batches, the gradient of a small last batch is conspicuous. A server that knows the
	// number of examples could choose a batch size that leaves a single example for the last
	// batch.
	if d := recipe.DrawOf(plan); d.Steps == 0 && d.Batch > 0 {
		n := recipe.EpochOf(plan, examples)
		if rest := n % d.Batch; 0 < rest && rest < p.LeastBatch && n/d.Batch < mixed {
			return fmt.Sprintf("an epoch of %d of its training examples ends with a batch of %d, the minimum is %d (policy.least_batch)", n, rest, p.LeastBatch)
		}
	}
	return ""
}

// mixed is the minimum number of full batches in an epoch that ends with a smaller batch.
const mixed = 4

// undrawn is the minimum number of a client's examples, as a multiple of the batch size. With
// fewer examples, a batch could contain most of them and randomly omit only a few.
const undrawn = 8
