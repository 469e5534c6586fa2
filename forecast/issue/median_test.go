package issue

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/series/read"
)

// TestMedian checks that the median of 28 days is used for a home with irregular peaks, that
// last week's load is used for a building with workdays and weekends, and that a short
// history has no median.
func TestMedian(t *testing.T) {
	berlin := location(t, "Europe/Berlin")
	r := rand.New(rand.NewPCG(1, 2))
	home, building := meter(120, time.UTC), meter(120, time.UTC)
	for i := range home.Load {
		home.Load[i] = 0.3 + float32(r.IntN(8)/7)*3 // rarely high
		building.Load[i] = 10
		if i/24%7 < 5 {
			building.Load[i] = 50 + float32(r.Float64())
		}
	}
	// The clocks change on 28 March, within the 28 days before this cutoff.
	cutoff := time.Date(2021, 4, 10, 0, 0, 0, 0, berlin)
	for i, row := range state(t, Config{Clock: berlin}).Issue(home, Models{}, cutoff.Unix()).Rows {
		at := time.Unix(row.Time, 0).In(berlin)
		var loads []float64
		for d := 1 + i/24; d <= 28+i/24; d++ {
			loads = append(loads, float64(home.Load[(at.AddDate(0, 0, -d).Unix()-home.Start)/hour]))
		}
		slices.Sort(loads)
		if want := (loads[13] + loads[14]) / 2; row.Source != Median || row.Values[1] != want || row.Reason != NoRelease {
			t.Errorf("%s: %+v, want %v", at, row, want)
		}
		if !(row.Values[0] <= row.Values[1] && row.Values[1] <= row.Values[2] && row.Values[0] < row.Values[2]) {
			t.Errorf("%s: quantiles %v", at, row.Values)
		}
	}
	if row := state(t, Config{Clock: berlin}).Issue(building, Models{}, cutoff.Unix()).Rows[0]; row.Source != Week {
		t.Errorf("building: %+v", row)
	}
	young := home
	young.Start += 90 * day
	young.Load = young.Load[90*24:]
	if row := state(t, Config{}).Issue(young, Models{}, young.Start+13*day).Rows[0]; row.Source != Week {
		t.Errorf("13 days: %+v", row)
	}
	if row := state(t, Config{}).Issue(young, Models{}, young.Start+15*day).Rows[0]; row.Source != Median {
		t.Errorf("15 days: %+v", row)
	}
	if row := state(t, Config{Fallback: ExtremeDay}).Issue(home, Models{}, cutoff.Unix()).Rows[0]; row.Source != Week {
		t.Errorf("extreme day: %+v", row)
	}
}

// TestMedianOnRealMeters checks the forecasts of real meters without a model. For homes, the
// median is chosen and has a lower error than last week's load; for buildings, last week's load
// is mostly chosen.
func TestMedianOnRealMeters(t *testing.T) {
	for _, x := range []struct {
		group       string
		least, most float64 // share of medians
		relative    float64 // maximum error relative to that of last week's load
	}{
		{"sgsc-core19", 0.9, 1, 0.82},
		{"resstock-ca-core42", 0.9, 1, 0.78},
		{"hog-core42", 0, 0.5, 1.02},
		{"robin-core42", 0, 0.5, 1.02},
	} {
		path, root := testkit.Dataset(t, x.group)
		desc, err := read.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		d, err := read.Open(desc, root)
		if err != nil {
			t.Fatal(err)
		}
		var medians, rows, clients, relative float64
		for i := range d.Len() {
			m := d.Meter(i)
			s := state(t, Config{Clock: d.Clock, H: 24})
			var served, week float64
			for from := len(m.Load) - 70*24; from+24 <= len(m.Load); from += 24 {
				for i, row := range s.Issue(m, Models{}, m.Start+int64(from)*hour).Rows {
					truth, before := float64(m.Load[from+i]), float64(m.Load[from+i-168])
					if math.IsNaN(truth) || math.IsNaN(before) || math.IsNaN(row.Values[1]) {
						continue
					}
					served += math.Abs(row.Values[1] - truth)
					week += math.Abs(before - truth)
					rows++
					if row.Source == Median {
						medians++
					}
				}
			}
			if week > 0 {
				clients++
				relative += served / week
			}
		}
		share, mean := medians/rows, relative/clients
		t.Logf("%s: %.0f %% medians, error %.3f of last week's", x.group, 100*share, mean)
		if !(share >= x.least && share <= x.most && mean <= x.relative) {
			t.Errorf("%s: share of medians %.2f, error %.3f", x.group, share, mean)
		}
	}
}
