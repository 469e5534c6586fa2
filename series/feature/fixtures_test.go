package feature

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"loadstar/series"
)

// fixture describes a synthetic dataset.
type fixture struct {
	zone     string
	interval time.Duration
	start    string // a local day
	days     int
	missing  float64 // share of the loads that are missing, in runs of several steps
	rounded  bool    // loads have few different values
	seed     uint64
}

// dataset returns three meters, which start on different days, and weather with gaps.
func (x fixture) dataset(t testing.TB) *series.Dataset {
	t.Helper()
	zone, err := time.LoadLocation(x.zone)
	if err != nil {
		t.Fatal(err)
	}
	begin, err := time.ParseInLocation(time.DateOnly, x.start, zone)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(x.seed, 1))
	perDay := int(24 * time.Hour / x.interval)
	d := series.Dataset{Name: "synthetic", Generated: true, Interval: x.interval, Clock: zone, Country: "GB"}
	n := x.days * perDay
	// gaps removes values in runs.
	gaps := func(values []float32, share float64) {
		for i := range values {
			if random.Float64() < share/4 {
				for j := i; j < min(i+1+random.IntN(7), len(values)); j++ {
					values[j] = float32(math.NaN())
				}
			}
		}
	}
	var meters []series.Meter
	for k := range 3 {
		m := series.Meter{ID: string(rune('a' + k)), Start: begin.Unix() + int64(k*3*perDay)*int64(x.interval/time.Second)}
		m.Load = make([]float32, n-k*5*perDay)
		for i := range m.Load {
			at := time.Unix(m.Start, 0).Add(time.Duration(i) * x.interval).In(zone)
			v := 2 + math.Sin(float64(at.Hour())/4) + 0.3*float64(at.Weekday()) + 0.8*random.ExpFloat64() + 0.002*float64(i)/float64(perDay)
			if x.rounded {
				v = math.Round(8*v) / 8
			}
			m.Load[i] = float32(v)
		}
		m.Load[len(m.Load)/2] = 90 // an outlier
		gaps(m.Load, x.missing)
		meters = append(meters, m)
	}
	d.Weather = series.Weather{Start: begin.Unix() - 3600*5, Names: []string{"temperature", "wind"}, Columns: make([][]float32, 2)}
	for c := range d.Weather.Columns {
		column := make([]float32, n-2*perDay)
		for i := range column {
			column[i] = float32(10 + 8*math.Sin(float64(i)/float64(perDay)*6) + 3*random.NormFloat64())
		}
		gaps(column, 0.02)
		for i := range perDay { // longer than a value is carried
			column[n/2+i] = float32(math.NaN())
		}
		d.Weather.Columns[c] = column
	}
	out, err := series.NewDataset(d, meters)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func newFrame(t testing.TB, d *series.Dataset, horizon, targets int, gaps float64) *Frame {
	t.Helper()
	l := series.Layout{Lookback: 7 * d.StepsPerDay(), Horizon: horizon, Targets: targets}
	f, err := NewFrame(d, l, series.Split{Train: 0.3, Validation: 0.2}, nil, gaps)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// spring and autumn contain a change of clocks after the training split.
var (
	spring = fixture{zone: "Europe/London", interval: time.Hour, start: "2018-01-15", days: 100, missing: 0.01, seed: 1}
	autumn = fixture{zone: "Europe/London", interval: time.Hour, start: "2018-08-20", days: 130, missing: 0.01, rounded: true, seed: 2}
	fixed  = fixture{zone: "UTC", interval: time.Hour, start: "2018-10-01", days: 120, missing: 0.02, seed: 3}
	half   = fixture{zone: "Australia/Lord_Howe", interval: 30 * time.Minute, start: "2018-01-20", days: 95, missing: 0.002, seed: 4}
	coarse = fixture{zone: "America/Sao_Paulo", interval: 3 * time.Hour, start: "2017-08-01", days: 130, missing: 0.01, seed: 5}
	// midnight is in a zone whose clocks change at midnight, so one day starts at 01:00 and
	// another day repeats the hour from 23:00.
	midnight = fixture{zone: "America/Sao_Paulo", interval: time.Hour, start: "2017-12-01", days: 110, missing: 0.005, seed: 6}
	// quarter has steps that start at a quarter past the hour in UTC.
	quarter = fixture{zone: "Asia/Kathmandu", interval: time.Hour, start: "2018-01-15", days: 90, missing: 0.01, seed: 7}
)

// examples returns some origins of a meter with their targets: n random ones, up to n in the
// days around each clock change, and the last step, whose targets are after the end of the
// series.
func examples(f *Frame, m series.Meter, n int, seed uint64) []series.Example {
	random := rand.New(rand.NewPCG(seed, 2))
	r := f.Rows(m)
	var at []series.Example
	for range n {
		if r.Len(series.All) > 0 {
			at = append(at, series.Example{Last: r.At(series.All, random.IntN(r.Len(series.All))), Target: random.IntN(f.task.Targets)})
		}
	}
	last := len(m.Load) - 1
	for step := 1; step <= last; step++ {
		_, before := f.Framer().Time(m, step-1).Zone()
		if _, after := f.Framer().Time(m, step).Zone(); after != before {
			for range n {
				origin := step + random.IntN(10*f.clock.perDay) - 2*f.clock.perDay
				if origin >= 7*f.clock.perDay && origin <= last {
					at = append(at, series.Example{Last: origin, Target: random.IntN(f.task.Targets)})
				}
			}
		}
	}
	return append(at, series.Example{Last: last}, series.Example{Last: last, Target: f.task.Targets - 1})
}
