package recipe

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"loadstar/fed"
	"loadstar/internal/config"
)

// Read reads a plan, fills in the defaults of its algorithm, and checks everything that can be
// checked without data. The error is a [config.Problems] that lists all mistakes with their
// line numbers.
func Read(data []byte) (*fed.Plan, error) {
	lines, err := config.Keys(data) // other errors are ignored, because Decode reports them
	if lines == nil {
		return nil, err
	}
	chosen := &fed.Plan{}
	wrong := problems(config.Decode(data, chosen))
	for i := range wrong {
		if strings.HasPrefix(wrong[i].Text, "data is not known;") {
			wrong[i].Text = "data is not known: a plan names no dataset; name it on the command line with --data"
		}
	}
	a := find(chosen.Algorithm)
	if a == nil {
		switch {
		case chosen.Algorithm == "" && misspeltKey(lines):
			// Decode has already reported the misspelt key.
		case chosen.Algorithm == "":
			wrong.Add(0, "algorithm is missing; it must be one of %s", strings.Join(Names(), ", "))
		default:
			wrong.Add(lines["algorithm"], "algorithm %q is not known; %s", chosen.Algorithm, config.Suggest(chosen.Algorithm, Names()))
		}
		return nil, wrong.Err()
	}
	p := a.defaultPlan(chosen)
	_ = config.Decode(data, p) // the first Decode found the same problems
	a.adjustDefaults(p, func(path string) bool { _, given := lines[path]; return given })

	has := a.pathsOf(p)
	for path, line := range lines {
		if position(path) < 0 || slices.Contains(has, path) {
			continue // Decode reported unknown keys
		}
		section, choices := settingContext(a, p, path)
		known := inSection(has, section)
		if len(known) == 0 {
			wrong.Add(line, "%s is not a setting of %s; it has no settings in %s", path, choices, section)
			continue
		}
		wrong.Add(line, "%s is not a setting of %s; it has %s", path, choices, strings.Join(known, ", "))
	}
	a.strip(p, has)
	for _, x := range validate(a, p) {
		wrong.Add(lines[x.path], "%s", x.text)
	}
	if err := wrong.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

// problems returns the mistakes in an error of config.Decode.
func problems(err error) (found config.Problems) {
	errors.As(err, &found)
	return found
}

// inSection returns the given settings that are in a section, without the section's name.
func inSection(has []string, section string) []string {
	var out []string
	for _, path := range has {
		if rest, ok := strings.CutPrefix(path, section+"."); ok {
			out = append(out, rest)
		}
	}
	return out
}

// settingContext returns two parts of an error message: the section of a setting, and the
// algorithm with the choices on which the section's settings depend.
func settingContext(a *algorithm, p *fed.Plan, path string) (section, choices string) {
	section, _, _ = strings.Cut(path, ".")
	choices = a.name
	switch {
	case section == "client" && strings.HasSuffix(path, ".resample") && !a.fullPass:
		choices += " with epochs"
	case section == "client" && len(a.optimizers) > 1:
		choices += " with client.optimizer " + p.Client.Optimizer
	case path == "server.start_steps" || path == serverClients.path:
		choices += " without start server-data"
	case section == "server" && a.serverOptimizer == anyOptimizer:
		choices += " with server.optimizer " + p.Server.Optimizer
	case section == "server" && strings.HasSuffix(path, ".max_examples") && len(a.weightings) > 1:
		choices += " with server.weighting " + p.Server.Weighting
	case section == "schedule" && a.schedules != nil:
		choices += " with a " + p.Schedule.Kind + " schedule"
	case section == "simulate" && a.schedules != nil && p.Simulate.Delay != "":
		choices += " with simulate.delay " + p.Simulate.Delay
	case path == "evaluate.weights" && a.begins:
		choices += " with client.begin " + p.Client.Begin
	case section == "model":
		choices = fmt.Sprintf("model %s with model.loss %s", p.Model.Name, p.Model.Loss)
	}
	return section, choices
}

// defaultPlan returns a plan with the defaults for the choices in chosen. All other fields
// of chosen are ignored.
func (a *algorithm) defaultPlan(chosen *fed.Plan) *fed.Plan {
	p := &fed.Plan{}
	for _, s := range a.allSettings() {
		s.reset(p)
	}
	p.Name, p.Algorithm = a.name, a.name
	p.Client.Optimizer = a.optimizers[0]
	p.Server.Weighting = a.weightings[0]
	if a.partition != "" {
		p.Partition = a.partition
	}
	if a.schedules != nil {
		p.Schedule.Kind = a.schedules[0]
	}
	if a.serverOptimizer != "" && a.serverOptimizer != anyOptimizer {
		p.Server.Optimizer = a.serverOptimizer
	}
	// The algorithm's defaults may choose the optimizers, and they override the
	// optimizers' defaults. They are therefore applied both before and after the
	// optimizers' defaults.
	if a.defaults != nil {
		a.defaults(p)
	}
	for _, c := range []struct {
		dst *string
		v   string
	}{
		{&p.Model.Name, chosen.Model.Name},
		{&p.Client.Optimizer, chosen.Client.Optimizer},
		{&p.Server.Optimizer, chosen.Server.Optimizer},
		{&p.Schedule.Kind, chosen.Schedule.Kind},
	} {
		if c.v != "" {
			*c.dst = c.v
		}
	}
	name, kind, client, server := p.Model.Name, p.Schedule.Kind, p.Client.Optimizer, p.Server.Optimizer
	if o := findClientOptimizer(client); o != nil {
		p.Client.Rate = o.rate
	}
	if o := findServerOptimizer(server); o != nil {
		o.defaults(&p.Server)
	}
	if a.defaults != nil {
		a.defaults(p)
	}
	p.Model.Name, p.Schedule.Kind, p.Client.Optimizer, p.Server.Optimizer = name, kind, client, server
	a.modelDefaults(p, chosen)
	return p
}

// adjustDefaults sets the defaults that depend on other settings of the plan.
func (a *algorithm) adjustDefaults(p *fed.Plan, given func(path string) bool) {
	for _, s := range a.allSettings() {
		if s.adjust != nil && !given(s.path) {
			s.adjust(p, given)
		}
	}
	if a.adjust != nil {
		a.adjust(p, given)
	}
	if len(p.Model.Inputs) == 0 {
		p.Model.Inputs = nil
	}
	if len(p.Model.Quantiles) == 0 {
		p.Model.Quantiles = nil
	}
}

// strip sets all settings that are not in has to zero, except for those that the algorithm
// fixes.
func (a *algorithm) strip(p *fed.Plan, has []string) {
	fixed := *p
	for _, path := range paths {
		if !slices.Contains(has, path) {
			field(p, path).SetZero()
		}
	}
	p.Server.Weighting = fixed.Server.Weighting
	if a.serverOptimizer != "" {
		p.Server.Optimizer = fixed.Server.Optimizer
	}
	if a.mergesEach {
		p.Schedule.Buffer = fixed.Schedule.Buffer
	}
}

// misspeltKey reports whether one of the keys of a plan looks like a misspelt algorithm.
func misspeltKey(lines map[string]int) bool {
	for key := range lines {
		if position(key) < 0 && strings.HasPrefix(config.Suggest(key, []string{"algorithm"}), "did you mean ") {
			return true
		}
	}
	return false
}
