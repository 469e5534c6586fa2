package experiment

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrNoData means that no part of an experiment has data.
var ErrNoData = errors.New("no part of the experiment has data")

// Without adapts the experiment to missing datasets. It replaces them with the dataset named by
// instead. If instead is "", it removes the missing datasets, and the parts that have no
// dataset left or need the results of a removed part. It returns the names of the removed
// parts. The error is ErrNoData if no part is left.
func (s *Spec) Without(missing []string, instead string) (removed []string, err error) {
	// The remaining parts go into a new slice, because methods refer to the elements of s.Parts.
	var left []Part
	for i := range s.Parts {
		p := &s.Parts[i]
		var datasets []string
		for _, name := range p.Datasets {
			if slices.Contains(missing, name) {
				name = instead
			}
			if name != "" && !slices.Contains(datasets, name) {
				datasets = append(datasets, name)
			}
		}
		p.Datasets = datasets
		if len(datasets) == 0 || slices.ContainsFunc(p.Best, func(name string) bool { return slices.Contains(removed, name) }) {
			removed = append(removed, p.Name)
			continue
		}
		left = append(left, *p)
	}
	s.Parts = left
	if len(left) == 0 {
		return removed, ErrNoData
	}
	if slices.Contains(removed, s.Pictures) {
		s.Pictures = s.picturesDefault()
	}
	return removed, nil
}

// Only returns the experiment with the named parts and the parts whose results they need.
func (s *Spec) Only(names []string) (*Spec, error) {
	wanted := map[string]bool{}
	for _, name := range names {
		if !slices.ContainsFunc(s.Parts, func(p Part) bool { return p.Name == name }) {
			return nil, fmt.Errorf("no part %q; there are %s", name, strings.Join(s.Names(), ", "))
		}
		wanted[name] = true
	}
	var left []Part
	for i := len(s.Parts) - 1; i >= 0; i-- {
		if p := s.Parts[i]; wanted[p.Name] {
			left = append(left, p)
			for _, name := range p.Best { // parts only need earlier ones
				wanted[name] = true
			}
		}
	}
	slices.Reverse(left)
	only := *s
	only.Parts = left
	if !wanted[s.Pictures] {
		only.Pictures = only.picturesDefault()
	}
	return &only, nil
}

// Names returns the names of all parts.
func (s *Spec) Names() (names []string) {
	for _, p := range s.Parts {
		names = append(names, p.Name)
	}
	return names
}

// Datasets returns the names of all parts' datasets, each once, in order.
func (s *Spec) Datasets() (names []string) {
	for _, p := range s.Parts {
		for _, name := range p.Datasets {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
