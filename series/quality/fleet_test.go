package quality_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/series"
	"loadstar/series/quality"
)

// TestCheckFleet plants faults that only a comparison of meters shows, and checks that the
// fleet report contains them.
func TestCheckFleet(t *testing.T) {
	clock := tokyo(t)
	const days = 420
	var meters []series.Meter
	for k := range 6 {
		r := rand.New(rand.NewPCG(uint64(k), 9))
		load := office(day0, days, clock)
		for i := range load {
			load[i] *= 1 + 0.05*float32(r.NormFloat64())
		}
		for i := range 24 * 3 {
			load[24*100+i] = nan
			if k < 2 {
				load[24*200+i] = 30
			}
		}
		if k == 5 {
			for i := range load {
				load[i] *= 1000
			}
		}
		meters = append(meters, series.Meter{ID: string(rune('a' + k)), Start: day0.Unix(), Load: load})
	}
	meters = append(meters, series.Meter{ID: "z", Start: day0.Unix(), Load: slices.Clone(meters[3].Load)})
	wind := make([]float32, 24*days-50)
	wind[7] = nan
	d, err := series.NewDataset(series.Dataset{
		Name: "test", Interval: time.Hour, Clock: clock,
		Weather: series.Weather{Start: day0.Unix(), Names: []string{"wind"}, Columns: [][]float32{wind}},
	}, meters)
	if err != nil {
		t.Fatal(err)
	}
	reports, fleet := checkAll(t, d)
	if got := codesOf(fleet.Findings); !slices.Equal(got, []string{"scale", "shared-flat", "shared-gaps", "twins", "weather"}) {
		t.Fatalf("found %v: %+v", got, fleet.Findings)
	}
	for code, words := range map[quality.Code]string{
		"scale": "f (", "twins": "d = z", "weather": "51 steps", "shared-gaps": "On 3 days up to 7 meters", "shared-flat": "On 3 days up to 2 meters",
	} {
		if f := get(t, fleet.Findings, code); !strings.Contains(f.Message, words) {
			t.Errorf("%s: %q, want %q in it", code, f.Message, words)
		}
	}
	present, missing := 0, 0
	for _, r := range reports {
		present += r.Present
		missing += r.Gaps.Steps
	}
	if fleet.Present != present || fleet.Gaps.Steps != missing || fleet.Steps != present+missing || fleet.Meters != 7 {
		t.Errorf("sums: %+v", fleet)
	}
	// Day 100 is in cell 2 of 10, which spans 42 days. 72 of its hours are missing.
	if want := math.Round(1000*72/(42*24.0)) / 1000; fleet.Missing[2] != want || fleet.Missing[3] != 0 || reports[0].Missing[2] != want {
		t.Errorf("cells %v, want %g in the third", fleet.Missing, want)
	}
}
