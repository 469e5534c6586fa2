package main

import (
	"io"
	"math"
	"slices"
	"testing"
	"time"

	"loadstar/fed/serve"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/synth"
)

func buildings(t *testing.T, n, days int) *series.Dataset {
	t.Helper()
	g, err := synth.New(synth.Config{Seed: 5, Meters: n, Start: time.Date(2018, 1, 10, 0, 0, 0, 0, time.UTC), Days: days, Zone: "UTC"})
	if err != nil {
		t.Fatal(err)
	}
	var meters []series.Meter
	for i := range n {
		load := make([]float32, g.Len())
		g.Building(i, load)
		meters = append(meters, series.Meter{ID: string(rune('a' + i)), Start: g.Time(0).Unix(), Load: load})
	}
	d, err := series.NewDataset(series.Dataset{Name: "buildings", Generated: true, Interval: time.Hour, Clock: time.UTC}, meters)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestTrain checks that training is repeatable to the last bit, learns, and gives weights
// from which the model can be built.
func TestTrain(t *testing.T) {
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	data := []*series.Dataset{buildings(t, 3, 120), buildings(t, 2, 150)}
	var all [][]float32
	for range 2 {
		w, err := train(io.Discard, data, k, 4, 1)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, w)
	}
	if !slices.Equal(all[0], all[1]) {
		t.Error("training does not repeat")
	}
	if _, err := serve.DecodeGeneric(serve.EncodeGeneric(all[0]), k); err != nil {
		t.Error(err)
	}
	if other, err := train(io.Discard, data, k, 4, 2); err != nil || slices.Equal(other, all[0]) {
		t.Errorf("another seed gives the same weights, or %v", err)
	}
}

// TestCut checks that a young client has no reading before its first one.
func TestCut(t *testing.T) {
	d := buildings(t, 1, 120)
	m := d.Meter(0)
	for _, days := range []int{1, 3, 60} {
		x, at := cut(d, m, 100*hours, days, hours)
		if len(x.Load) != at+1+hours {
			t.Fatalf("%d steps after %d", len(x.Load), at)
		}
		for i, v := range x.Load {
			known := i > at-days*hours
			if math.IsNaN(float64(v)) == known {
				t.Fatalf("%d days: step %d of %d is %g", days, i, at, v)
			}
			if want := m.Load[100*hours-at+i]; known && v != want {
				t.Fatalf("step %d is %g, want %g", i, v, want)
			}
		}
	}
}

// TestAges scores clients, and checks that methods appear at the ages at which they can forecast.
func TestAges(t *testing.T) {
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	m, err := serve.NewGeneric(k)
	if err != nil {
		t.Fatal(err)
	}
	before := scored
	scored = []int{1, 14}
	t.Cleanup(func() { scored = before })
	table, err := options{part: "test", starts: 2}.run(t.Context(), buildings(t, 2, 200), m)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range table.clients {
		for age, methods := range map[int]map[string]bool{1: {dayOf: true, median: true, generics: true, rich: false}, 14: {dayOf: true, median: true, generics: true, rich: true}} {
			s := c[age]
			for method, want := range methods {
				if x := s.of[method]; (x[1] > 0) != want {
					t.Errorf("client %d, %d days, %s: %v", i, age, method, x)
				}
			}
			if s.n != 2*issues*ahead || s.inside+s.low+s.above != s.n {
				t.Errorf("client %d, %d days: %g of %g rows inside", i, age, s.inside, s.n)
			}
			if a, b := s.of[dayOf][1], s.of[generics][1]; a != b {
				t.Errorf("methods are scored on other targets: %g and %g", a, b)
			}
		}
	}
}
