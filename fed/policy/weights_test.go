package policy

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// TestCheckStep checks values just below and just above each limit. The plan has 4 steps at a
// learning rate of 0.001, so a weight moves by at most 1.5 * 4 * 0.001 = 0.006 per version.
func TestCheckStep(t *testing.T) {
	usual := Default()
	plan := read(t, "algorithm: fedavg\nclient: {lr: 0.001, steps: 4}")
	late := read(t, "algorithm: fedavg\nclient: {lr: 0.001, lr_end: 0.0001, steps: 4}\nrounds: 10")
	large := read(t, "algorithm: fedavg\nclient: {lr: 1, steps: 4}")
	if reasons := usual.Check(large, 40); len(reasons) > 0 {
		t.Fatal(reasons)
	}
	const n = 10_000
	moved := func(by ...float32) []float32 {
		w := make([]float32, n)
		for i := range w {
			w[i] = by[i%len(by)]
		}
		return w
	}
	one := func(by float32) []float32 {
		w := make([]float32, n)
		w[7] = by
		return w
	}
	zero := make([]float32, n)
	for _, c := range []struct {
		name        string
		weights     []float32
		from, to    int
		late, large bool
		want        string
	}{
		{name: "the same", weights: zero, to: 1},
		{name: "a weight", weights: one(0.006), to: 1},
		{name: "a weight too far", weights: one(0.0061), to: 1, want: "a weight of version 1 is 0.0061 away"},
		{name: "backwards", weights: one(-0.0061), to: 1, want: "a weight of version 1"},
		{name: "two versions", weights: one(0.0119), from: 3, to: 5},
		{name: "two versions too far", weights: one(0.0121), from: 3, to: 5, want: "a weight of version 5 is 0.0121 away from version 3, the maximum is 0.012"},
		{name: "an older version", weights: one(0.0119), from: 5, to: 3},
		{name: "an older version too far", weights: one(0.0121), from: 5, to: 3, want: "a weight of version 3"},
		{name: "all weights", weights: moved(0.005, -0.005), to: 1},
		{name: "all weights too far", weights: moved(2.01 / 100), to: 1, large: true, want: "version 1 is 2.01 away from version 0, the maximum is 2"},
		{name: "15 versions", weights: moved(0.2999), to: 15, large: true},
		{name: "15 versions too far", weights: moved(0.31), to: 15, large: true, want: "the maximum is 30"},
		{name: "a run that one meets late", weights: moved(0.33), to: 1000, large: true, want: "the maximum is 32"},
		{name: "a lower learning rate", weights: one(0.004), from: 8, to: 9, late: true, want: "a weight of version 9"},
		{name: "an earlier learning rate", weights: one(0.004), from: 0, to: 1, late: true},
		{name: "not a number", weights: one(float32(math.NaN())), to: 1, want: "version 1"},
		{name: "infinite", weights: one(float32(math.Inf(1))), to: 1000, large: true, want: "version 1000"},
	} {
		p := plan
		if c.late {
			p = late
		}
		if c.large {
			p = large
		}
		got := usual.CheckStep(p, c.from, zero, c.to, c.weights)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if trial := Trial(); trial.CheckStep(p, c.from, zero, c.to, c.weights) != "" {
			t.Errorf("%s: the policy for trials checks it", c.name)
		}
	}
}

func TestCheckStartAndSlopes(t *testing.T) {
	usual, trial := Default(), Trial()
	want := []float32{0.25, -0.5, 3}
	near, far := slices.Clone(want), slices.Clone(want)
	near[2], far[2] = math.Nextafter32(3, 4), 3.001
	if reason := usual.CheckStart(want, near); reason != "" {
		t.Error(reason)
	}
	if reason := usual.CheckStart(want, far); !strings.Contains(reason, "seed") {
		t.Errorf("%q", reason)
	}
	if reason := trial.CheckStart(want, far); reason != "" {
		t.Error(reason)
	}
	slopes := []float32{0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0, 0.009}
	if reason := usual.CheckSlopes("trunk.1", slopes); reason != "" {
		t.Error(reason)
	}
	slopes[0] = -1
	if reason := usual.CheckSlopes("trunk.1", slopes); !strings.Contains(reason, "3 of 8 slopes of trunk.1") {
		t.Errorf("%q", reason)
	}
	if reason := trial.CheckSlopes("trunk.1", slopes); reason != "" {
		t.Error(reason)
	}
}
