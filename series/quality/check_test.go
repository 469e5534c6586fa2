package quality_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/series"
	"loadstar/series/quality"
)

// TestCheckPlanted plants one fault in a clean series and checks that the report contains
// only that fault, with the correct place and count.
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
		at       int // the step at which the first occurrence starts
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
		"zeros instead of gaps": {
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
		"a gap filled for months": {
			plant: func(l []float32) { fill(l, 2005, 2500, set(33.3)) },
			code:  "flat", severity: quality.Problem, count: 1, steps: 2500, at: 2005, size: 33.3,
		},
		"spikes": {
			plant: func(l []float32) { fill(l, 2004, 1, set(300)); fill(l, 7000, 2, set(350)) },
			code:  "spikes", severity: quality.Warning, count: 2, steps: 3, at: 2004, size: 300,
		},
		"impossible values": {
			plant: func(l []float32) { fill(l, 2004, 1, set(7000)); fill(l, 7000, 2, set(9000)) },
			code:  "impossible", severity: quality.Problem, count: 3, steps: 3, at: 2004, size: 7000,
		},
		// More than half of the days contain garbage, so garbage determines the maximum of most
		// days and the 99 % quantile.
		"3 % of garbage": {
			plant: func(l []float32) {
				for k := 5; k < len(l); k += 33 {
					fill(l, k, 1, set(float32(1e5)))
				}
			},
			code: "impossible", severity: quality.Problem, count: -1, steps: -1, at: 5, size: 1e5,
		},
		"garbage for eight days": {
			plant: func(l []float32) { fill(l, 2000, 8*24, func(_ int, v float32) float32 { return 1e4 * v }) },
			code:  "impossible", severity: quality.Problem, count: 8 * 24, steps: 8 * 24, at: 2000, size: -1,
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
		"half the transformer ratio": {
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
				copy(l[24*200:], slices.Clone(l[24*200+1:])) // an hour earlier from this day on
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
			// Filled gaps also cause a repeats finding. The first step of a year is also
			// the first step of a month.
			may := []quality.Code{test.code, "repeats", "year-start"}
			for _, other := range r.Findings {
				if !slices.Contains(may, other.Code) {
					t.Errorf("also found %s: %s", other.Code, other.Message)
				}
			}
			if f.Severity != test.severity {
				t.Errorf("severity %s, want %s", f.Severity, test.severity)
			}
			if test.count >= 0 && f.Count != test.count || test.steps >= 0 && f.Steps != test.steps {
				t.Errorf("%d times, %d steps; want %d, %d", f.Count, f.Steps, test.count, test.steps)
			}
			if f.Message == "" || f.Advice == "" {
				t.Errorf("message %q, advice %q: want both", f.Message, f.Advice)
			}
			if test.at < 0 || len(f.Where) == 0 {
				return
			}
			w := f.Where[0]
			exact := time.Duration(0)
			if strings.HasSuffix(string(test.code), "-jump") || test.code == "clock-shift" {
				exact = 72 * time.Hour // weekends make the day uncertain
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

// TestCheckClean checks that series that look unusual, but have no fault, cause no
// unexpected findings.
func TestCheckClean(t *testing.T) {
	clock := tokyo(t)
	start := time.Date(2018, 1, 1, 0, 0, 0, 0, clock)
	tests := map[string]struct {
		load []float32
		may  []string // codes of allowed findings
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

// TestCheckCatchUp checks the finding for a meter that adds the energy of missing readings
// to the next reading.
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
		t.Errorf("the first finding is %s, want the worst one", r.Findings[0].Code)
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
	// Every twelfth reading is missing, so no window of 12 is complete.
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
	// Coverage counts the steps between the first and the last reading. Missing steps
	// before and after them are not gaps.
	load := office(day0, 60, clock)
	for i := range 100 {
		load[i], load[len(load)-1-i] = nan, nan
	}
	r := checkOne(t, clock, day0, load)
	if r.Steps != 60*24-200 || r.Coverage != 1 || r.Gaps.Count != 0 || !r.From.Equal(day0.Add(100*time.Hour)) {
		t.Errorf("got %d steps from %s, coverage %g, %d gaps", r.Steps, r.From, r.Coverage, r.Gaps.Count)
	}
}

// TestCheckWindows compares the reported number of training windows with an independent
// count.
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

// TestCheckIntervals checks that faults are found in series whose interval is not an hour.
func TestCheckIntervals(t *testing.T) {
	clock := zone(t, "Europe/Berlin") // days with 23 and 25 hours must not matter
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

// TestCheckReportsStaySmall checks that the report on a series full of faults has a bounded
// size.
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
		t.Error("no error for a plan without cells")
	}
	if _, err := quality.NewChecker(dataset(t, time.UTC), quality.Plan{Lookback: 0, Horizon: 1, Cells: 1}); err == nil {
		t.Error("no error for a lookback of 0")
	}
}
