package gateway

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestSeen checks that an agent is stored soon after it comes back and then once per interval,
// and that memory is bounded.
func TestSeen(t *testing.T) {
	s := newSeen(0)
	begin := time.Unix(1_000_000, 0)
	take := func(after time.Duration, want ...string) {
		t.Helper()
		if got := s.take(begin.Add(after)); !slices.Equal(got, want) {
			t.Errorf("after %s: %v, want %v", after, got, want)
		}
	}
	s.note("a", begin)
	take(0, "a")
	s.note("b", begin.Add(time.Second))
	take(time.Second) // too soon after the last batch
	take(seenEvery/batches, "b")
	s.note("a", begin.Add(30*time.Second))
	take(30 * time.Second) // stored in this interval
	s.note("a", begin.Add(seenEvery))
	s.note("a", begin.Add(seenEvery))
	take(seenEvery, "a")

	for i := range 3 * maxSeen {
		s.note(fmt.Sprint(i), begin.Add(time.Hour))
	}
	if len(s.pending) > maxSeen || len(s.noted) > maxSeen {
		t.Errorf("%d agents to store and %d noted, at most %d are allowed", len(s.pending), len(s.noted), maxSeen)
	}
}
