package explain

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"loadstar/series"
)

// TestGaps removes 0.4 % of the readings at random. Each reading is present with probability
// 0.996, so if the 168 hours before a forecast must be complete, 49 % of the forecasts are
// lost. A plan that allows gaps loses hardly any.
func TestGaps(t *testing.T) {
	const days = 2000
	random := rand.New(rand.NewPCG(1, 1))
	load := make([]float32, 24*days)
	complete := make([]float32, len(load))
	for i := range load {
		load[i] = random.Float32()
		complete[i] = load[i]
		if random.Float64() < 0.004 {
			load[i] = float32(math.NaN())
		}
	}
	dataset := func(load []float32) *series.Dataset {
		d, err := series.NewDataset(series.Dataset{Name: "test", Interval: time.Hour, Clock: time.UTC}, []series.Meter{{ID: "a", Load: load}})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, c := range []struct {
		model       string
		low, high   float64 // share of lost forecasts
		description string
	}{
		{"dense, gaps: 0, targets: 24", 0.44, 0.54, " of the forecasts"},
		{"dense, gaps: 0.1, targets: 24", 0, 0.01, "missing readings cost "},
		{"bose2023, lookback: 168", 0.44, 0.54, " of the forecasts"},
	} {
		p := readText(t, "name: test\nalgorithm: fedavg\nmodel: {name: "+c.model+"}")
		l, err := Gaps(p, dataset(load))
		if err != nil {
			t.Fatal(err)
		}
		lost := float64(l.LostForecasts) / float64(l.Forecasts)
		// The first forecast is possible after a week.
		if l.Forecasts < 4*(days-8) || lost < c.low || lost > c.high || l.LostExamples <= 0 || !strings.Contains(l.String(), c.description) {
			t.Errorf("%s: %+v, %.2f lost: %s", c.model, l, lost, l)
		}
		if l, err = Gaps(p, dataset(complete)); err != nil || l.LostExamples+l.LostForecasts != 0 || !strings.Contains(l.String(), "no forecast") {
			t.Errorf("%s without gaps: %+v, %v", c.model, l, err)
		}
	}
}
