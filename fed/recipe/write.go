package recipe

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"loadstar/fed"
	"loadstar/forecast"
	"loadstar/internal/config"
)

// Write returns a plan as YAML with all its settings, except quiet settings whose value is the
// default for all models. Read returns the same plan from this text.
func Write(p *fed.Plan) ([]byte, error) { return write(p, false) }

// Template returns a plan with the defaults of an algorithm and a model, and a comment on each
// setting. If targets is 0 steps, the plan has as many targets as the model's paper.
func Template(name, model string, targets fed.Timespan) ([]byte, error) {
	a := find(name)
	if a == nil {
		return nil, fmt.Errorf("algorithm %q is not known; %s", name, config.Suggest(name, Names()))
	}
	if _, ok := forecast.DefaultsOf(model); !ok {
		var models []string
		for _, m := range forecast.Models() {
			models = append(models, m.Name)
		}
		return nil, fmt.Errorf("model %q is not known; %s", model, config.Suggest(model, models))
	}
	p := a.defaultPlan(&fed.Plan{Model: fed.Model{Name: model}})
	if targets != fed.Steps(0) {
		p.Model.Targets = targets
	}
	a.adjustDefaults(p, func(string) bool { return false })
	a.strip(p, a.pathsOf(p))
	body, err := write(p, true)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "# %s: %s.\n# %s.\n# All values are the defaults of the algorithm with model %s. Settings that you delete keep their defaults,\n# except for model.name and model.targets.\n%s", a.name, a.about, a.paper, model, body), nil
}

func write(p *fed.Plan, comments bool) ([]byte, error) {
	a := find(p.Algorithm)
	if a == nil {
		return nil, fmt.Errorf("algorithm %q is not known", p.Algorithm)
	}
	var doc yaml.Node
	if err := doc.Encode(p); err != nil {
		return nil, err
	}
	has := a.pathsOf(p)
	omit := func(path string) { has = slices.DeleteFunc(has, func(h string) bool { return h == path }) }
	// Either steps or epochs is 0. Omit the one that is 0, because Read infers it from the
	// other.
	if p.Client.Epochs == 0 {
		omit("client.epochs")
	}
	if p.Client.Steps == 0 {
		omit("client.steps")
	}
	if len(p.Model.Inputs) == 0 {
		omit("model.inputs")
	}
	var comment func(path string) string
	if !comments {
		usual, initial := a.defaultPlan(p), &fed.Plan{}
		for _, s := range a.settingsOf(p) {
			s.reset(initial)
			v := field(p, s.path).Interface()
			if s.quiet && reflect.DeepEqual(v, field(usual, s.path).Interface()) && reflect.DeepEqual(v, field(initial, s.path).Interface()) {
				omit(s.path)
			}
		}
	}
	if comments {
		comments := map[string]string{}
		for _, s := range a.settingsOf(p) {
			comments[s.path] = s.comment()
		}
		comment = func(path string) string { return comments[path] }
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

// prune removes all settings that are not in has, and adds comments to the others if
// comment is not nil.
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

// comment returns the description of a setting, followed by its choices unless the
// description already names them.
func (s setting) comment() string {
	named := strings.Contains(s.about, ":") ||
		!slices.ContainsFunc(s.choices, func(c string) bool { return !strings.Contains(s.about, c) })
	if named || len(s.choices) < 2 {
		return s.about
	}
	return s.about + ": " + alternatives(s.choices)
}

// flowComments contains the comments for sections that are written on one line.
var flowComments = map[string]string{
	"model.split":         "shares of each client's time span; the rest is for testing",
	"client.decay":        "multiply the learning rate by factor after this number of rounds; 0 means no decay",
	"client.weight_decay": "every step shrinks weights by the learning rate times this value; for correction, also times the square of the client's noise",
	"evaluate.fine_tune":  "local training before a client is scored at the end; none if both are 0",
}
