package recipe

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"loadstar/fed"
	"loadstar/fed/exact"
	"loadstar/forecast"
	"loadstar/internal/config"
	"loadstar/nn"
	"loadstar/series"
)

// mistake is an error message about the setting at path.
type mistake struct{ path, text string }

// validName matches the permitted names of plans, all of which are valid folder names.
var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9 ._+-]*$`)

// validate returns all mistakes in a plan that can be found without data.
func validate(a *algorithm, p *fed.Plan) []mistake {
	wrong := validateSettings(a, p)
	bad := func(path string) bool {
		return slices.ContainsFunc(wrong, func(m mistake) bool { return m.path == path })
	}
	if !bad("model.name") {
		validateModel(a, p, bad, func(path, format string, x ...any) {
			wrong = append(wrong, mistake{path, fmt.Sprintf(format, x...)})
		})
	}
	return wrong
}

// validateSettings returns the mistakes that can be found without building the plan's
// model.
func validateSettings(a *algorithm, p *fed.Plan) (wrong []mistake) {
	add := func(path, format string, x ...any) {
		wrong = append(wrong, mistake{path, fmt.Sprintf(format, x...)})
	}
	bad := func(path string) bool {
		return slices.ContainsFunc(wrong, func(m mistake) bool { return m.path == path })
	}

	for _, s := range a.settingsOf(p) {
		v := field(p, s.path)
		if s.choices != nil && !slices.Contains(s.choices, v.String()) {
			add(s.path, "%s is %q; with %s it must be %s", s.path, v.String(), a.name, alternatives(s.choices))
		}
		if s.must.ok != nil && !s.must.ok(number(v)) {
			add(s.path, "%s is %v; it must be %s", s.path, v.Interface(), s.must.say)
		}
	}
	if !validName.MatchString(p.Name) {
		add("name", "name is %q; it must start with a letter or digit and contain only letters, digits, spaces and . _ + -", p.Name)
	}
	validateData(p, bad, add)
	if a.partition != "" && p.Partition != a.partition {
		add("partition", "partition is %q; with %s it must be %s", p.Partition, a.name, a.partition)
	}

	c := &p.Client
	if !a.fullPass && !bad("client.steps") && !bad("client.epochs") {
		switch {
		case c.Steps > 0 && c.Epochs > 0:
			add("client.epochs", "client.steps is %d and client.epochs is %d; set only one of them", c.Steps, c.Epochs)
		case c.Steps == 0 && c.Epochs == 0:
			add("client.steps", "client.steps and client.epochs are both 0; one of them must be at least 1")
		}
	}
	validateRate(p, bad, add)
	validateBegin(p, add)
	validateRobust(p, add)
	if !a.noServer {
		validatePrivacy(a, p, add)
	}
	if a.check != nil {
		a.check(p, add)
	}
	// Build the aggregator only if all settings are valid, because its constructor may depend on
	// their validity.
	if len(wrong) == 0 && p.Server.Clients == 0 {
		const advice = "needs data on the server: set the share of clients that provide it"
		switch {
		case a.newAggregator(p).Needs().ServerData:
			add("server.clients", "server.clients is 0, but %s %s", a.name, advice)
		case StartsOnServerData(p):
			add("server.clients", "server.clients is 0, but start server-data %s", advice)
		}
	}
	validateSchedule(p, add)
	validateEvaluation(p, add)
	if s := &p.Schedule; !a.noServer && !bad("server.bound") && !bad("server.max_examples") {
		if _, err := exact.NewScale(p.Server.Bound, maxWeight(p), int64(max(s.Cohort, s.Buffer, 1))); err != nil {
			add("server.bound", "server.bound is %g: %s", p.Server.Bound, strings.TrimPrefix(err.Error(), "exact: "))
		}
	}
	return wrong
}

// validateRate checks the learning rate, the settings that depend on it, and the moments.
func validateRate(p *fed.Plan, bad func(string) bool, add report) {
	c := &p.Client
	if c.RateEnd > 0 && c.Decay.Every > 0 {
		add("client.lr_end", "client.lr_end is %g and client.decay.every is %d; the learning rate falls either along a cosine or in steps, so set only one of them", c.RateEnd, c.Decay.Every)
	}
	if c.RateEnd > c.Rate {
		add("client.lr_end", "client.lr_end is %g, but client.lr is %g; the learning rate cannot rise", c.RateEnd, c.Rate)
	}
	if most := max(c.Rate, p.Evaluate.FineTune.Rate) * (c.WeightDecay.All + c.WeightDecay.Correction); most >= 1 {
		add("client.weight_decay", "client.weight_decay times the learning rate is up to %g; it must be below 1, or a step would change the sign of weights", most)
	}
	if !Averaged(p) || bad("client.moments") {
		return
	}
	if c.Optimizer == "amsgrad" {
		add("client.moments", "client.moments averaged works with adam and proxadam, but not with amsgrad: the mean of largest moments is not a largest moment")
	}
	if p.Server.Rate != 1 {
		add("client.moments", "client.moments averaged needs server.lr 1, not %g: the moments must be the mean of the clients' moments", p.Server.Rate)
	}
}

func validateSchedule(p *fed.Plan, add report) {
	s := &p.Schedule
	if s.Quorum > 0 && s.Deadline == 0 {
		add("schedule.quorum", "schedule.quorum needs a schedule.deadline: without one, a round waits for all clients")
	}
	if s.Over > 0 && s.Cohort == 0 {
		add("schedule.over_selection", "schedule.over_selection needs a schedule.cohort: without one, the whole fleet is asked")
	}
	if p.Simulate.Delay != "" && s.Kind != "periodic" {
		add("simulate.delay", "simulate.delay %s needs a periodic schedule", p.Simulate.Delay)
	}
}

func validateEvaluation(p *fed.Plan, add report) {
	e := &p.Evaluate
	if e.Every > 0 && p.Model.Split.Validation == 0 {
		add("evaluate.every", "evaluate.every is %d, but model.split has no validation split", e.Every)
	}
	if e.Patience > 0 && e.Every == 0 {
		add("evaluate.patience", "evaluate.patience is %d, but evaluate.every is 0: without evaluations there is no validation loss to watch", e.Patience)
	}
	if e.Sample == "holdout" && e.Keep == "best" {
		add("evaluate.sample", "evaluate.sample holdout needs evaluate.keep last: held-out clients have no earlier weights")
	}
	if e.FineTune.Steps > 0 && e.FineTune.Epochs > 0 {
		add("evaluate.fine_tune.epochs", "evaluate.fine_tune has both steps and epochs; set only one of them")
	}
	tunes := e.FineTune.Steps > 0 || e.FineTune.Epochs > 0
	if e.FineTune.Rate > 0 && !tunes {
		add("evaluate.fine_tune.lr", "evaluate.fine_tune.lr is %g, but there are no steps or epochs", e.FineTune.Rate)
	}
	if e.FineTune.Choose == "validation" && p.Model.Split.Validation == 0 {
		add("evaluate.fine_tune.choose", "evaluate.fine_tune.choose is validation, but model.split has no validation split")
	}
	if e.FineTune.Choose == "validation" && !tunes && e.Keep != "best" {
		add("evaluate.fine_tune.choose", "evaluate.fine_tune.choose is validation, but there is nothing to choose from; set evaluate.fine_tune.steps or evaluate.keep: best")
	}
	switch {
	case e.Keep != "best":
	case p.Model.Split.Validation == 0:
		add("evaluate.keep", "evaluate.keep best needs a validation split, but model.split has none")
	case e.FineTune.Choose != "validation":
		add("evaluate.keep", "evaluate.keep best needs evaluate.fine_tune.choose validation, which chooses between the best and the last weights")
	case e.Every == 0:
		add("evaluate.keep", "evaluate.keep best needs evaluate.every, the rounds after which weights are scored")
	}
	if e.Holdout > 0 && p.Partition != forecast.PartitionNone && !tunes {
		add("evaluate.holdout", "evaluate.holdout needs evaluate.fine_tune: without it, held-out clients have untrained personal layers")
	}
	if e.Holdout+p.Server.Clients >= 1 {
		add("evaluate.holdout", "evaluate.holdout and server.clients leave no client to train")
	}
}

// validateData checks inputs, loss and split.
func validateData(p *fed.Plan, bad func(string) bool, add report) {
	m := &p.Model
	if m.Loss == "pinball" {
		if len(m.Quantiles) == 0 {
			add("model.loss", "model.loss pinball needs model.quantiles, such as [0.1, 0.5, 0.9]")
		} else if _, err := nn.NewPinball(m.Quantiles...); err != nil {
			add("model.quantiles", "model.quantiles: %s", strings.TrimPrefix(err.Error(), "nn: "))
		}
	}
	if Rows(p) {
		validateRows(p, add)
	}
	var seen []series.Input
	for _, s := range m.Inputs {
		if Rows(p) {
			break // validateRows checks the groups
		}
		in, err := series.ParseInput(s)
		switch {
		case err != nil:
			add("model.inputs", "model.inputs: %s", err)
		case slices.Contains(seen, in):
			add("model.inputs", "model.inputs: %s is listed twice", in)
		default:
			if hint := misspelt(in.Name); hint != "" {
				add("model.inputs", "model.inputs: %s is not known; %s", in.Name, hint)
			}
		}
		seen = append(seen, in)
	}
	if t := m.Split.Train + m.Split.Validation; !bad("model.split.train") && !bad("model.split.validation") && t > 1-1e-9 {
		add("model.split.validation", "model.split: %g and %g leave nothing for testing; their sum must be below 1", m.Split.Train, m.Split.Validation)
	}
}

// misspelt suggests another name for an input, or returns "". A dataset may have additional
// columns, such as wind2, so misspelt makes a suggestion only for a name that looks like a
// typo.
func misspelt(name string) string {
	names := series.InputNames()
	for _, known := range names {
		if strings.Contains(name, known) || strings.Contains(known, name) {
			return ""
		}
	}
	if hint := config.Suggest(name, names); strings.HasPrefix(hint, "did you mean ") {
		return hint
	}
	return ""
}

// validateModel checks that the model can be built and that its layers can be shared as the
// plan requires.
func validateModel(a *algorithm, p *fed.Plan, bad func(string) bool, add report) {
	model, _ := forecast.DefaultsOf(p.Model.Name)
	var shape forecast.Shape // a wrong span is empty, which does not affect the layers
	if q, err := Assume(p); err != nil {
		add("model.interval", "%s", err)
	} else if !bad("model.lookback") && !bad("model.targets") {
		shape = forecast.Shape{Lookback: q.Model.Lookback.Steps(), Outputs: model.PerExample(q.Model.Targets.Steps()) * max(len(p.Model.Quantiles), 1)}
	}
	m, err := forecast.New(p.Model.Name, shape)
	if err != nil {
		add("model.lookback", "%s", err)
		if m, err = forecast.New(p.Model.Name, forecast.Shape{}); err != nil {
			return
		}
	}
	if c := p.Client.WeightDecay.Correction; c > 0 && len(m.Correction()) == 0 {
		add("client.weight_decay.correction", "client.weight_decay.correction is %g, but model %s has no correction layers; use client.weight_decay.all", c, p.Model.Name)
	}
	if bad("partition") {
		return
	}
	part, err := m.Partition(p.Partition)
	switch {
	case err != nil:
		add("partition", "%s", err)
	case part.SharedLen() == 0 && p.Start != "":
		add("start", "start has shared weights, but partition %s shares no layers", p.Partition)
	case part.SharedLen() == 0 && !a.noServer:
		add("partition", "partition %s shares no layers, which %s needs; to train every client alone, use algorithm local", p.Partition, a.name)
	}
}

// maxWeight returns the largest weight that an update can have under the plan.
func maxWeight(p *fed.Plan) int64 {
	if p.Server.Weighting == "examples" {
		return int64(p.Server.MaxExamples)
	}
	return 1
}

// alternatives joins names with "or". It writes an empty name as "", as in a plan file.
func alternatives(all []string) string {
	all = slices.Clone(all)
	for i, c := range all {
		if c == "" {
			all[i] = `""`
		}
	}
	if len(all) == 1 {
		return all[0]
	}
	return strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]
}
