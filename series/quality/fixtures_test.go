package quality_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"loadstar/series"
	"loadstar/series/quality"
)

var (
	nan      = float32(math.NaN())
	wholeDay = 24
)

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

// office returns the hourly load of an office in kW: a base load, working hours from 7 to
// 18 in the given zone, weekends off, and noise. It has no season.
func office(start time.Time, days int, life *time.Location) []float32 {
	r := rand.New(rand.NewPCG(1, 2))
	load := make([]float32, wholeDay*days)
	for i := range load {
		at := start.Add(time.Duration(i) * time.Hour).In(life)
		kw := 20.0
		if wd := at.Weekday(); wd != time.Saturday && wd != time.Sunday {
			switch h := at.Hour(); {
			case h == 7 || h == 18:
				kw += 15
			case h > 7 && h < 18:
				kw += 35
			}
		}
		load[i] = float32(kw * (1 + 0.05*r.NormFloat64()))
	}
	return load
}

// home returns the hourly load of a home: a low standby load and rare high peaks.
func home(days int) []float32 {
	r := rand.New(rand.NewPCG(3, 4))
	load := make([]float32, wholeDay*days)
	for i := range load {
		kw := 0.08 + 0.04*r.Float64()
		if h := i % wholeDay; h > 5 && h < 23 {
			kw += min(0.3*math.Exp(0.9*r.NormFloat64()), 6.5) // the fuse limits the load
		}
		load[i] = float32(math.Round(1000*kw) / 1000)
	}
	return load
}

// day0 is the first day of the series in most tests. It is a Monday.
var day0 = time.Date(2018, 1, 1, 0, 0, 0, 0, time.UTC)

// tokyo returns a zone without daylight saving.
func tokyo(t testing.TB) *time.Location { return zone(t, "Asia/Tokyo") }

var plan = quality.Plan{Lookback: 12, Horizon: 1, MinDays: 28, Cells: 10}

func dataset(t testing.TB, clock *time.Location, meters ...series.Meter) *series.Dataset {
	t.Helper()
	d, err := series.NewDataset(series.Dataset{Name: "test", Interval: time.Hour, Clock: clock}, meters)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func checkAll(t testing.TB, d *series.Dataset) ([]quality.MeterReport, quality.FleetReport) {
	t.Helper()
	c, err := quality.NewChecker(d, plan)
	if err != nil {
		t.Fatal(err)
	}
	var reports []quality.MeterReport
	for i := range d.Len() {
		reports = append(reports, c.Meter(i))
	}
	return reports, c.Fleet()
}

func checkOne(t testing.TB, clock *time.Location, start time.Time, load []float32) quality.MeterReport {
	t.Helper()
	reports, _ := checkAll(t, dataset(t, clock, series.Meter{ID: "m", Start: start.Unix(), Load: load}))
	return reports[0]
}

func codesOf(findings []quality.Finding) []string {
	out := []string{}
	for _, f := range findings {
		out = append(out, string(f.Code))
	}
	slices.Sort(out)
	return out
}

func get(t testing.TB, findings []quality.Finding, code quality.Code) quality.Finding {
	t.Helper()
	for _, f := range findings {
		if f.Code == code {
			return f
		}
	}
	t.Fatalf("no %s among %v", code, codesOf(findings))
	return quality.Finding{}
}

func coarse(load []float32, kw float64) []float32 {
	for i, v := range load {
		load[i] = float32(kw * math.Round(float64(v)/kw))
	}
	return load
}

// seasonal triples the load during a summer of four months. Every other year, the summer
// starts three weeks later.
func seasonal(load []float32) []float32 {
	for i := range load {
		year, d := i/wholeDay/365, i/wholeDay%365
		if late := 21 * (year % 2); d > 150+late && d < 270+late {
			load[i] *= 3
		}
	}
	return load
}

// stages increases the load a little every day, to three times its level within ten weeks.
func stages(load []float32) []float32 {
	for i := range load {
		load[i] *= float32(math.Pow(3, min(max(float64(i/wholeDay-500)/70, 0), 1)))
	}
	return load
}

// hut returns the load of a hut whose standby load is two or three times its meter's
// resolution, and sometimes 0.
func hut(days int) []float32 {
	r := rand.New(rand.NewPCG(6, 6))
	load := make([]float32, wholeDay*days)
	for i := range load {
		kw := 0.2 + 0.1*float64(r.IntN(2))
		if h := i % wholeDay; h > 8 && h < 17 {
			kw += r.Float64()
		}
		if r.Float64() < 0.01 {
			kw = 0
		}
		load[i] = float32(math.Round(10*kw) / 10)
	}
	return load
}

func nightOff(load []float32) []float32 {
	for i := range load {
		if h := i % wholeDay; h < 6 || h > 20 {
			load[i] = 0
		}
	}
	return load
}

func rising(load []float32) []float32 {
	for i := range load {
		load[i] *= 1 + 4*float32(i)/float32(len(load))
	}
	return load
}
