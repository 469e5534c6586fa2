package experiment

import (
	"fmt"
	"maps"
	"strings"

	"gopkg.in/yaml.v3"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/internal/config"
)

// Spec is an experiment as it is written down: parts, each a set of methods that are
// compared on the same datasets.
type Spec struct {
	Title string `yaml:"title"`
	About string `yaml:"about"`
	Parts []Part `yaml:"parts"`
}

// Part is one table of an experiment.
type Part struct {
	// Name is its folder, Title what a reader sees.
	Name  string `yaml:"name"`
	Title string `yaml:"title"`
	// Datasets are names under datasets/.
	Datasets []string `yaml:"datasets"`
	// Clients takes the first so many of each, by name; 0 takes all.
	Clients   int      `yaml:"clients"`
	Seeds     []uint64 `yaml:"seeds"`
	Baselines []string `yaml:"baselines"`
	// Plan is what all methods have in common.
	Plan    Fragment `yaml:"plan"`
	Methods []Method `yaml:"methods"`
	// Grid varies settings of every method: all combinations.
	Grid []Axis `yaml:"grid"`
	// Against names the method whose forecasts are tested against those of each other
	// one, client by client (Diebold-Mariano).
	Against string `yaml:"against"`
	// Quick is what makes the part small enough to be tried.
	Quick Quick `yaml:"quick"`
}

// Method is a name and what is its own of a plan.
type Method struct {
	Name string   `yaml:"name"`
	Plan Fragment `yaml:"plan"`
}

// Axis is a setting of a plan, such as server.lr, and its values.
type Axis struct {
	Key    string   `yaml:"key"`
	Values []Scalar `yaml:"values"`
}

// Quick replaces parts of a Part; what is empty stays.
type Quick struct {
	Datasets []string `yaml:"datasets"`
	Clients  int      `yaml:"clients"`
	Methods  []string `yaml:"methods"`
	Values   int      `yaml:"values"` // of each axis, at most
	Plan     Fragment `yaml:"plan"`
}

// Fragment is some settings of a plan, as YAML has them.
type Fragment map[string]any

// UnmarshalYAML takes any mapping; what it means shows when the plan is read.
func (f *Fragment) UnmarshalYAML(n *yaml.Node) error { return n.Decode((*map[string]any)(f)) }

// Scalar is one value of a setting.
type Scalar struct{ Value any }

// UnmarshalYAML takes any value.
func (s *Scalar) UnmarshalYAML(n *yaml.Node) error { return n.Decode(&s.Value) }

// ReadSpec reads an experiment. With quick it is the small form of it.
func ReadSpec(text []byte, quick bool) (*Spec, error) {
	var s Spec
	if err := config.Decode(text, &s); err != nil {
		return nil, err
	}
	for i := range s.Parts {
		p := &s.Parts[i]
		if quick {
			p.shrink()
		}
		if len(p.Seeds) == 0 {
			p.Seeds = []uint64{1}
		}
		if _, err := p.plans(); err != nil {
			return nil, fmt.Errorf("part %s: %w", p.Name, err)
		}
	}
	return &s, nil
}

func (p *Part) shrink() {
	q := p.Quick
	if len(q.Datasets) > 0 {
		p.Datasets = q.Datasets
	}
	if q.Clients > 0 {
		p.Clients = q.Clients
	}
	if len(q.Methods) > 0 {
		wanted := map[string]bool{}
		for _, m := range q.Methods {
			wanted[m] = true
		}
		var kept []Method
		for _, m := range p.Methods {
			if wanted[m.Name] {
				kept = append(kept, m)
			}
		}
		p.Methods = kept
	}
	if q.Values > 0 {
		for i := range p.Grid {
			p.Grid[i].Values = p.Grid[i].Values[:min(q.Values, len(p.Grid[i].Values))]
		}
	}
	p.Seeds = []uint64{1}
	for i := range p.Methods {
		p.Methods[i].Plan = overlay(p.Methods[i].Plan, q.Plan)
	}
}

// variant is a method at one point of the grid.
type variant struct {
	method string
	at     []string // values of the axes, as they are shown
	plan   *fed.Plan
}

// name is the variant's, also as a folder's.
func (v variant) name() string { return strings.Join(append([]string{v.method}, v.at...), " ") }

// plans returns the methods' plans at all points of the grid.
func (p *Part) plans() ([]variant, error) {
	if len(p.Methods) == 0 || len(p.Datasets) == 0 || p.Name == "" {
		return nil, fmt.Errorf("a part has a name, datasets and methods")
	}
	all := []variant{}
	for _, m := range p.Methods {
		points := []struct {
			at   []string
			plan Fragment
		}{{nil, overlay(p.Plan, m.Plan)}}
		for _, a := range p.Grid {
			next := points[:0:0]
			for _, pt := range points {
				for _, v := range a.Values {
					pt2 := pt
					pt2.at = append(append([]string{}, pt.at...), fmt.Sprint(v.Value))
					pt2.plan = overlay(pt.plan, at(a.Key, v.Value))
					next = append(next, pt2)
				}
			}
			points = next
		}
		for _, pt := range points {
			text, err := yaml.Marshal(map[string]any(pt.plan))
			if err != nil {
				return nil, err
			}
			v := variant{method: m.Name, at: pt.at}
			if v.plan, err = recipe.Read(text); err != nil {
				return nil, fmt.Errorf("method %s: %w", v.name(), err)
			}
			v.plan.Name = v.name()
			all = append(all, v)
		}
	}
	return all, nil
}

// at returns a fragment with one setting, such as server.lr.
func at(key string, value any) Fragment {
	first, rest, deeper := strings.Cut(key, ".")
	if deeper {
		value = map[string]any(at(rest, value))
	}
	return Fragment{first: value}
}

// overlay returns the settings of both, the upper's where they differ.
func overlay(lower, upper Fragment) Fragment {
	out := maps.Clone(lower)
	if out == nil {
		out = Fragment{}
	}
	for k, v := range upper {
		l, lok := asMap(out[k])
		u, uok := asMap(v)
		if lok && uok {
			out[k] = map[string]any(overlay(l, u))
		} else {
			out[k] = v
		}
	}
	return out
}

func asMap(v any) (Fragment, bool) {
	switch m := v.(type) {
	case map[string]any:
		return m, true
	case Fragment:
		return m, true
	}
	return nil, false
}
