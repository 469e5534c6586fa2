package experiment

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/metric"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// Tuning searches a grid of settings for the plan with the lowest validation loss. It never
// reads the test split.
type Tuning struct {
	// Dir is the folder with the results of finished training runs, which are not repeated, and
	// the state of unfinished ones.
	Dir string
	// Plan is the text of the plan to improve. It is scored too, with all its rounds.
	Plan     []byte
	Axes     []Axis
	Seeds    []uint64
	Dataset  *series.Dataset
	DataPath string
	Kernel   *kernel.Set
	Parallel int
	// Budget is the CPU time of the search, or 0. If the whole grid is more expensive,
	// plans are first compared after fewer rounds, and only the best third continues.
	Budget time.Duration
	// Progress, if not nil, is called with the numbers of finished and of all training runs in
	// a stage.
	Progress func(stage, done, of int)
}

// Tuned is the result of a search.
type Tuned struct {
	Dataset   string `json:"dataset"`
	Generated bool   `json:"generated"`
	Clients   int    `json:"clients"`
	// Keys are the settings that vary.
	Keys []string `json:"keys"`
	// Stages contains the share of a plan's rounds in each stage of the search.
	Stages []float64 `json:"stages"`
	Seeds  []uint64  `json:"seeds"`
	// Candidates are the plans, the best first: plans of later stages come before plans of
	// earlier stages, and plans of the same stage are sorted by validation loss.
	Candidates []Candidate   `json:"plans"`
	CPU        metric.Number `json:"cpu_seconds"`
	// Plan is the best plan as YAML, with a comment on how it was found.
	Plan []byte `json:"-"`
}

// Candidate is a plan of the grid, with its scores on validation as means over seeds.
type Candidate struct {
	// Values are the values of the varied settings, or nil for the unchanged plan.
	Values []string `json:"values"`
	Given  bool     `json:"given"`
	Stage  int      `json:"stage"`  // the last stage that the plan reached
	Rounds int      `json:"rounds"` // rounds of that stage
	// Loss is the mean loss over clients. It is infinite if training diverged.
	Loss metric.Number `json:"loss"`
	// Change is the loss divided by the unchanged plan's loss, minus 1, or NaN before the last
	// stage. Lower is the share of clients whose loss is lower than with the unchanged plan.
	Change metric.Number `json:"change"`
	Lower  metric.Number `json:"clients_lower"`
	Mean   metric.Number `json:"relative_mae_mean"`
	Median metric.Number `json:"relative_mae_median"`
	CPU    metric.Number `json:"cpu_seconds"` // CPU time of all its stages

	set     Fragment
	plan    *fed.Plan // resolved
	clients []float64
}

const (
	thin      = 3 // a stage promotes one in this many plans, and multiplies the rounds by this number
	maxStages = 3 // maximum number of stages before the last one
	minRounds = 8 // minimum rounds of a plan in the first stage
)

// Run searches the grid.
func (t *Tuning) Run(ctx context.Context) (*Tuned, error) {
	if len(t.Seeds) == 0 {
		t.Seeds = []uint64{1}
	}
	all, err := t.candidates()
	if err != nil {
		return nil, err
	}
	results, err := openTrials(t.Dir, t.Dataset.Fingerprint(), t.Kernel.Name())
	if err != nil {
		return nil, err
	}
	out := &Tuned{Dataset: t.Dataset.Name, Generated: t.Dataset.Generated, Seeds: t.Seeds}
	for _, a := range t.Axes {
		out.Keys = append(out.Keys, a.Key)
	}
	given, rest := all[:1], all[1:]
	early := 0
	if t.Budget > 0 {
		// The cost of the unchanged plan predicts the cost of the others.
		if err := t.stage(ctx, results, given, 0, 0); err != nil {
			return nil, err
		}
		if early, err = t.plan(given[0], rest); err != nil {
			return nil, err
		}
	}
	for stage := range early {
		out.Stages = append(out.Stages, math.Pow(thin, float64(stage-early)))
		if err := t.stage(ctx, results, rest, stage, early); err != nil {
			return nil, err
		}
		rest = rest[:(len(rest)+thin-1)/thin]
	}
	out.Stages = append(out.Stages, 1)
	given[0].CPU = 0
	if err := t.stage(ctx, results, all[:1+len(rest)], early, early); err != nil {
		return nil, err
	}
	out.Clients = len(given[0].clients)
	first := given[0]
	for i := range all {
		c := &all[i]
		out.CPU += c.CPU
		if c.Stage < early {
			continue
		}
		c.Change = c.Loss/first.Loss - 1
		if len(c.clients) != len(first.clients) {
			continue // another lookback may exclude other clients
		}
		n, of := 0.0, 0.0
		for k, loss := range c.clients {
			if loss < first.clients[k] {
				n++
			}
			if !math.IsNaN(loss) {
				of++
			}
		}
		c.Lower = metric.Number(n / of)
	}
	slices.SortStableFunc(all, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(b.Stage, a.Stage), byLoss(a, b))
	})
	out.Candidates = all
	if out.Plan, err = t.best(out); err != nil {
		return nil, err
	}
	return out, out.write(t.Dir)
}

// byLoss orders candidates by loss. Plans that diverged come last. If the sort is stable, the
// unchanged plan comes before a plan with the same loss.
func byLoss(a, b Candidate) int { return cmp.Compare(a.Loss, b.Loss) }

// candidates returns the unchanged plan and all other points of the grid.
func (t *Tuning) candidates() ([]Candidate, error) {
	var base Fragment
	if err := yaml.Unmarshal(t.Plan, &base); err != nil {
		return nil, err
	}
	var (
		all   []Candidate
		texts [][]byte
	)
	for i, pt := range append([]point{{}}, (&Part{Grid: t.Axes}).points()...) {
		c := Candidate{Values: pt.at, Given: i == 0, set: overlay(base, pt.set), Change: metric.Number(math.NaN()), Lower: metric.Number(math.NaN())}
		text, err := yaml.Marshal(map[string]any(c.set))
		if err != nil {
			return nil, err
		}
		if c.plan, err = recipe.Read(text); err == nil {
			c.plan, err = recipe.Resolve(c.plan, t.Dataset.Interval)
		}
		if err == nil && i > 0 {
			err = sameTask(all[0].plan, c.plan)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name(t.Axes), err)
		}
		if text, err = recipe.Write(c.plan); err != nil {
			return nil, err
		}
		if known := slices.IndexFunc(texts, func(k []byte) bool { return bytes.Equal(k, text) }); known >= 0 {
			if known == 0 {
				all[0].Values = pt.at // the grid contains the unchanged plan
			}
			continue
		}
		all, texts = append(all, c), append(texts, text)
	}
	if len(all) == 1 {
		return nil, errors.New("the grid has no plan other than the given one; give other values")
	}
	return all, nil
}

// sameTask returns an error if the validation losses of two plans belong to different tasks.
func sameTask(a, b *fed.Plan) error {
	type task struct {
		Horizon, Targets    fed.Timespan
		Scaling, Loss       string
		Quantiles           string
		Split               fed.Split
		Gaps                float64
		Holdout             float64
		Stride              fed.Timespan
		Seed                uint64
		Reference, Interval string
	}
	of := func(p *fed.Plan) task {
		m, e := p.Model, p.Evaluate
		return task{
			m.Horizon, m.Targets, m.Scaling, m.Loss, fmt.Sprint(m.Quantiles), m.Split, m.Gaps, e.Holdout, e.Stride,
			p.Seed, e.Reference, m.Interval.String(),
		}
	}
	if of(a) != of(b) {
		return errors.New("validation losses of this plan and the given one cannot be compared: " +
			"do not vary the seed, model.horizon, targets, scaling, loss, quantiles, split or gaps, or evaluate.holdout, stride or reference")
	}
	return nil
}

func (c *Candidate) name(axes []Axis) string {
	if c.Values == nil {
		return "the plan as it is"
	}
	var parts []string
	for i, a := range axes {
		parts = append(parts, a.Key+"="+c.Values[i])
	}
	return strings.Join(parts, " ")
}

// rounds returns the number of rounds of a candidate in a stage. The argument early is the
// number of stages before the last.
func (c *Candidate) rounds(stage, early int) int {
	n := c.plan.Rounds
	for range early - stage {
		n = (n + thin - 1) / thin
	}
	return n
}

// plan returns the minimum number of stages before the last with which the search probably
// stays within the budget.
func (t *Tuning) plan(given Candidate, rest []Candidate) (early int, err error) {
	whole, err := t.work(&given)
	if err != nil {
		return 0, err
	}
	most, fewest := 0.0, math.MaxInt
	for i := range rest {
		w, err := t.work(&rest[i])
		if err != nil {
			return 0, err
		}
		most, fewest = most+w/float64(len(rest)), min(fewest, rest[i].plan.Rounds)
	}
	each := float64(given.CPU) * most / whole // CPU time of the mean candidate
	var cost float64
	for early = 0; ; early++ {
		cost = float64(given.CPU)
		n, share := len(rest), math.Pow(thin, -float64(early))
		for range early {
			cost += float64(n) * share * each
			n, share = (n+thin-1)/thin, share*thin
		}
		cost += float64(n) * each
		next := float64(fewest) * math.Pow(thin, -float64(early+1))
		if cost <= t.Budget.Seconds() || early == maxStages || next < minRounds {
			break
		}
	}
	if cost > t.Budget.Seconds() {
		return 0, fmt.Errorf("the grid needs about %s of CPU time with %d short stages before the last, more than the budget of %s: give fewer values or a larger budget; the plan as it is took %s and is not trained again",
			seconds(cost), early, t.Budget, seconds(float64(given.CPU)))
	}
	return early, nil
}

// work returns a number to which the time of a candidate's training is roughly proportional:
// the examples of all gradient steps, times the weights of the model.
func (t *Tuning) work(c *Candidate) (float64, error) {
	q, err := recipe.Frame(c.plan, t.Dataset)
	if err != nil {
		return 0, err
	}
	all := q.Examples(t.Dataset.Meter(0), nil)
	steps := recipe.StepsOf(c.plan, all.Len(series.Train)*all.PerOrigin())
	cohort := cmp.Or(c.plan.Schedule.Cohort, t.Dataset.Len())
	return float64(c.plan.Rounds) * float64(cohort) * float64(steps) * float64(c.plan.Client.Batch) * float64(q.Model.Net().Weights()), nil
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Second)
}

// stage trains candidates for a stage's number of rounds, adds their scores, and sorts all
// except the given plan by loss.
func (t *Tuning) stage(ctx context.Context, results *trials, of []Candidate, stage, early int) error {
	type job struct{ candidate, seed int }
	var jobs []job
	scores := make([][]trialResult, len(of))
	for i := range of {
		scores[i] = make([]trialResult, len(t.Seeds))
		for k := range t.Seeds {
			jobs = append(jobs, job{i, k})
		}
	}
	var (
		mu   sync.Mutex
		done int
	)
	report := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		done += n
		if t.Progress != nil {
			t.Progress(stage, done, len(jobs))
		}
	}
	report(0)
	outer := ctx
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(t.Parallel, 1))
	for _, j := range jobs {
		g.Go(func() error {
			p := *of[j.candidate].plan
			p.Rounds, p.Seed, p.Name = of[j.candidate].rounds(stage, early), t.Seeds[j.seed], "candidate"
			r, err := t.trial(ctx, results, &p)
			if err != nil {
				return fmt.Errorf("%s: %w", of[j.candidate].name(t.Axes), err)
			}
			scores[j.candidate][j.seed] = r
			report(1)
			return nil
		})
	}
	if err := g.Wait(); outer.Err() != nil {
		return outer.Err() // the simulator's error names a flag that this search does not have
	} else if err != nil {
		return err
	}
	for i := range of {
		of[i].score(scores[i], stage, of[i].rounds(stage, early))
	}
	from := 0
	if of[0].Given {
		from = 1
		if of[0].Loss > metric.Number(math.MaxFloat64) {
			return fmt.Errorf("the plan as it is: %w", fed.ErrDiverged)
		}
	}
	slices.SortStableFunc(of[from:], byLoss)
	return nil
}

// score sets the scores of a stage, which are means over the seeds.
func (c *Candidate) score(seeds []trialResult, stage, rounds int) {
	c.Stage, c.Rounds, c.Loss, c.Mean, c.Median = stage, rounds, 0, 0, 0
	c.clients = nil
	n := float64(len(seeds))
	for _, s := range seeds {
		c.CPU += metric.Number(s.CPU)
		losses := floats(s.Loss)
		loss := float64(metric.NewSpread(losses).Mean)
		if s.Diverged || math.IsNaN(loss) {
			loss = math.Inf(1)
		}
		relative := metric.NewSpread(floats(s.Relative))
		c.Loss += metric.Number(loss / n)
		c.Mean, c.Median = c.Mean+relative.Mean/metric.Number(n), c.Median+relative.Median/metric.Number(n)
		if c.clients == nil {
			c.clients = make([]float64, len(losses))
		}
		for i := range min(len(c.clients), len(losses)) {
			c.clients[i] += losses[i] / n
		}
	}
}

// ParseAxis parses a setting and its values, such as client.lr=0.002,0.005. Commas in
// brackets are part of a value.
func ParseAxis(s string) (Axis, error) {
	key, list, ok := strings.Cut(s, "=")
	if !ok || key == "" || list == "" {
		return Axis{}, fmt.Errorf("%q is not a setting with values: write one such as client.lr=0.002,0.005", s)
	}
	a := Axis{Key: key}
	depth, from := 0, 0
	for i := 0; i <= len(list); i++ {
		switch {
		case i < len(list) && strings.ContainsRune("[{", rune(list[i])):
			depth++
		case i < len(list) && strings.ContainsRune("]}", rune(list[i])):
			depth--
		case i == len(list) || list[i] == ',' && depth == 0:
			text := strings.TrimSpace(list[from:i])
			var v Scalar
			if err := yaml.Unmarshal([]byte(text), &v); err != nil || text == "" {
				return a, fmt.Errorf("%s: %q is not a value", key, text)
			}
			a.Values, a.Names, from = append(a.Values, v), append(a.Names, text), i+1
		}
	}
	return a, nil
}
