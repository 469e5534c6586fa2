package state

import (
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// TestCountPlan checks that an agent trains at most three plans in seven days, and that a
// damaged record stops new plans for a week, but no longer.
func TestCountPlan(t *testing.T) {
	s := open(t, t.TempDir())
	monday := time.Date(2026, 11, 16, 12, 0, 0, 0, time.UTC)
	count := func(day int, plan string) int {
		t.Helper()
		n, err := s.CountPlan(plan, 3, monday.AddDate(0, 0, day))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, c := range []struct {
		day  int
		plan string
		want int
	}{
		{0, "a", 1},
		{0, "a", 1},
		{1, "b", 2},
		{2, "c", 3},
		{2, "d", 4},
		{2, "d", 4},
		{3, "b", 3},
		{6, "d", 4},
		{7, "d", 3},
		{7, "a", 4},
		{10, "a", 2}, // seven days after day 3, only d remains
	} {
		if got := count(c.day, c.plan); got != c.want {
			t.Errorf("day %d, plan %s: %d plans, want %d", c.day, c.plan, got, c.want)
		}
	}
	err := s.update("damage", func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).Put(plansKey, []byte("x")) })
	if err != nil {
		t.Fatal(err)
	}
	for day := 11; day < 18; day++ {
		if got := count(day, "e"); got <= 3 {
			t.Errorf("day %d after a damaged record: %d plans", day, got)
		}
	}
	if got := count(18, "e"); got != 1 {
		t.Errorf("a week after a damaged record: %d plans", got)
	}
}
