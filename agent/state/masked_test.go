package state

import (
	"errors"
	"fmt"
	"testing"
)

// mustMask stores a masked result of client a.
func mustMask(t *testing.T, s *Store, run string) {
	t.Helper()
	if _, err := s.Begin(run); err != nil {
		t.Fatal(err)
	}
	g, err := s.Stage(run, "a", numbers(1, 3), nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Put(run, 0, []Staged{g}, nil, nil, &Masked{Context: [32]byte{1}})
	if err == nil {
		err = s.Decide(nil, []uint64{r.ID})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestPrivateRunsAreNotForgotten checks that a server that begins many runs cannot make an
// agent forget that it has masked a round. Otherwise the agent would train the round again for
// another keeper, and the difference between the two sums would be the agent's update.
func TestPrivateRunsAreNotForgotten(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	mustMask(t, s, "private")
	for i := range runsKnown + 2*runsKept {
		if _, err := s.Begin(fmt.Sprint("run ", i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Begin("run 0"); err != nil {
		t.Errorf("a run that was not private is known still, so this test shows nothing: %v", err)
	}
	for range 2 {
		if _, err := s.Begin("private"); !errors.Is(err, ErrForgotten) {
			t.Errorf("the private run begins again: %v", err)
		}
		if _, _, err := s.Mask("private", 0, [32]byte{2}); !errors.Is(err, ErrForgotten) {
			t.Errorf("the private run is masked again: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, dir)
	}
}
