package experiment

import (
	"errors"
	"slices"
	"testing"
)

func TestWithout(t *testing.T) {
	for _, c := range []struct {
		missing        []string
		instead        string
		parts, removed []string
		first          []string // datasets of the first part that remains
	}{
		{nil, "", []string{"rates", "fleet", "winners"}, nil, []string{"a", "b"}},
		{[]string{"a"}, "", []string{"rates", "fleet", "winners"}, nil, []string{"b"}},
		{[]string{"a", "c"}, "", []string{"rates", "fleet"}, []string{"winners"}, []string{"b"}},
		{[]string{"a", "b"}, "sample", []string{"rates", "fleet", "winners"}, nil, []string{"sample"}},
	} {
		s := read(t, inherited, false)
		removed, err := s.Without(c.missing, c.instead)
		var parts []string
		for _, p := range s.Parts {
			parts = append(parts, p.Name)
		}
		if err != nil || !slices.Equal(parts, c.parts) || !slices.Equal(removed, c.removed) || !slices.Equal(s.Parts[0].Datasets, c.first) {
			t.Errorf("without %v: parts %v, removed %v, datasets %v, %v", c.missing, parts, removed, s.Parts[0].Datasets, err)
		}
		if slices.ContainsFunc(s.Datasets(), func(name string) bool { return slices.Contains(c.missing, name) }) {
			t.Errorf("without %v: there are %v", c.missing, s.Datasets())
		}
		// For a dataset that the earlier part lacks, the best rates are those on the first
		// dataset of the earlier part.
		if len(parts) == 3 {
			if from := s.Parts[2].method("FedAvg").tuned.part.Datasets; !slices.Equal(from, c.first) {
				t.Errorf("without %v: rates are chosen on %v", c.missing, from)
			}
		}
	}
	// Without the rates, parts that need them are removed, although their own data exists.
	s := read(t, inherited, false)
	removed, err := s.Without([]string{"a", "b"}, "")
	if !errors.Is(err, ErrNoData) || !slices.Equal(removed, []string{"rates", "fleet", "winners"}) {
		t.Errorf("removed %v, %v", removed, err)
	}
}

func TestOnly(t *testing.T) {
	s := read(t, inherited, false)
	for _, c := range []struct{ names, parts []string }{
		{[]string{"fleet"}, []string{"fleet"}},
		{[]string{"winners"}, []string{"rates", "winners"}}, // winners have the best rates
		{[]string{"fleet", "rates"}, []string{"rates", "fleet"}},
	} {
		only, err := s.Only(c.names)
		if err != nil || !slices.Equal(only.Names(), c.parts) || !slices.Contains(c.parts, only.Pictures) {
			t.Errorf("only %v: %v, %v", c.names, only, err)
		}
	}
	if _, err := s.Only([]string{"rate"}); err == nil {
		t.Error("an unknown part was accepted")
	}
	if all := s.Names(); len(all) != 3 {
		t.Errorf("the experiment itself has now the parts %v", all)
	}
}
