package series

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// year returns a year of hourly loads between 20 and 110 kW.
func year() []float32 {
	load := make([]float32, 365*24)
	for i := range load {
		load[i] = float32(60 + 40*math.Sin(float64(i%24)*math.Pi/12) + float64(i*7919%10))
	}
	return load
}

// TestImpossible checks which readings Impossible returns, and that it detects every pattern of
// garbage.
func TestImpossible(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for name, c := range map[string]struct {
		plant func(load []float32) []int // returns the steps that must be found
	}{
		"nothing": {func([]float32) []int { return nil }},
		"scattered over more than half of the days": {func(load []float32) (all []int) {
			for i := range load {
				if r.Float64() < 0.03 && load[i] > 15 {
					load[i] *= [...]float32{100, 10_000}[r.IntN(2)]
					all = append(all, i)
				}
			}
			return all
		}},
		"13 of 28 days": {func(load []float32) (all []int) {
			for i := 100 * 24; i < 113*24; i++ {
				load[i] = 1e6
				all = append(all, i)
			}
			return all
		}},
		"the first week": {func(load []float32) (all []int) {
			for i := range 7 * 24 {
				load[i] = -1e5
				all = append(all, i)
			}
			return all
		}},
		"a scale that stays": {func(load []float32) []int {
			for i := 200 * 24; i < len(load); i++ {
				load[i] *= 50
			}
			return nil
		}},
		"a scale for 20 days": {func(load []float32) []int {
			for i := 200 * 24; i < 220*24; i++ {
				load[i] *= 50
			}
			return nil
		}},
		"an empty home that is used again": {func(load []float32) []int {
			for i := range load {
				load[i] = 0.05
			}
			load[300*24] = 14
			return nil
		}},
		"missing values": {func(load []float32) []int {
			for i := range load {
				if i%3 > 0 {
					load[i] = float32(math.NaN())
				}
			}
			load[3000] = 1e5
			return nil // no day has half of its steps, so there is no bound
		}},
	} {
		load := year()
		want := c.plant(load)
		if got := Impossible(load, 24); !slices.Equal(got, want) {
			t.Errorf("%s: %d found, want %d", name, len(got), len(want))
		}
	}
}

func TestPlausible(t *testing.T) {
	load := year()
	load[5000] = 1e6
	d, err := NewDataset(Dataset{Name: "d", Interval: time.Hour, Clock: time.UTC}, []Meter{{ID: "a", Load: load}, {ID: "b", Load: year()}})
	if err != nil {
		t.Fatal(err)
	}
	p, found, err := d.Plausible()
	if err != nil || len(found) != 1 || found["a"] != 1 || !Missing(p.Meter(0).Load[5000]) || Missing(load[5000]) {
		t.Errorf("%v %v", found, err)
	}
	if again, found, err := p.Plausible(); again != p || found != nil || err != nil {
		t.Errorf("a plausible dataset: %v %v", found, err)
	}
}
