package quality_test

import (
	"encoding/csv"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"loadstar/internal/datatest"
	"loadstar/series"
	"loadstar/series/quality"
	"loadstar/series/read"
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

// office returns the hourly load of an office that lives by a clock, in kW: a base,
// a working day from 7 to 18, weekends off, and noise. It has no season.
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

// home returns the hourly load of a home: a low standby, and rare high peaks.
func home(days int) []float32 {
	r := rand.New(rand.NewPCG(3, 4))
	load := make([]float32, wholeDay*days)
	for i := range load {
		kw := 0.08 + 0.04*r.Float64()
		if h := i % wholeDay; h > 5 && h < 23 {
			kw += min(0.3*math.Exp(0.9*r.NormFloat64()), 6.5) // what the fuse lets through
		}
		load[i] = float32(math.Round(1000*kw) / 1000)
	}
	return load
}

// day0 is a Monday.
var day0 = time.Date(2018, 1, 1, 0, 0, 0, 0, time.UTC)

// tokyo never changes its clocks.
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

// TestCheckPlanted plants one fault into a clean series and wants just that one
// found, as often and where it was planted.
func TestCheckPlanted(t *testing.T) {
	clock := tokyo(t)
	start := time.Date(2018, 1, 1, 0, 0, 0, 0, clock)
	const days = 800
	fill := func(load []float32, from, n int, f func(i int, v float32) float32) {
		for i := from; i < from+n; i++ {
			load[i] = f(i-from, load[i])
		}
	}
	set := func(kw float32) func(int, float32) float32 { return func(int, float32) float32 { return kw } }
	times := func(x float32) func(int, float32) float32 { return func(_ int, v float32) float32 { return x * v } }
	tests := map[string]struct {
		plant    func(load []float32)
		code     quality.Code
		severity quality.Severity
		count    int
		steps    int
		at       int // step of the first place
		size     float64
	}{
		"nothing": {plant: func([]float32) {}},
		"gaps": {
			plant: func(l []float32) { fill(l, 100, 1, set(nan)); fill(l, 5000, 48, set(nan)) },
			code:  "gaps", severity: quality.Info, count: 2, steps: 49, at: 100,
		},
		"many gaps": {
			plant: func(l []float32) { fill(l, 1000, 3000, set(nan)) },
			code:  "gaps", severity: quality.Warning, count: 1, steps: 3000, at: 1000,
		},
		"zeros for gaps": {
			plant: func(l []float32) { fill(l, 700, 1, set(0)); fill(l, 3000, 5, set(0)); fill(l, 9000, 130, set(0)) },
			code:  "zeros-as-gaps", severity: quality.Warning, count: 136, steps: 136, at: 700,
		},
		"an outage": {
			plant: func(l []float32) { fill(l, 700, 3, set(0)) },
			code:  "zeros-as-gaps", severity: quality.Info, count: 3, steps: 3, at: 700,
		},
		"zeros for a season": {
			plant: func(l []float32) { fill(l, 3000, 2400, set(0)) },
			code:  "zeros-as-gaps", severity: quality.Problem, count: 2400, steps: 2400, at: 3000,
		},
		"a dropout": {
			plant: func(l []float32) { fill(l, 4000, 40, times(0.01)) },
			code:  "dropouts", severity: quality.Warning, count: 40, steps: 40, at: 4000, size: -1,
		},
		"a flat line": {
			plant: func(l []float32) { fill(l, 2005, 30, set(33.3)) },
			code:  "flat", severity: quality.Warning, count: 1, steps: 30, at: 2005, size: 33.3,
		},
		"filled for months": {
			plant: func(l []float32) { fill(l, 2005, 2500, set(33.3)) },
			code:  "flat", severity: quality.Problem, count: 1, steps: 2500, at: 2005, size: 33.3,
		},
		"spikes": {
			plant: func(l []float32) { fill(l, 2004, 1, set(700)); fill(l, 7000, 2, set(900)) },
			code:  "spikes", severity: quality.Warning, count: 2, steps: 3, at: 2004, size: 700,
		},
		"a limit": {
			plant: func(l []float32) {
				for k := range 30 {
					fill(l, 500+70*k, 2, set(400))
				}
			},
			code: "clipped", severity: quality.Warning, count: 60, steps: 60, at: -1, size: 400,
		},
		"a beat": {
			plant: func(l []float32) {
				for i := 3000; i < 3000+24*90; i += 5 {
					l[i] *= 1.5
				}
			},
			code: "beat", severity: quality.Warning, count: -1, steps: -1, at: -1, size: -1,
		},
		"another unit": {
			plant: func(l []float32) { fill(l, 24*300, len(l)-24*300, times(1000)) },
			code:  "unit-jump", severity: quality.Problem, count: 1, at: 24 * 300, size: 1000,
		},
		"half the transformer": {
			plant: func(l []float32) { fill(l, 24*420, len(l)-24*420, times(0.5)) },
			code:  "unit-jump", severity: quality.Warning, count: 1, at: 24 * 420, size: 0.5,
		},
		"a new tenant": {
			plant: func(l []float32) {
				fill(l, 24*400, len(l)-24*400, func(_ int, v float32) float32 { return v + 60 })
			},
			code: "level-jump", severity: quality.Warning, count: 1, at: 24 * 400, size: -1,
		},
		"a clock set back": {
			plant: func(l []float32) {
				copy(l[24*200:], slices.Clone(l[24*200+1:])) // an hour earlier from here on
			},
			code: "clock-shift", severity: quality.Warning, count: 1, at: 24 * 200, size: -1,
		},
		"joined years": {
			plant: func(l []float32) { l[0] /= 2; l[24*365] /= 2; l[24*730] /= 2 },
			code:  "year-start", severity: quality.Info, count: 3, steps: 3, at: 0, size: -1,
		},
		"joined months": {
			plant: func(l []float32) {
				for m := range 24 {
					l[int(start.AddDate(0, m, 0).Sub(start).Hours())] *= 2
				}
			},
			code: "month-start", severity: quality.Info, count: -1, steps: -1, at: -1, size: -1,
		},
		"feed-in": {
			plant: func(l []float32) { fill(l, 5000, 3, set(-4)) },
			code:  "negatives", severity: quality.Warning, count: 3, steps: 3,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			load := office(start, days, clock)
			test.plant(load)
			r := checkOne(t, clock, start, load)
			if test.code == "" {
				if len(r.Findings) > 0 {
					t.Fatalf("found %v in a clean series: %+v", codesOf(r.Findings), r.Findings)
				}
				return
			}
			f := get(t, r.Findings, test.code)
			// Filling in makes values repeat, and months begin with years.
			may := []quality.Code{test.code, "repeats", "year-start"}
			for _, other := range r.Findings {
				if !slices.Contains(may, other.Code) {
					t.Errorf("also found %s: %s", other.Code, other.Message)
				}
			}
			if f.Severity != test.severity {
				t.Errorf("%s, want %s", f.Severity, test.severity)
			}
			if test.count >= 0 && f.Count != test.count || test.steps >= 0 && f.Steps != test.steps {
				t.Errorf("%d times, %d steps; want %d, %d", f.Count, f.Steps, test.count, test.steps)
			}
			if f.Message == "" || f.Advice == "" {
				t.Errorf("says %q, advises %q", f.Message, f.Advice)
			}
			if test.at < 0 || len(f.Where) == 0 {
				return
			}
			w := f.Where[0]
			exact := time.Duration(0)
			if strings.HasSuffix(string(test.code), "-jump") || test.code == "clock-shift" {
				exact = 72 * time.Hour // a weekend blurs them
			}
			if want := start.Add(time.Duration(test.at) * time.Hour); w.Time.Sub(want).Abs() > exact {
				t.Errorf("at %s, want %s", w.Time, want)
			}
			if test.size > 0 && math.Abs(w.Size/test.size-1) > 0.1 {
				t.Errorf("size %g, want %g", w.Size, test.size)
			}
		})
	}
}

// TestCheckClean wants nothing found in series that look odd but are not.
func TestCheckClean(t *testing.T) {
	clock := tokyo(t)
	start := time.Date(2018, 1, 1, 0, 0, 0, 0, clock)
	tests := map[string]struct {
		load []float32
		may  []string // what may be said
	}{
		"a home":          {home(800), nil},
		"a coarse meter":  {coarse(office(start, 800, clock), 5), []string{"repeats"}},
		"a season":        {seasonal(office(start, 1000, clock)), nil},
		"closed at night": {nightOff(office(start, 800, clock)), []string{"repeats", "zeros"}},
		"a slow rise":     {rising(office(start, 800, clock)), nil},
		"built in stages": {stages(office(start, 1200, clock)), nil},
		"a small hut":     {hut(800), []string{"repeats", "zeros"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := checkOne(t, clock, start, test.load)
			if got := codesOf(r.Findings); !slices.Equal(got, slices.Sorted(slices.Values(test.may))) {
				t.Errorf("found %v, want %v: %+v", got, test.may, r.Findings)
			}
		})
	}
}

func coarse(load []float32, kw float64) []float32 {
	for i, v := range load {
		load[i] = float32(kw * math.Round(float64(v)/kw))
	}
	return load
}

// seasonal is three times as high in the four months of summer, which comes three
// weeks later every other year.
func seasonal(load []float32) []float32 {
	for i := range load {
		year, d := i/wholeDay/365, i/wholeDay%365
		if late := 21 * (year % 2); d > 150+late && d < 270+late {
			load[i] *= 3
		}
	}
	return load
}

// stages grows to three times its level in the course of ten weeks, and stays.
func stages(load []float32) []float32 {
	for i := range load {
		load[i] *= float32(math.Pow(3, min(max(float64(i/wholeDay-500)/70, 0), 1)))
	}
	return load
}

// hut has a standby of two or three times what its meter can tell, and now and then
// none.
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

// TestCheckCatchUp leaves readings out and puts their energy into the next.
func TestCheckCatchUp(t *testing.T) {
	clock := tokyo(t)
	start := time.Date(2018, 1, 1, 0, 0, 0, 0, clock)
	load := office(start, 400, clock)
	for k := range 4 {
		at := 1000 + 500*k
		for i := at; i < at+6; i++ {
			load[at+6] += load[i]
			load[i] = nan
		}
	}
	r := checkOne(t, clock, start, load)
	f := get(t, r.Findings, "catch-up")
	if f.Count != 4 || f.Severity != quality.Warning || !f.Where[0].Time.Equal(start.Add(1006*time.Hour)) {
		t.Errorf("got %+v", f)
	}
	if got := codesOf(r.Findings); !slices.Equal(got, []string{"catch-up", "gaps"}) {
		t.Errorf("found %v", got)
	}
}

func TestCheckRows(t *testing.T) {
	clock := tokyo(t)
	m := series.Meter{
		ID: "m", Start: day0.Unix(), Load: office(day0, 400, clock),
		Faults: series.Faults{Rows: 10000, Duplicates: 1, Conflicts: 2, OutOfOrder: 3, OffGrid: 101, Nonexistent: 4},
	}
	reports, fleet := checkAll(t, dataset(t, clock, m))
	r := reports[0]
	for code, want := range map[quality.Code]struct {
		severity quality.Severity
		count    int
	}{
		"duplicates": {quality.Info, 1}, "conflicts": {quality.Warning, 2}, "out-of-order": {quality.Info, 3},
		"off-grid": {quality.Problem, 101}, "nonexistent": {quality.Warning, 4},
	} {
		if f := get(t, r.Findings, code); f.Severity != want.severity || f.Count != want.count {
			t.Errorf("%s: %s, %d; want %s, %d", code, f.Severity, f.Count, want.severity, want.count)
		}
	}
	if r.Findings[0].Code != "off-grid" {
		t.Errorf("the first finding is %s, want the worst", r.Findings[0].Code)
	}
	if fleet.Problems != 1 || fleet.Worst() != quality.Problem || fleet.Codes[0].Code != "off-grid" || fleet.Rows != m.Faults {
		t.Errorf("fleet: %+v", fleet)
	}
}

func TestCheckTooLittle(t *testing.T) {
	clock := tokyo(t)
	constant := make([]float32, 24*400)
	for i := range constant {
		constant[i] = 7
	}
	// Every twelfth reading is missing: no window of 12 is whole.
	holes := office(day0, 400, clock)
	for i := 0; i < len(holes); i += 12 {
		holes[i] = nan
	}
	missing := make([]float32, 1000)
	for i := range missing {
		missing[i] = nan
	}
	for name, test := range map[string]struct {
		load []float32
		code quality.Code
		want quality.Severity
	}{
		"nothing":     {nil, "empty", quality.Problem},
		"all missing": {missing, "empty", quality.Problem},
		"constant":    {constant, "constant", quality.Problem},
		"30 days":     {office(day0, 30, clock), "too-short", quality.Problem},
		"holes":       {holes, "too-short", quality.Problem},
		"200 days":    {office(day0, 200, clock), "under-a-year", quality.Info},
		"one reading": {[]float32{3}, "too-short", quality.Problem},
	} {
		r := checkOne(t, clock, day0, test.load)
		if f := get(t, r.Findings, test.code); f.Severity != test.want {
			t.Errorf("%s: %s is a %s", name, test.code, f.Severity)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The share of steps between the first and the last reading: what is missing
	// around them is not a gap.
	load := office(day0, 60, clock)
	for i := range 100 {
		load[i], load[len(load)-1-i] = nan, nan
	}
	r := checkOne(t, clock, day0, load)
	if r.Steps != 60*24-200 || r.Coverage != 1 || r.Gaps.Count != 0 || !r.From.Equal(day0.Add(100*time.Hour)) {
		t.Errorf("got %d steps from %s, coverage %g, %d gaps", r.Steps, r.From, r.Coverage, r.Gaps.Count)
	}
}

// TestCheckWindows counts the training windows in another way.
func TestCheckWindows(t *testing.T) {
	clock := tokyo(t)
	r := rand.New(rand.NewPCG(7, 7))
	load := office(day0, 100, clock)
	for range 60 {
		load[r.IntN(len(load))] = nan
	}
	want := 0
	for target := plan.Lookback + plan.Horizon - 1; target < len(load)*8/10; target++ {
		first := target - plan.Horizon - plan.Lookback + 1
		if !slices.ContainsFunc(append(slices.Clone(load[first:first+plan.Lookback]), load[target]), series.Missing) {
			want++
		}
	}
	if got := checkOne(t, clock, day0, load).Windows; got != want {
		t.Errorf("%d windows, want %d", got, want)
	}
}

// TestCheckLegalTime has people who change their clocks, and labels that do not; and
// the other way round.
func TestCheckLegalTime(t *testing.T) {
	london, chicago := zone(t, "Europe/London"), zone(t, "America/Chicago")
	start := time.Date(2016, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, clock := range []*time.Location{time.UTC, series.StandardTime(london)} {
		r := checkOne(t, clock, start, office(start, 730, london))
		f := get(t, r.Findings, "clock-shift")
		if f.Severity != quality.Info || f.Count != 4 || len(r.Findings) != 1 || !strings.Contains(f.Message, "Europe/London") || !strings.Contains(f.Message, "1 h earlier in spring, 1 h later in autumn. The labels run on") {
			t.Errorf("%s: %+v", clock, r.Findings)
		}
		if off := f.Where[0].Time.Sub(time.Date(2016, 3, 27, 0, 0, 0, 0, clock)); off.Abs() > 72*time.Hour {
			t.Errorf("%s: first move on %s", clock, f.Where[0].Time)
		}
	}
	// On the clock that people live by, nothing moves.
	if r := checkOne(t, london, start, office(start, 730, london)); len(r.Findings) > 0 {
		t.Errorf("found %v", codesOf(r.Findings))
	}
	// What follows the sun moves on the legal clock.
	sun := get(t, checkOne(t, london, start, office(start, 730, series.StandardTime(london))).Findings, "clock-shift")
	if !strings.Contains(sun.Message, "1 h later in spring, 1 h earlier in autumn. The load does not follow legal time") {
		t.Errorf("got %+v", sun)
	}
	// Nothing moves on a clock that changes at midnight either, where a day has none.
	paulo := zone(t, "America/Sao_Paulo")
	if r := checkOne(t, paulo, start, office(start, 730, paulo)); len(r.Findings) > 0 {
		t.Errorf("found %v", codesOf(r.Findings))
	}
	// Labels by the legal clock, described as standard time: the skipped hour holds
	// half, the repeated one twice the load. With end stamps both are an hour on.
	standard := series.StandardTime(chicago)
	start = time.Date(2016, 1, 1, 0, 0, 0, 0, standard)
	for _, later := range []int{0, 1} {
		load := office(start, 731, standard)
		for _, day := range []string{"2016-03-13T08", "2017-03-12T08"} {
			load[stepOf(t, start, day)+later] *= 0.5
		}
		for _, day := range []string{"2016-11-06T07", "2017-11-05T07"} {
			load[stepOf(t, start, day)+later] *= 2
		}
		r := checkOne(t, standard, start, load)
		if got := codesOf(r.Findings); !slices.Equal(got, []string{"clock-change", "clock-change"}) {
			t.Fatalf("found %v", got)
		}
		for _, f := range r.Findings {
			if f.Count != 2 || strings.Contains(f.Message, "labelled by its end") != (later == 1) {
				t.Errorf("%d later: %+v", later, f)
			}
		}
	}
}

func stepOf(t *testing.T, start time.Time, utc string) int {
	t.Helper()
	at, err := time.Parse("2006-01-02T15", utc)
	if err != nil {
		t.Fatal(err)
	}
	return int(at.Sub(start).Hours())
}

// TestCheckIntervals plants faults on other grids.
func TestCheckIntervals(t *testing.T) {
	clock := zone(t, "Europe/Berlin") // 23- and 25-hour days, which must not matter
	for _, interval := range []time.Duration{15 * time.Minute, 30 * time.Minute, 6 * time.Hour, 24 * time.Hour} {
		hourly := office(day0, 800, clock)
		perDay := int(24 * time.Hour / interval)
		load := make([]float32, 800*perDay)
		r := rand.New(rand.NewPCG(5, 5))
		for i := range load {
			load[i] = hourly[i*24/perDay] * float32(1+0.01*r.NormFloat64())
		}
		at := 300 * perDay
		for i := range 5 * perDay {
			load[at+i] = nan
		}
		for i := range max(4, 2*perDay) {
			load[at+20*perDay+i] = 44
		}
		d, err := series.NewDataset(series.Dataset{Name: "test", Interval: interval, Clock: clock}, []series.Meter{{ID: "m", Start: day0.Unix(), Load: load}})
		if err != nil {
			t.Fatal(err)
		}
		reports, _ := checkAll(t, d)
		m := reports[0]
		if got := codesOf(m.Findings); !slices.Equal(got, []string{"flat", "gaps"}) {
			t.Errorf("%s: found %v: %+v", interval, got, m.Findings)
		}
		if m.Gaps.Steps != 5*perDay || m.Flat.Longest != max(4, 2*perDay) {
			t.Errorf("%s: %d steps missing, flat for %d", interval, m.Gaps.Steps, m.Flat.Longest)
		}
	}
}

// TestCheckFleet plants what only a fleet shows.
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
	// Day 100 is in cell 2 of 10; 72 of its 42 days' hours are missing.
	if want := math.Round(1000*72/(42*24.0)) / 1000; fleet.Missing[2] != want || fleet.Missing[3] != 0 || reports[0].Missing[2] != want {
		t.Errorf("cells %v, want %g in the third", fleet.Missing, want)
	}
}

// TestCheckReportsStaySmall bounds what is kept of a series full of faults.
func TestCheckReportsStaySmall(t *testing.T) {
	clock := tokyo(t)
	load := office(day0, 3000, clock)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range load {
		switch x := r.Float64(); {
		case x < 0.01:
			load[i] = nan
		case x < 0.015:
			load[i] = 0
		case x < 0.0155:
			load[i] *= 100
		case i > 0 && i/200%3 == 0:
			load[i] = load[i-1]
		}
	}
	m := checkOne(t, clock, day0, load)
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 10_000 || len(m.Findings) < 4 {
		t.Errorf("%d bytes, %v", len(text), codesOf(m.Findings))
	}
	for _, f := range m.Findings {
		if len(f.Where) > 5 || !slices.IsSortedFunc(f.Where, func(a, b quality.Where) int { return a.Time.Compare(b.Time) }) {
			t.Errorf("%s is at %v", f.Code, f.Where)
		}
	}
}

func TestCheckCodes(t *testing.T) {
	seen := map[quality.Code]bool{}
	for _, c := range quality.Codes() {
		if seen[c.Code] || c.Meaning == "" || c.Advice == "" {
			t.Errorf("%+v", c)
		}
		seen[c.Code] = true
	}
	if _, err := quality.NewChecker(dataset(t, time.UTC), quality.Plan{Lookback: 12, Horizon: 1}); err == nil {
		t.Error("took a plan without cells")
	}
	if _, err := quality.NewChecker(dataset(t, time.UTC), quality.Plan{Lookback: 0, Horizon: 1, Cells: 1}); err == nil {
		t.Error("took a lookback of 0")
	}
}

// table reads a CSV file by meter.
func table(t *testing.T, path string) map[string]map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]map[string]string{}
	for _, row := range rows[1:] {
		cells := map[string]string{}
		for i, name := range rows[0] {
			cells[name] = row[i]
		}
		out[row[0]] = cells
	}
	return out
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestCheckRealSets wants found in the data pack what its READMEs name, and counts
// that agree with those that came with the data.
func TestCheckRealSets(t *testing.T) {
	if testing.Short() {
		t.Skip("reads the whole data pack")
	}
	root := datatest.Root(t)
	type result struct {
		meters map[string]quality.MeterReport
		fleet  quality.FleetReport
		table  map[string]map[string]string
	}
	run := func(t *testing.T, name, dir string) result {
		t.Helper()
		desc, err := read.Load(filepath.Join("..", "..", "datasets", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		d, err := read.Open(desc, root)
		if err != nil {
			t.Fatal(err)
		}
		reports, fleet := checkAll(t, d)
		r := result{map[string]quality.MeterReport{}, fleet, table(t, filepath.Join(root, dir, "meters.csv"))}
		for _, m := range reports {
			r.meters[m.ID] = m
		}
		return r
	}
	counts := func(r result, code quality.Code) (all, bad int) {
		for _, c := range r.fleet.Codes {
			if c.Code == code {
				return c.Meters(), c.Problems + c.Warnings
			}
		}
		return 0, 0
	}
	has := func(t *testing.T, r result, id string, code quality.Code) {
		t.Helper()
		get(t, r.meters[id].Findings, code)
	}

	t.Run("cambridge", func(t *testing.T) {
		r := run(t, "cambridge", "cambridge-estates")
		if len(r.meters) != 114 {
			t.Fatalf("%d meters", len(r.meters))
		}
		for id, row := range r.table {
			m := r.meters[id]
			if want := int(number(t, row["n_rows"]) - number(t, row["n_missing"])); m.Present != want {
				t.Errorf("%s: %d present, want %d", id, m.Present, want)
			}
			if want := int(number(t, row["n_zero"])); m.Zeros != want {
				t.Errorf("%s: %d zeros, want %d", id, m.Zeros, want)
			}
		}
		// "The first hour of each year holds only one half-hour": where there are two
		// years to tell by.
		if all, _ := counts(r, "year-start"); all < 90 {
			t.Errorf("the first hour of the year is odd for %d meters only", all)
		}
		if f := get(t, r.meters["cam_b0"].Findings, "year-start"); f.Count != 7 || f.Where[0].Time.Format(time.RFC3339) != "2013-01-01T00:00:00Z" || math.Abs(f.Where[0].Size-0.5) > 0.01 {
			t.Errorf("cam_b0: %+v", f)
		}
		// "Small buildings keep their zeros": days of them in these.
		for _, id := range []string{"cam_b10", "cam_b18", "cam_b84", "cam_b106", "cam_b117"} {
			has(t, r, id, "zeros-as-gaps")
		}
		has(t, r, "cam_b55", "zeros") // closed at night
		// "A building may lack whole years."
		if g := r.meters["cam_b68"].Gaps; g.Longest < 4*365*24 {
			t.Errorf("cam_b68: the longest gap has %d steps", g.Longest)
		}
		// "Spikes up to 10x the mean exist (the source clips there)."
		has(t, r, "cam_b103", "spikes")
		f := get(t, r.meters["cam_b112"].Findings, "clipped")
		if math.Abs(f.Where[0].Size/r.meters["cam_b112"].Level.Mean-10) > 2 {
			t.Errorf("cam_b112 is clipped at %g kW, ten times its mean is %g", f.Where[0].Size, 10*r.meters["cam_b112"].Level.Mean)
		}
		// Labels are UTC; universities are not.
		if f := get(t, r.fleet.Findings, "clock-shift"); !strings.Contains(f.Message, "Europe/London") {
			t.Errorf("%+v", f)
		}
		// Wind has 1,181 gaps.
		if f := get(t, r.fleet.Findings, "weather"); f.Count != 1181 {
			t.Errorf("%+v", f)
		}
	})

	for _, site := range []string{"hog", "robin"} {
		t.Run(site, func(t *testing.T) {
			r := run(t, site, "bdg2-hog-robin")
			for id, row := range r.table {
				m, ok := r.meters[id]
				if row["group"] != site {
					continue
				}
				if !ok || m.Present != 17544 || m.Gaps.Count != 0 || math.Abs(m.Repeats-number(t, row["frac_repeat"])) > 0.00051 {
					t.Errorf("%s: %d present, %d gaps, %.4f repeated, want %s", id, m.Present, m.Gaps.Count, m.Repeats, row["frac_repeat"])
				}
			}
			// "No missing values: whoever made the extracts kept complete meters or
			// filled gaps": they did.
			if all, _ := counts(r, "flat"); all < 25 {
				t.Errorf("%d meters with flat lines", all)
			}
			// "Local clock of the site", with the hours that it skips and repeats.
			has(t, r, r.meters[firstKey(r.meters)].ID, "clock-change")
			if site == "robin" {
				if f := get(t, r.meters["Robin_office_Lindsay"].Findings, "flat"); f.Severity != quality.Problem || r.meters["Robin_office_Lindsay"].Flat.Longest != 5195 {
					t.Errorf("Lindsay: %+v", f)
				}
				get(t, r.fleet.Findings, "shared-flat")
			} else if f := get(t, r.fleet.Findings, "clock-change"); f.Count != 49 {
				t.Errorf("%+v", f)
			}
		})
	}

	for _, state := range []string{"ca", "tx", "vt"} {
		t.Run("resstock-"+state, func(t *testing.T) {
			r := run(t, "resstock-"+state, "resstock-ca-tx-vt")
			// "No gaps (simulation)", and little else.
			if r.fleet.Coverage != 1 || r.fleet.Problems > 0 || r.fleet.Warnings > 2 || len(r.fleet.Findings) > 0 {
				t.Errorf("%+v", r.fleet)
			}
		})
	}

	t.Run("sgsc", func(t *testing.T) {
		r := run(t, "sgsc", "sgsc-households")
		for id, row := range r.table {
			m := r.meters[id]
			if want := int(number(t, row["n_hours"]) - number(t, row["n_missing_hours"])); m.Present != want {
				t.Errorf("%s: %d present, want %d", id, m.Present, want)
			}
		}
		if all, bad := counts(r, "gaps"); all < 70 || bad != 10 {
			t.Errorf("%d meters with gaps, %d of them with many", all, bad)
		}
		// Homes that stood empty for months.
		if _, bad := counts(r, "zeros-as-gaps"); bad < 20 {
			t.Errorf("%d meters with long zeros", bad)
		}
		// The labels are standard time, whatever the source says of its clock.
		if f := get(t, r.fleet.Findings, "clock-shift"); !strings.Contains(f.Message, "Australia/Sydney") {
			t.Errorf("%+v", f)
		}
	})
}

func firstKey[V any](m map[string]V) string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	return slices.Min(keys)
}
