package recipe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"loadstar/fed"
)

// Difference is a setting in which two plans differ. A value is empty if the plan does not
// have the setting.
type Difference struct {
	Path string `json:"path"`
	A    string `json:"a"`
	B    string `json:"b"`
}

// Diff returns the settings in which two plans differ, in the order of the settings.
func Diff(a, b *fed.Plan) ([]Difference, error) {
	x, paths, err := flatten(a)
	if err != nil {
		return nil, err
	}
	y, others, err := flatten(b)
	if err != nil {
		return nil, err
	}
	for _, p := range others {
		if !slices.Contains(paths, p) {
			paths = append(paths, p)
		}
	}
	slices.SortStableFunc(paths, func(a, b string) int { return cmp.Compare(position(a), position(b)) })
	var all []Difference
	for _, p := range paths {
		if x[p] != y[p] {
			all = append(all, Difference{p, x[p], y[p]})
		}
	}
	return all, nil
}

// Defaults returns the plan that has the same algorithm and model as p, and defaults for
// everything else. If p is resolved for a known step, the result is resolved for the same step;
// otherwise equal settings would appear to differ.
func Defaults(p *fed.Plan) (*fed.Plan, error) {
	usual, err := Read([]byte(fmt.Sprintf("name: %q\nalgorithm: %s\nmodel: {name: %s}\n", p.Name, p.Algorithm, p.Model.Name)))
	if err != nil || p.Model.Interval == 0 {
		return usual, err
	}
	return Resolve(usual, time.Duration(p.Model.Interval))
}

// flatten returns the values of a plan by dotted path, and the paths in the order of the plan.
func flatten(p *fed.Plan) (values map[string]string, paths []string, err error) {
	text, err := Write(p)
	if err != nil {
		return nil, nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, nil, err
	}
	values = map[string]string{}
	var visit func(n *yaml.Node, path string)
	visit = func(n *yaml.Node, path string) {
		switch {
		case n.Kind == yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				visit(n.Content[i+1], strings.TrimPrefix(path+"."+n.Content[i].Value, "."))
			}
			return
		case n.Kind == yaml.SequenceNode:
			var all []string
			for _, c := range n.Content {
				all = append(all, c.Value)
			}
			values[path] = "[" + strings.Join(all, ", ") + "]"
		default:
			values[path] = n.Value
		}
		paths = append(paths, path)
	}
	if len(doc.Content) > 0 {
		visit(doc.Content[0], "")
	}
	return values, paths, nil
}
