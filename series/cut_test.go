package series

import (
	"fmt"
	"math"
	"testing"
)

func TestCut(t *testing.T) {
	nan := float32(math.NaN())
	m := Meter{ID: "a", Start: 3600, Load: []float32{1, 2, nan, 4}}
	for _, c := range []struct {
		from, to int64
		want     string
	}{
		{3600, 18000, "[1 2 NaN 4]"},
		{7200, 14400, "[2 NaN]"},
		{0, 10800, "[NaN 1 2]"},
		{14400, 25200, "[4 NaN NaN]"},
		{-7200, 28800, "[NaN NaN NaN 1 2 NaN 4 NaN NaN NaN]"},
		{36000, 43200, "[NaN NaN]"},
		{7200, 7200, "[]"},
	} {
		got := m.Cut(c.from, c.to, 3600)
		if s := fmt.Sprint(got.Load); s != c.want || got.Start != c.from || got.ID != "a" {
			t.Errorf("from %d to %d: %s from %d, want %s", c.from, c.to, s, got.Start, c.want)
		}
	}
	if got := m.Cut(7200, 14400, 3600); &got.Load[0] != &m.Load[1] || cap(got.Load) != 2 {
		t.Error("a cut within the meter does not share its loads")
	}
}
