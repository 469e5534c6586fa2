package series

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

var absent = math.NaN()

func addRow(t *testing.T, m *MeterBuilder, unix int64, kw float64) {
	t.Helper()
	if err := m.Add(Instant{Unix: unix}, kw); err != nil {
		t.Fatal(err)
	}
}

// equalLoad reports whether two series are equal. It treats missing values as equal.
func equalLoad(a []float32, b ...float64) bool {
	return slices.EqualFunc(a, b, func(x float32, y float64) bool {
		return x == float32(y) || Missing(x) && math.IsNaN(y)
	})
}

func TestBuilder(t *testing.T) {
	type row struct {
		unix int64
		kw   float64
	}
	// Times are in hours from an arbitrary start.
	const hour, t0 = 3600, 400000 * 3600
	for _, c := range []struct {
		name   string
		rows   []row
		start  int64
		want   []float64
		faults Faults
	}{
		{"in order", []row{{0, 1}, {1, 2}, {2, 3}}, 0, []float64{1, 2, 3}, Faults{Rows: 3}},
		{"a gap", []row{{0, 1}, {3, 2}}, 0, []float64{1, absent, absent, 2}, Faults{Rows: 2}},
		{"a missing value is a row", []row{{0, absent}, {1, 2}, {2, absent}}, 0, []float64{absent, 2, absent}, Faults{Rows: 3}},
		{"duplicate", []row{{0, 1}, {0, 1}, {1, 2}}, 0, []float64{1, 2}, Faults{Rows: 3, Duplicates: 1}},
		{"missing after a value", []row{{0, 1}, {0, absent}, {1, 2}}, 0, []float64{1, 2}, Faults{Rows: 3, Duplicates: 1}},
		{"a value after missing", []row{{0, absent}, {1, 2}, {0, 1}}, 0, []float64{1, 2}, Faults{Rows: 3, OutOfOrder: 1}},
		{"conflict: the first stays", []row{{0, 1}, {0, 5}, {1, 2}}, 0, []float64{1, 2}, Faults{Rows: 3, Conflicts: 1}},
		{"out of order", []row{{0, 1}, {2, 3}, {1, 2}, {3, 4}}, 0, []float64{1, 2, 3, 4}, Faults{Rows: 4, OutOfOrder: 1}},
		{"before the first row", []row{{5, 6}, {6, 7}, {2, 3}, {3, 4}, {7, 8}}, 2, []float64{3, 4, absent, 6, 7, 8}, Faults{Rows: 5, OutOfOrder: 1}},
		{"backwards", []row{{3, 4}, {2, 3}, {1, 2}, {0, 1}}, 0, []float64{1, 2, 3, 4}, Faults{Rows: 4, OutOfOrder: 3}},
		{"early duplicates and conflicts", []row{{5, 6}, {2, 3}, {2, 3}, {2, 9}}, 2, []float64{3, absent, absent, 6}, Faults{Rows: 4, OutOfOrder: 1, Duplicates: 1, Conflicts: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := NewBuilder(time.Hour)
			m := b.Meter("m")
			for _, r := range c.rows {
				addRow(t, m, t0+r.unix*hour, r.kw)
			}
			got, err := b.Meters()
			if err != nil {
				t.Fatal(err)
			}
			if got[0].Start != t0+c.start*hour || !equalLoad(got[0].Load, c.want...) || got[0].Faults != c.faults {
				t.Errorf("start at hour %d, %v, %+v; want %d, %v, %+v",
					(got[0].Start-t0)/hour, got[0].Load, got[0].Faults, c.start, c.want, c.faults)
			}
		})
	}
}

func TestBuilderFleet(t *testing.T) {
	b := NewBuilder(time.Hour)
	for i := range int64(3) {
		addRow(t, b.Meter("b"), i*3600, float64(i))
		addRow(t, b.Meter("a"), i*3600, float64(10*i))
	}
	b.Meter("none")
	b.Meter("skipped").AddNonexistent()
	got, err := b.Meters()
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].ID != "b" || got[1].ID != "a" || !equalLoad(got[1].Load, 0, 10, 20) {
		t.Errorf("%+v", got)
	}
}

// TestBuilderNonexistentFirst checks that the first row may have a local time that does not
// exist.
func TestBuilderNonexistentFirst(t *testing.T) {
	b := NewBuilder(time.Hour)
	m := b.Meter("m")
	m.AddNonexistent()
	addRow(t, m, 1e9, 1)
	got, err := b.Meters()
	if err != nil {
		t.Fatal(err)
	}
	if want := (Faults{Rows: 2, Nonexistent: 1}); got[0].Start != 1e9 || !equalLoad(got[0].Load, 1) || got[0].Faults != want {
		t.Errorf("%+v", got)
	}
}

func TestBuilderOffGrid(t *testing.T) {
	for _, c := range []struct {
		name   string
		n      int
		odd    func(i int64) int64 // seconds after the hour
		start  int64
		len    int
		faults Faults
	}{
		{"one row", 10, func(i int64) int64 { return 420 * oneIf(i == 4) }, 0, 10, Faults{Rows: 10, OffGrid: 1}},
		{"the first row", 10, func(i int64) int64 { return 420 * oneIf(i == 0) }, 3600, 9, Faults{Rows: 10, OffGrid: 1}},
		{"the first of many", 500, func(i int64) int64 { return 420 * oneIf(i == 0) }, 3600, 499, Faults{Rows: 500, OffGrid: 1}},
		{"the first three", 500, func(i int64) int64 { return 420 * oneIf(i < 3) }, 3 * 3600, 497, Faults{Rows: 500, OffGrid: 3}},
		{"a clock that starts to drift", 500, func(i int64) int64 { return max(0, i-400) }, 0, 401, Faults{Rows: 500, OffGrid: 99}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := NewBuilder(time.Hour)
			for i := range int64(c.n) {
				addRow(t, b.Meter("m"), 3600*i+c.odd(i), 1)
			}
			got, err := b.Meters()
			if err != nil {
				t.Fatal(err)
			}
			if got[0].Start != c.start || len(got[0].Load) != c.len || got[0].Faults != c.faults {
				t.Errorf("start %d, %d steps, %+v", got[0].Start, len(got[0].Load), got[0].Faults)
			}
			for i, v := range got[0].Load {
				if Missing(v) != (c.name == "one row" && i == 4) {
					t.Errorf("step %d is %v", i, v)
				}
			}
		})
	}
}

func oneIf(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// TestBuilderWrongInterval checks that minute data with a configured interval of an hour is
// an error, and does not become a sparse series.
func TestBuilderWrongInterval(t *testing.T) {
	b := NewBuilder(time.Hour)
	for i := range int64(5000) {
		addRow(t, b.Meter("m"), 60*i, 1)
	}
	if _, err := b.Meters(); err == nil || !strings.Contains(err.Error(), "4916 of 5000 rows are not a whole number of intervals of 1h0m0s apart") {
		t.Errorf("error %v", err)
	}
}

// TestBuilderFold checks which instants the builder assigns to labels in the hour that clocks
// show twice. Every test case also has two rows in the previous hour.
func TestBuilderFold(t *testing.T) {
	const start, hour, quarter = int64(1e9), 3600, 900 // the first hour starts at start
	label := func(i int64) Instant { return Instant{Unix: start + quarter*i, Again: start + hour + quarter*i} }
	plain := func(unix int64) Instant { return Instant{Unix: unix} }
	before := []Instant{plain(start - 2*quarter), plain(start - quarter)}
	after := []Instant{plain(start + 2*hour), plain(start + 2*hour + quarter)}
	twice := func(i ...int64) (out []Instant) {
		for _, i := range i {
			out = append(out, label(i))
		}
		return out
	}
	for _, c := range []struct {
		name string
		rows []Instant
		want []int64 // quarters from the first row
	}{
		{
			"one hour after the other", slices.Concat(before, twice(0, 1, 2, 3, 0, 1, 2, 3), after),
			[]int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
		},
		{
			"sorted by label", slices.Concat(before, twice(0, 0, 1, 1, 2, 2, 3, 3), after),
			[]int64{0, 1, 2, 6, 3, 7, 4, 8, 5, 9, 10, 11},
		},
		{
			"newest first", newestFirst(slices.Concat(before, twice(0, 1, 2, 3, 0, 1, 2, 3), after)),
			[]int64{11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0},
		},
		{
			"newest first, by label", newestFirst(slices.Concat(before, twice(0, 0, 1, 1, 2, 2, 3, 3), after)),
			[]int64{11, 10, 9, 5, 8, 4, 7, 3, 6, 2, 1, 0},
		},
		{
			"gaps in both hours", slices.Concat(before, twice(0, 2, 3, 1, 2), after),
			[]int64{0, 1, 2, 4, 5, 7, 8, 10, 11},
		},
		{
			"only one of them", slices.Concat(before, twice(0, 1, 2, 3), after),
			[]int64{0, 1, 2, 3, 4, 5, 10, 11},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := NewBuilder(15 * time.Minute)
			first := start - 2*quarter
			for i, r := range c.rows {
				if err := b.Meter("m").Add(r, 100+float64(c.want[i])); err != nil {
					t.Fatal(err)
				}
			}
			got, err := b.Meters()
			if err != nil {
				t.Fatal(err)
			}
			m := got[0]
			if m.Start != first || len(m.Load) != 12 || m.Faults.Conflicts+m.Faults.Duplicates+m.Faults.OffGrid > 0 {
				t.Errorf("start %d, %d steps, %+v", m.Start-first, len(m.Load), m.Faults)
			}
			for i, v := range m.Load {
				if !Missing(v) && v != 100+float32(i) || Missing(v) && slices.Contains(c.want, int64(i)) {
					t.Errorf("step %d has the value of step %g", i, v-100)
				}
			}
		})
	}
}

func newestFirst(s []Instant) []Instant {
	slices.Reverse(s)
	return s
}

// TestBuilderBounds checks that wrong dates do not exhaust memory, regardless of the number
// of meters.
func TestBuilderBounds(t *testing.T) {
	b := NewBuilder(time.Minute)
	addRow(t, b.Meter("m"), 0, 1)
	if err := b.Meter("m").Add(Instant{Unix: 61 * 366 * 86400}, 1); err == nil || !strings.Contains(err.Error(), "check the dates") {
		t.Errorf("61 years of minutes in 2 rows: %v", err)
	}
	b = NewBuilder(time.Minute)
	addRow(t, b.Meter("m"), 40*366*86400, 1)
	addRow(t, b.Meter("m"), 0, 1)
	if _, err := b.Meters(); err == nil || !strings.Contains(err.Error(), "check the dates") {
		t.Errorf("40 years of minutes, backwards: %v", err)
	}
	b = NewBuilder(time.Hour)
	var err error
	n := 0
	for ; n < 1000 && err == nil; n++ {
		m := b.Meter(strings.Repeat("m", n+1))
		addRow(t, m, 0, 1)
		err = m.Add(Instant{Unix: 50 * 366 * 86400}, 1)
	}
	if err == nil || b.steps > 2*baseSteps {
		t.Errorf("%d meters of 50 years in 2 rows each: %d steps, %v", n, b.steps, err)
	}
	for _, kw := range []float64{math.Inf(1), math.Inf(-1), 1e39} {
		if err := b.Meter("inf").Add(Instant{}, kw); err == nil || !strings.Contains(err.Error(), "out of range") {
			t.Errorf("%g kW: %v", kw, err)
		}
	}
	for _, at := range []int64{-1, math.MinInt64, math.MaxInt64} {
		if err := b.Meter("far").Add(Instant{Unix: at}, 1); err == nil {
			t.Errorf("time %d was accepted", at)
		}
	}
	// A year of daily rows on a one-minute grid is unusual, but harmless.
	b = NewBuilder(time.Minute)
	for i := range int64(365) {
		addRow(t, b.Meter("daily"), 86400*i, 1)
	}
	if _, err := b.Meters(); err != nil {
		t.Error(err)
	}
}
