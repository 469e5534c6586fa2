package experiment

import (
	"cmp"
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

// Spec describes an experiment. Each of its parts compares several methods on the same
// datasets.
type Spec struct {
	Title string `yaml:"title"`
	About string `yaml:"about"`
	// Pictures is the name of the part whose runs a report shows in charts. The default is the
	// first part with several seeds or, if there is none, the first part.
	Pictures string `yaml:"pictures"`
	Parts    []Part `yaml:"parts"`
}

// Part is a part of an experiment, whose results form one table of the report.
type Part struct {
	// Name is the name of the part's folder. Title is the part's title in reports.
	Name  string `yaml:"name"`
	Title string `yaml:"title"`
	// As is the name of an earlier part. The earlier part provides the fields that are empty in
	// this part. The plans of both parts are merged, and settings of this part take precedence.
	As string `yaml:"as"`
	// Data, if it is not empty, makes this a part that describes its datasets instead of
	// comparing methods: correlations, loads, or volume.
	Data string `yaml:"data"`
	// Datasets lists names of folders under datasets/.
	Datasets []string `yaml:"datasets"`
	// Clients selects the first clients of each dataset, by name; 0 selects all.
	Clients   int      `yaml:"clients"`
	Seeds     []uint64 `yaml:"seeds"`
	Baselines []string `yaml:"baselines"`
	// Plan contains the settings that are the same for all methods.
	Plan    Fragment `yaml:"plan"`
	Methods []Method `yaml:"methods"`
	// Grid lists settings to vary. Every method runs with all combinations of their
	// values.
	Grid []Axis `yaml:"grid"`
	// Best lists earlier parts. A method of such a part runs with the point of that part's
	// grid that had the lowest validation loss. Settings in the plan of this part override
	// the chosen ones. If Methods is empty, this part uses all methods of the earlier
	// parts.
	Best []string `yaml:"best"`
	// Against is the method whose forecasts are compared with each other method's, client
	// by client, with the Diebold-Mariano test.
	Against string `yaml:"against"`
	// Rivals lists the methods that compete to be the best one for a client. The default is all
	// methods of the part.
	Rivals []string `yaml:"rivals"`
	// Than is the method with which every other method is compared: client by client by the
	// relative MAE, and round by round by the validation loss.
	Than string `yaml:"than"`
	// Quick contains the changes that make the part small enough for a quick check.
	Quick Quick `yaml:"quick"`

	small bool // Quick was applied
}

// smallCohort is the maximum cohort of a quick check. A check may run on the sample, which has
// few clients, some of which may be held out.
const smallCohort = 4

// Method is a method to compare: its name, and the settings in which it differs from the
// part's plan.
type Method struct {
	Name string   `yaml:"name"`
	Plan Fragment `yaml:"plan"`
	// Quick contains settings that override the part's quick plan.
	Quick Fragment `yaml:"quick"`

	tuned *tuned // set if the method comes from a part in Best
}

// tuned refers to a method of an earlier part.
type tuned struct {
	part   *Part
	method Fragment // the method's plan in that part, without the settings of the grid
}

// Axis is a setting of a plan, such as server.lr, and its values. If the setting is a section,
// such as client, the values are mappings, and Names contains their display names.
type Axis struct {
	Key    string   `yaml:"key"`
	Values []Scalar `yaml:"values"`
	Names  []string `yaml:"names"`
}

// Name returns the display name of the i-th value.
func (a Axis) Name(i int) string {
	if len(a.Names) > 0 {
		return a.Names[i]
	}
	return fmt.Sprint(a.Values[i].Value)
}

// Quick overrides fields of a Part for a quick check. Empty fields of Quick change
// nothing.
type Quick struct {
	Datasets []string `yaml:"datasets"`
	Clients  int      `yaml:"clients"`
	Methods  []string `yaml:"methods"`
	Values   int      `yaml:"values"` // maximum number of values per axis
	Plan     Fragment `yaml:"plan"`
}

// Fragment contains some of the settings of a plan, as decoded from YAML. A null removes
// the setting that it overrides.
type Fragment map[string]any

// UnmarshalYAML accepts any mapping. The settings are validated later, when the complete
// plan is read.
func (f *Fragment) UnmarshalYAML(n *yaml.Node) error { return n.Decode((*map[string]any)(f)) }

// Scalar is one value of a setting.
type Scalar struct{ Value any }

// UnmarshalYAML accepts any YAML value.
func (s *Scalar) UnmarshalYAML(n *yaml.Node) error { return n.Decode(&s.Value) }

// ReadSpec reads an experiment. If quick is true, it returns the experiment with the changes
// for a quick check.
func ReadSpec(text []byte, quick bool) (*Spec, error) {
	var s Spec
	if err := config.Decode(text, &s); err != nil {
		return nil, err
	}
	if len(s.Parts) == 0 {
		return nil, errors.New("the experiment has no parts")
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
		s.Pictures = s.picturesDefault()
	}
	if !slices.ContainsFunc(s.Parts, func(p Part) bool { return p.Name == s.Pictures }) {
		return nil, fmt.Errorf("pictures: there is no part %s", s.Pictures)
	}
	return &s, nil
}

// picturesDefault returns the first part with several seeds or, if there is none, the first
// part.
func (s *Spec) picturesDefault() string {
	several := slices.IndexFunc(s.Parts, func(p Part) bool { return len(p.Seeds) > 1 })
	return s.Parts[max(several, 0)].Name
}

// complete fills in fields that depend on earlier parts, applies Quick if quick is true,
// and checks that all plans are valid.
func (p *Part) complete(earlier []Part, quick bool) error {
	if slices.ContainsFunc(earlier, func(e Part) bool { return e.Name == p.Name }) {
		return errors.New("an earlier part has the same name")
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
	if p.Data != "" {
		return p.checkData()
	}
	if p.Against != "" && p.method(p.Against) == nil {
		return fmt.Errorf("against: the part has no method %s", p.Against)
	}
	if p.Than != "" && p.method(p.Than) == nil {
		return fmt.Errorf("than: the part has no method %s", p.Than)
	}
	for _, name := range p.Rivals {
		if p.method(name) == nil {
			return fmt.Errorf("rivals: the part has no method %s", name)
		}
	}
	_, err := p.plans(nil)
	return err
}

// adopt adds the methods of the parts in Best to p.
func (p *Part) adopt(earlier []Part) error {
	var own []Method
	for _, name := range p.Best {
		i := slices.IndexFunc(earlier, func(e Part) bool { return e.Name == name })
		if i < 0 {
			return fmt.Errorf("best: there is no earlier part %s", name)
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
		return fmt.Errorf("part %s: as: there is no earlier part %s", p.Name, p.As)
	}
	e := earlier[i]
	p.Datasets = orElse(p.Datasets, e.Datasets)
	p.Seeds = orElse(p.Seeds, e.Seeds)
	p.Baselines = orElse(p.Baselines, e.Baselines)
	p.Methods = orElse(p.Methods, slices.Clone(e.Methods))
	p.Grid = orElse(p.Grid, slices.Clone(e.Grid))
	p.Best = orElse(p.Best, e.Best)
	p.Plan = overlay(e.Plan, p.Plan)
	p.Clients = cmp.Or(p.Clients, e.Clients)
	p.Rivals = orElse(p.Rivals, e.Rivals)
	p.Against = cmp.Or(p.Against, e.Against)
	p.Than = cmp.Or(p.Than, e.Than)
	q := &p.Quick
	q.Datasets = orElse(q.Datasets, e.Quick.Datasets)
	q.Methods = orElse(q.Methods, e.Quick.Methods)
	q.Plan = overlay(e.Quick.Plan, q.Plan)
	q.Clients = cmp.Or(q.Clients, e.Quick.Clients)
	q.Values = cmp.Or(q.Values, e.Quick.Values)
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
				return fmt.Errorf("quick: the part has no method %s", name)
			}
			kept = append(kept, *m)
		}
		p.Methods = kept
		p.Rivals = slices.DeleteFunc(slices.Clone(p.Rivals), func(name string) bool { return p.method(name) == nil })
		if p.method(p.Than) == nil {
			p.Than = ""
		}
	}
	if q.Values > 0 {
		for i := range p.Grid {
			a := &p.Grid[i]
			a.Values, a.Names = a.Values[:min(q.Values, len(a.Values))], a.Names[:min(q.Values, len(a.Names))]
		}
	}
	p.Seeds, p.small = []uint64{1}, true
	for i := range p.Methods {
		m := &p.Methods[i]
		m.Plan = overlay(overlay(m.Plan, q.Plan), m.Quick)
	}
	return nil
}

// point is one combination of values of a grid's settings.
type point struct {
	at  []string // display names of the axes' values
	set Fragment
}

// points returns all points of a part's grid. The last axis varies fastest.
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

// name returns the name of the variant, which is also its folder.
func (v variant) name() string { return strings.Join(append([]string{v.method}, v.at...), " ") }

// plans returns the plans of all methods at all points of the grid. A method of an earlier
// part uses its point in best. If it has none, it uses the first point of the earlier
// part's grid.
func (p *Part) plans(best map[string]point) ([]variant, error) {
	if len(p.Methods) == 0 || len(p.Datasets) == 0 || p.Name == "" {
		return nil, errors.New("a part needs a name, datasets and methods")
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
			set := overlay(base, pt.set).withoutNulls()
			text, err := yaml.Marshal(map[string]any(set))
			if err != nil {
				return nil, err
			}
			v := variant{method: m.Name, at: pt.at}
			if v.plan, err = recipe.Read(text); err != nil {
				return nil, fmt.Errorf("method %s: %w", v.name(), err)
			}
			if server, _ := set["server"].(map[string]any); server["clip"] == nil {
				// Experiments compare algorithms as described in their papers, without
				// limits against hostile clients.
				v.plan.Server.Clip = 0
			}
			if p.small {
				v.plan.Schedule.Cohort = min(v.plan.Schedule.Cohort, smallCohort)
			}
			v.plan.Name = v.name()
			all = append(all, v)
		}
	}
	return all, nil
}

// at returns a fragment that sets one setting to value. key is the path of the setting,
// such as server.lr.
func at(key string, value any) Fragment {
	first, rest, deeper := strings.Cut(key, ".")
	if deeper {
		value = map[string]any(at(rest, value))
	}
	return Fragment{first: value}
}

// overlay merges two fragments. Settings of upper override those of lower.
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

func (f Fragment) withoutNulls() Fragment {
	out := Fragment{}
	for k, v := range f {
		if m, ok := asMap(v); ok {
			out[k] = map[string]any(m.withoutNulls())
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
