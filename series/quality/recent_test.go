package quality_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"loadstar/internal/testkit"
	"loadstar/series/quality"
	"loadstar/series/read"
)

// madeUp returns 40 days of hourly load with a daily profile and noise.
func madeUp(seed uint64) []float32 {
	rng := rand.New(rand.NewPCG(seed, 1))
	load := make([]float32, 40*24)
	for i := range load {
		load[i] = float32(5 - 3*math.Cos(2*math.Pi*float64(i%24)/24) + 0.3*rng.Float64())
	}
	return load
}

// TestRecentPlanted plants one fault at a time.
func TestRecentPlanted(t *testing.T) {
	last := func(load []float32, hours int) []float32 { return load[len(load)-hours:] }
	for name, c := range map[string]struct {
		plant func(load []float32)
		want  []quality.Code
	}{
		"nothing": {func([]float32) {}, nil},
		"unit-jump for a day": {func(load []float32) {
			for i, v := range last(load, 24) {
				last(load, 24)[i] = 1000 * v
			}
		}, []quality.Code{"unit-jump"}},
		"unit-jump for a week": {func(load []float32) {
			for i, v := range last(load, 7*24) {
				last(load, 7*24)[i] = v / 1000
			}
		}, []quality.Code{"unit-jump"}},
		"twice the level": {func(load []float32) {
			for i, v := range last(load, 5*24) {
				last(load, 5*24)[i] = 2 * v
			}
		}, nil},
		"stuck": {func(load []float32) {
			for i := range last(load, 14) {
				last(load, 14)[i] = 4
			}
		}, []quality.Code{"flat"}},
		"zeros": {func(load []float32) { clear(last(load, 8)) }, []quality.Code{"zeros-as-gaps"}},
		"missing": {func(load []float32) {
			for i := range last(load, 30) {
				last(load, 30)[i] = float32(math.NaN())
			}
		}, nil},
		"clock":           {func(load []float32) { copy(last(load, 7*24), slices.Clone(last(load, 7*24+5))) }, []quality.Code{"clock-shift"}},
		"daylight saving": {func(load []float32) { copy(last(load, 7*24), slices.Clone(last(load, 7*24+1))) }, nil},
	} {
		for seed := range uint64(10) {
			load := madeUp(seed)
			c.plant(load)
			if got := quality.Recent(load, 24); !slices.Equal(got, c.want) {
				t.Errorf("%s: %v, want %v", name, got, c.want)
			}
		}
	}
	for n := range 14*24 + 1 {
		if got := quality.Recent(make([]float32, n), 24); n < 14*24 && got != nil {
			t.Errorf("%d steps: %v", n, got)
		}
	}
}

// TestRecentReal counts findings in real series, where few are expected, and checks that a
// change from kW to W is found within a day.
func TestRecentReal(t *testing.T) {
	if testing.Short() {
		t.Skip("reads load data")
	}
	groups := testkit.Pick([]string{"sgsc-core19"}, []string{"hog-core42", "sgsc-core19", "cambridge-core42-2016-17", "robin-core42", "resstock-ca-core42", "resstock-tx-core42", "resstock-vt-core42"})
	for _, group := range groups {
		t.Run(group, func(t *testing.T) {
			path, root := testkit.Dataset(t, group)
			desc, err := read.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			d, err := read.Open(desc, root)
			if err != nil {
				t.Fatal(err)
			}
			perDay := d.StepsPerDay()
			days, blocked, found, planted := 0, map[quality.Code]int{}, 0, 0
			for i := range d.Len() {
				load := d.Meter(i).Load
				for end := 35 * perDay; end <= len(load); end += perDay {
					days++
					codes := quality.Recent(load[:end], perDay)
					for _, code := range codes {
						blocked[code]++
					}
					if days%50 != 0 || slices.Contains(codes, "unit-jump") {
						continue
					}
					changed := slices.Clone(load[end-35*perDay : end])
					for i := range perDay {
						changed[len(changed)-1-i] *= 1000
					}
					planted++
					if slices.Contains(quality.Recent(changed, perDay), "unit-jump") {
						found++
					}
				}
			}
			t.Logf("%s: %d days of clients, with findings %v; unit switch found within a day %d of %d times", group, days, blocked, found, planted)
			if 10*found < 7*planted || 200*blocked["unit-jump"] > days || 20*blocked["clock-shift"] > days {
				t.Errorf("%s: unit switch found %d of %d times; findings on %v of %d days", group, found, planted, blocked, days)
			}
		})
	}
}
