package recipe

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"loadstar/fed"
	"loadstar/internal/config"
)

// Read reads a plan over the defaults of its algorithm, and checks everything that
// can be checked without data. The error is [config.Problems]: all that is wrong,
// with lines.
func Read(data []byte) (*fed.Plan, error) {
	lines, _ := config.Keys(data) // Decode reports what is no YAML
	chosen := &fed.Plan{}
	wrong := problems(config.Decode(data, chosen))
	a := find(chosen.Algorithm)
	if a == nil {
		if chosen.Algorithm == "" {
			wrong.Add(0, "algorithm is missing; there are %s", strings.Join(Names(), ", "))
		} else {
			wrong.Add(lines["algorithm"], "algorithm %q is not known; %s", chosen.Algorithm, config.Suggest(chosen.Algorithm, Names()))
		}
		return nil, wrong.Err()
	}
	p := defaults(a, chosen)
	_ = config.Decode(data, p) // says the same again
	settle(p, lines)

	has := keysOf(a, p)
	for path, line := range lines {
		if keyOf(path) == nil || slices.Contains(has, path) {
			continue // no setting at all was reported before
		}
		name, of := section(a, p, path)
		theirs := within(has, name)
		if len(theirs) == 0 {
			wrong.Add(line, "%s is not a setting of %s; it has none of %s", path, of, name)
			continue
		}
		wrong.Add(line, "%s is not a setting of %s; it has %s", path, of, strings.Join(theirs, ", "))
	}
	strip(a, p, has)
	for _, x := range validate(a, p) {
		wrong.Add(lines[x.path], "%s", x.text)
	}
	if err := wrong.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

// problems returns what Decode found.
func problems(err error) (found config.Problems) {
	errors.As(err, &found)
	return found
}

// within returns the settings of a section, without its name.
func within(has []string, section string) []string {
	var out []string
	for _, k := range keys {
		if rest, ok := strings.CutPrefix(k.path, section+"."); ok && slices.Contains(has, k.path) {
			out = append(out, rest)
		}
	}
	return out
}

// defaults returns what a plan is before it says anything but its choices.
func defaults(a *algorithm, chosen *fed.Plan) *fed.Plan {
	p := &fed.Plan{Name: a.name, Algorithm: a.name}
	house(p)
	if a.optimizers != nil {
		p.Client.Optimizer = a.optimizers[0]
	}
	if a.partition != "" {
		p.Partition = a.partition
	}
	if a.kinds != nil {
		p.Schedule.Kind = a.kinds[0]
	}
	p.Server.Weighting = a.weightings[0]
	if a.behind != "" && a.behind != "any" {
		p.Server.Optimizer = a.behind
	}
	// What an algorithm sets comes after its optimizers' values, but may be a choice
	// that these depend on.
	set := func() {
		if a.set != nil {
			a.set(p)
		}
	}
	set()
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
	for _, o := range slices.Concat(clientOptimizers, serverOptimizers) {
		if o.name == client || o.name == server {
			o.set(p)
		}
	}
	set()
	p.Model.Name, p.Schedule.Kind, p.Client.Optimizer, p.Server.Optimizer = name, kind, client, server
	ofModel(p)
	return p
}

// settle makes up the defaults that depend on what the plan says.
func settle(p *fed.Plan, set map[string]int) {
	is := func(path string) bool { _, ok := set[path]; return ok }
	// Steps alone replace default epochs, and the other way round.
	oneOf := func(steps, epochs string, s, e *int) {
		if is(steps) && !is(epochs) {
			*e = 0
		} else if is(epochs) && !is(steps) {
			*s = 0
		}
	}
	oneOf("client.steps", "client.epochs", &p.Client.Steps, &p.Client.Epochs)
	oneOf("evaluate.fine_tune.steps", "evaluate.fine_tune.epochs", &p.Evaluate.FineTune.Steps, &p.Evaluate.FineTune.Epochs)
	if !is("server.dampening") {
		p.Server.Dampening = p.Server.Beta1
	}
	if p.Server.Discount == "hinge" && !is("server.exponent") {
		p.Server.Exponent = 10 // of the same paper as 0.5 for the polynomial
	}
	if p.Model.Split.Validation == 0 && !is("evaluate.every") {
		p.Evaluate.Every = 0
	}
	if p.Schedule.Kind != "periodic" && !is("simulate.delay") {
		p.Simulate.Delay = ""
	}
	if p.Server.Variant == "no-prox" && !is("client.mu") {
		p.Client.Mu = 0
	}
	if len(p.Model.Inputs) == 0 {
		p.Model.Inputs = nil
	}
	if len(p.Model.Quantiles) == 0 {
		p.Model.Quantiles = nil
	}
}

// strip takes out the values of settings that the plan does not have, but for those
// that its algorithm fixes.
func strip(a *algorithm, p *fed.Plan, has []string) {
	fixed := *p
	for _, k := range keys {
		if !slices.Contains(has, k.path) {
			field(p, k.path).SetZero()
		}
	}
	p.Server.Weighting = fixed.Server.Weighting
	if a.behind != "" {
		p.Server.Optimizer = fixed.Server.Optimizer
	}
	if a.eager {
		p.Schedule.Buffer = fixed.Schedule.Buffer
	}
}

// Write writes a plan with all its settings, as Read reads them.
func Write(p *fed.Plan) ([]byte, error) { return write(p, false) }

// Template returns a plan for an algorithm with its defaults, and a comment on each
// setting.
func Template(name, data string) ([]byte, error) {
	a := find(name)
	if a == nil {
		return nil, fmt.Errorf("no algorithm %q; %s", name, config.Suggest(name, Names()))
	}
	p := defaults(a, &fed.Plan{})
	settle(p, nil)
	p.Data = data
	strip(a, p, keysOf(a, p))
	body, err := write(p, true)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "# %s: %s.\n# %s.\n# What stands here are the defaults: whatever is deleted stays as it is.\n%s", a.name, a.about, a.paper, body), nil
}

func write(p *fed.Plan, comments bool) ([]byte, error) {
	a := find(p.Algorithm)
	if a == nil {
		return nil, fmt.Errorf("no algorithm %q", p.Algorithm)
	}
	var doc yaml.Node
	if err := doc.Encode(p); err != nil {
		return nil, err
	}
	has := keysOf(a, p)
	omit := func(path string) { has = slices.DeleteFunc(has, func(h string) bool { return h == path }) }
	// One of them is 0, and Read knows by the other.
	if p.Client.Epochs == 0 {
		omit("client.epochs")
	}
	if p.Client.Steps == 0 {
		omit("client.steps")
	}
	if len(p.Model.Inputs) == 0 {
		omit("model.inputs")
	}
	if p.Data == "" {
		omit("data")
	}
	var comment func(path string) string
	if comments {
		comment = func(path string) string { return explain(a, path) }
	}
	prune(&doc, "", has, comment)
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// prune leaves the settings that are listed, and comments on them if there is a
// comment.
func prune(n *yaml.Node, path string, has []string, comment func(path string) string) {
	var left []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		at := strings.TrimPrefix(path+"."+name.Value, ".")
		switch {
		case value.Kind == yaml.MappingNode && value.Style&yaml.FlowStyle != 0:
			prune(value, at, has, nil)
			if comment != nil {
				value.LineComment = flowComments[at]
			}
		case value.Kind == yaml.MappingNode:
			prune(value, at, has, comment)
		case !slices.Contains(has, at):
			continue
		case comment != nil:
			value.LineComment = comment(at)
		}
		if value.Kind == yaml.MappingNode && len(value.Content) == 0 {
			continue
		}
		left = append(left, name, value)
	}
	n.Content = left
}

// explain says what a setting is, and what it can be with an algorithm.
func explain(a *algorithm, path string) string {
	about, choices := keyOf(path).about, choicesOf(a, path)
	if len(choices) < 2 || strings.Contains(about, ":") || path == "simulate.delay" || path == "model.loss" {
		return about // and it says which
	}
	return about + ": " + either(choices)
}

// flowComments are those of settings that stand in one line.
var flowComments = map[string]string{
	"model.split":        "shares of each client's span; the rest tests",
	"client.decay":       "multiply the learning rate every so many rounds; 0 is never",
	"evaluate.fine_tune": "local training before a client is scored in the end; none if both are 0",
}
