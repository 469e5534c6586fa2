package experiment

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/internal/config"
)

// Spec is an experiment as it is written down: parts, each a set of methods that are
// compared on the same datasets.
type Spec struct {
	Title string `yaml:"title"`
	About string `yaml:"about"`
	// Pictures names the part whose runs a report draws. Without it, it is the first with
	// several seeds, for on those the claims rest, or else the first.
	Pictures string `yaml:"pictures"`
	Parts    []Part `yaml:"parts"`
}

// Part is one table of an experiment.
type Part struct {
	// Name is its folder, Title what a reader sees.
	Name  string `yaml:"name"`
	Title string `yaml:"title"`
	// As names an earlier part. What this one leaves empty is as there; its plan is
	// laid over that one's.
	As string `yaml:"as"`
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
	// Best names earlier parts. A method of theirs has here the point of their grid
	// where its loss on validation is lowest; this part's plan is laid over that.
	// Without Methods it is all of theirs.
	Best []string `yaml:"best"`
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
	// Quick is laid over the part's quick plan.
	Quick Fragment `yaml:"quick"`

	tuned *tuned // in a part with Best
}

// tuned is a method of an earlier part.
type tuned struct {
	part   *Part
	method Fragment // its plan there, without the grid
}

// Axis is a setting of a plan, such as server.lr, and its values. A section, such as
// client, has mappings for values; then Names are what a reader sees.
type Axis struct {
	Key    string   `yaml:"key"`
	Values []Scalar `yaml:"values"`
	Names  []string `yaml:"names"`
}

// Name is what a reader sees of value number i.
func (a Axis) Name(i int) string {
	if len(a.Names) > 0 {
		return a.Names[i]
	}
	return fmt.Sprint(a.Values[i].Value)
}

// Quick replaces parts of a Part; what is empty stays.
type Quick struct {
	Datasets []string `yaml:"datasets"`
	Clients  int      `yaml:"clients"`
	Methods  []string `yaml:"methods"`
	Values   int      `yaml:"values"` // of each axis, at most
	Plan     Fragment `yaml:"plan"`
}

// Fragment is some settings of a plan, as YAML has them. One that is null takes away
// what it is laid over.
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
	if len(s.Parts) == 0 {
		return nil, errors.New("an experiment has parts")
	}
	for i := range s.Parts {
		if err := s.Parts[i].inherit(s.Parts[:i]); err != nil {
			return nil, err
		}
	}
	for i := range s.Parts {
		p := &s.Parts[i]
		if err := p.complete(s.Parts[:i], quick); err != nil {
			return nil, fmt.Errorf("part %s: %w", p.Name, err)
		}
	}
	if s.Pictures == "" {
		several := slices.IndexFunc(s.Parts, func(p Part) bool { return len(p.Seeds) > 1 })
		s.Pictures = s.Parts[max(several, 0)].Name
	}
	if !slices.ContainsFunc(s.Parts, func(p Part) bool { return p.Name == s.Pictures }) {
		return nil, fmt.Errorf("pictures of %s, which is no part", s.Pictures)
	}
	return &s, nil
}

// complete fills in what depends on other parts and on the form, and tries whether
// all plans can be read.
func (p *Part) complete(earlier []Part, quick bool) error {
	if slices.ContainsFunc(earlier, func(e Part) bool { return e.Name == p.Name }) {
		return errors.New("there is an earlier one of that name")
	}
	for _, a := range p.Grid {
		if len(a.Values) == 0 || len(a.Names) > 0 && len(a.Names) != len(a.Values) {
			return fmt.Errorf("axis %s has %d values and %d names", a.Key, len(a.Values), len(a.Names))
		}
	}
	if err := p.adopt(earlier); err != nil {
		return err
	}
	if quick {
		if err := p.shrink(); err != nil {
			return err
		}
	}
	if len(p.Seeds) == 0 {
		p.Seeds = []uint64{1}
	}
	if p.Against != "" && p.method(p.Against) == nil {
		return fmt.Errorf("against %s, which is none of its methods", p.Against)
	}
	_, err := p.plans(nil)
	return err
}

// adopt finds the methods of a part with Best.
func (p *Part) adopt(earlier []Part) error {
	var own []Method
	for _, name := range p.Best {
		i := slices.IndexFunc(earlier, func(e Part) bool { return e.Name == name })
		if i < 0 {
			return fmt.Errorf("the best of %s, which is no earlier part", name)
		}
		e := &earlier[i]
		for _, m := range e.Methods {
			own = append(own, Method{Name: m.Name, tuned: &tuned{e, overlay(e.Plan, m.Plan)}})
		}
	}
	if len(p.Best) == 0 {
		return nil
	}
	all := Part{Methods: own}
	for i := range p.Methods {
		if from := all.method(p.Methods[i].Name); from != nil {
			p.Methods[i].tuned = from.tuned
		}
	}
	p.Methods = orElse(p.Methods, own)
	return nil
}

func (p *Part) method(name string) *Method {
	i := slices.IndexFunc(p.Methods, func(m Method) bool { return m.Name == name })
	if i < 0 {
		return nil
	}
	return &p.Methods[i]
}

func (p *Part) inherit(earlier []Part) error {
	if p.As == "" {
		return nil
	}
	i := slices.IndexFunc(earlier, func(e Part) bool { return e.Name == p.As })
	if i < 0 {
		return fmt.Errorf("part %s is as %s, which is no earlier part", p.Name, p.As)
	}
	e := earlier[i]
	p.Datasets = orElse(p.Datasets, e.Datasets)
	p.Seeds = orElse(p.Seeds, e.Seeds)
	p.Baselines = orElse(p.Baselines, e.Baselines)
	p.Methods = orElse(p.Methods, slices.Clone(e.Methods))
	p.Grid = orElse(p.Grid, slices.Clone(e.Grid))
	p.Best = orElse(p.Best, e.Best)
	p.Plan = overlay(e.Plan, p.Plan)
	if p.Clients == 0 {
		p.Clients = e.Clients
	}
	if p.Against == "" {
		p.Against = e.Against
	}
	q := &p.Quick
	q.Datasets = orElse(q.Datasets, e.Quick.Datasets)
	q.Methods = orElse(q.Methods, e.Quick.Methods)
	q.Plan = overlay(e.Quick.Plan, q.Plan)
	if q.Clients == 0 {
		q.Clients = e.Quick.Clients
	}
	if q.Values == 0 {
		q.Values = e.Quick.Values
	}
	return nil
}

func orElse[T any](own, other []T) []T {
	if len(own) > 0 {
		return own
	}
	return other
}

func (p *Part) shrink() error {
	q := p.Quick
	if len(q.Datasets) > 0 {
		p.Datasets = q.Datasets
	}
	if q.Clients > 0 {
		p.Clients = q.Clients
	}
	if len(q.Methods) > 0 {
		var kept []Method
		for _, name := range q.Methods {
			m := p.method(name)
			if m == nil {
				return fmt.Errorf("quick: method %s is none of its methods", name)
			}
			kept = append(kept, *m)
		}
		p.Methods = kept
	}
	if q.Values > 0 {
		for i := range p.Grid {
			a := &p.Grid[i]
			a.Values, a.Names = a.Values[:min(q.Values, len(a.Values))], a.Names[:min(q.Values, len(a.Names))]
		}
	}
	p.Seeds = []uint64{1}
	for i := range p.Methods {
		m := &p.Methods[i]
		m.Plan = overlay(overlay(m.Plan, q.Plan), m.Quick)
	}
	return nil
}

// point is one of a grid.
type point struct {
	at  []string // values of the axes, as they are shown
	set Fragment
}

// points returns all of a part's grid, the last axis fastest.
func (p *Part) points() []point {
	all := []point{{}}
	for _, a := range p.Grid {
		var next []point
		for _, pt := range all {
			for i, v := range a.Values {
				next = append(next, point{append(slices.Clone(pt.at), a.Name(i)), overlay(pt.set, at(a.Key, v.Value))})
			}
		}
		all = next
	}
	return all
}

// variant is a method at one point of the grid.
type variant struct {
	method string
	at     []string
	plan   *fed.Plan
}

// name is the variant's, also as a folder's.
func (v variant) name() string { return strings.Join(append([]string{v.method}, v.at...), " ") }

// plans returns the methods' plans at all points of the grid. A method of an earlier
// part is at the point that best has for its name, or the first one.
func (p *Part) plans(best map[string]point) ([]variant, error) {
	if len(p.Methods) == 0 || len(p.Datasets) == 0 || p.Name == "" {
		return nil, errors.New("a part has a name, datasets and methods")
	}
	var all []variant
	for _, m := range p.Methods {
		base := overlay(p.Plan, m.Plan)
		if m.tuned != nil {
			chosen, ok := best[m.Name]
			if !ok {
				chosen = m.tuned.part.points()[0]
			}
			base = overlay(overlay(m.tuned.method, chosen.set), base)
		}
		for _, pt := range p.points() {
			text, err := yaml.Marshal(map[string]any(overlay(base, pt.set).without()))
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

// without returns the settings but those that are null.
func (f Fragment) without() Fragment {
	out := Fragment{}
	for k, v := range f {
		if m, ok := asMap(v); ok {
			out[k] = map[string]any(m.without())
		} else if v != nil {
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
