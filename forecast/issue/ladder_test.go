package issue

import (
	"math"
	"slices"
	"testing"
	"time"

	"loadstar/series"
)

// TestLadder removes the requirements of each source, one after the other.
func TestLadder(t *testing.T) {
	m := meter(60, time.UTC)
	n := len(m.Load)
	cutoff := m.Start + int64(n)*hour
	flat := without(m, 0, 0)
	for i := n - 30; i < n; i++ {
		flat.Load[i] = 1.25
	}
	own, generic := newFake(m, 24), newFake(m, 24)
	change := func(f func(*fake)) *fake {
		x := newFake(m, 24)
		f(x)
		return x
	}
	for name, c := range map[string]struct {
		m       series.Meter
		models  Models
		row     int
		source  Source
		reason  Reason
		quality Quality
	}{
		"model":              {m, Models{Own: own}, 0, Model, "", OK},
		"filled":             {m, Models{Own: change(func(f *fake) { f.ready = series.Filled })}, 0, Model, InputFilled, Estimated},
		"observed weather":   {m, Models{Own: change(func(f *fake) { f.reason = WeatherObserved })}, 0, Model, WeatherObserved, OK},
		"persisted weather":  {m, Models{Own: change(func(f *fake) { f.reason = WeatherPersisted })}, 0, Model, WeatherPersisted, Estimated},
		"beyond reach":       {m, Models{Own: own}, 24, Week, BeyondReach, Estimated},
		"before the first":   {m, Models{Own: change(func(f *fake) { f.first = 5 })}, 3, Week, BeyondReach, Estimated},
		"from the first":     {m, Models{Own: change(func(f *fake) { f.first = 5 })}, 4, Model, "", OK},
		"no release":         {m, Models{}, 0, Week, NoRelease, Estimated},
		"no head":            {m, Models{Reason: NoHead}, 0, Week, NoHead, Estimated},
		"another step":       {m, Models{Own: change(func(f *fake) { f.step = time.Minute })}, 0, Week, StepDiffers, Estimated},
		"gap":                {m, Models{Own: change(func(f *fake) { f.ready = series.Unready })}, 0, Week, Gap, Estimated},
		"no weather":         {m, Models{Own: change(func(f *fake) { f.ready, f.reason = series.Unready, WeatherMissing })}, 0, Week, WeatherMissing, Estimated},
		"flat":               {flat, Models{Own: own, Generic: generic}, 0, Model, Flat, Estimated},
		"failed":             {m, Models{Own: change(func(f *fake) { f.fail = errFake })}, 0, Week, ModelFailed, Estimated},
		"not a number":       {m, Models{Own: change(func(f *fake) { f.add = math.NaN() })}, 0, Week, ModelFailed, Estimated},
		"generic":            {m, Models{Generic: generic, Reason: NoHead}, 0, Generic, NoHead, Estimated},
		"generic after own":  {m, Models{Own: change(func(f *fake) { f.ready = series.Unready }), Generic: generic}, 0, Generic, Gap, Estimated},
		"generic's reach":    {m, Models{Generic: generic, Reason: NoHead}, 30, Week, BeyondReach, Estimated},
		"two weeks before":   {without(m, n-168, n-167), Models{}, 0, Week, NoRelease, Estimated},
		"day":                {without(without(m, n-168, n-167), n-336, n-335), Models{}, 0, Day, Gap, Estimated},
		"day of a new meter": {without(m, 0, n-30), Models{}, 0, Day, ShortHistory, Estimated},
		"last":               {without(m, 0, n-1), Models{}, 0, Last, ShortHistory, Estimated},
		"last after 5 hours": {without(without(m, 0, n-6), n-5, n), Models{}, 0, Last, ShortHistory, Estimated},
		"last after 6 hours": {without(without(m, 0, n-7), n-6, n), Models{}, 0, None, NoReadings, Missing},
		"nothing":            {without(m, 0, n), Models{}, 0, None, NoReadings, Missing},
		"no steps":           {series.Meter{ID: "a", Start: cutoff}, Models{}, 47, None, NoReadings, Missing},
	} {
		s := state(t, Config{})
		f := s.Issue(c.m, c.models, cutoff)
		row := f.Rows[c.row]
		if row.Source != c.source || row.Reason != c.reason || row.Quality != c.quality {
			t.Errorf("%s: %s %s %s, want %s %s %s", name, row.Source, row.Reason, row.Quality, c.source, c.reason, c.quality)
		}
		for i, row := range f.Rows {
			if row.Time != cutoff+int64(i)*hour || len(row.Values) != 3 {
				t.Errorf("%s: row %d: %+v", name, i, row)
			}
			for k, v := range row.Values {
				if (row.Source == None) != math.IsNaN(v) || row.Source != None && !(v >= 0) || k > 0 && v < row.Values[k-1] {
					t.Errorf("%s: row %d: %+v", name, i, row)
				}
			}
		}
	}
	if own.asked == 0 {
		t.Error("the model was not asked")
	}
}

// TestMostlyWeek makes the model perform badly for weeks.
func TestMostlyWeek(t *testing.T) {
	m := meter(60, time.UTC)
	s, bad := state(t, Config{}), newFake(m, 24)
	bad.add = 9
	var f Forecast
	for at := m.Start + 30*day; at <= m.Start+50*day; at += 6 * hour {
		f = s.Issue(m, Models{Own: bad}, at)
	}
	if f.Weight >= leastWeight || f.Rows[0].Source != Model || f.Rows[0].Reason != MostlyWeek || f.Rows[0].Values[1] > 8 {
		t.Errorf("weight %v, %+v", f.Weight, f.Rows[0])
	}
}

// TestNewMeter follows the first days of a meter.
func TestNewMeter(t *testing.T) {
	m := meter(30, time.UTC)
	s := state(t, Config{H: 24})
	sources := map[int]Source{}
	for h := 1; h < len(m.Load); h++ {
		f := s.Issue(m, Models{}, m.Start+int64(h)*hour)
		if row := f.Rows[0]; sources[h/24] == "" {
			sources[h/24] = row.Source
		}
		for i, row := range f.Rows {
			if !(row.Values[0] < row.Values[1] && row.Values[1] < row.Values[2]) {
				t.Fatalf("hour %d, row %d: %v is no interval", h, i, row.Values)
			}
		}
		if h == 1 {
			v := float64(m.Load[0])
			if row := f.Rows[0]; row.Values[0] != 0 || row.Values[1] != v || row.Values[2] != 2*v {
				t.Errorf("after one reading of %v: %v", v, row.Values)
			}
		}
	}
	for d, want := range map[int]Source{0: Last, 1: Day, 6: Day, 7: Week, 20: Week} {
		if sources[d] != want {
			t.Errorf("day %d: %s, want %s", d, sources[d], want)
		}
	}
}

func TestExtremeDay(t *testing.T) {
	m := without(meter(60, time.UTC), 0, 0)
	n := len(m.Load)
	peak := n - 20*24 + 5 // hour 5 of a day
	m.Load[peak] = 50
	m.Load[n-40*24] = 90 // too old
	s := state(t, Config{Fallback: ExtremeDay})
	f := s.Issue(m, Models{}, m.Start+int64(n)*hour)
	for i, row := range f.Rows {
		if want := float64(m.Load[peak-5+i%24]); row.Values[1] != want || row.Source != Week {
			t.Errorf("row %d: %+v, want %v", i, row, want)
		}
	}
}

// TestClockChanges checks that the same clock time is found on days with 23 and 25 hours.
func TestClockChanges(t *testing.T) {
	berlin := location(t, "Europe/Berlin")
	m := meter(365, time.UTC)
	for i := range m.Load { // the load encodes the step, and differs more between the days of a week than between weeks
		m.Load[i] = float32(i%168*1000 + i/168)
	}
	for _, change := range []time.Time{
		time.Date(2021, 3, 28, 0, 0, 0, 0, berlin), time.Date(2021, 10, 31, 0, 0, 0, 0, berlin),
	} {
		for from := -2; from < 16; from++ {
			cutoff := change.AddDate(0, 0, from)
			s := state(t, Config{Clock: berlin})
			f := s.Issue(m, Models{}, cutoff.Unix())
			for i, row := range f.Rows {
				at := time.Unix(row.Time, 0).In(berlin)
				if row.Time != cutoff.Unix()+int64(i)*hour || row.Source != Week {
					t.Fatalf("%s: %+v", at, row)
				}
				v := int64(row.Values[1])
				found := time.Unix(m.Start+(v/1000+v%1000*168)*hour, 0).In(berlin)
				if found.Hour() != at.Hour() && at.AddDate(0, 0, -7).Hour() == at.Hour() || found.YearDay() != at.AddDate(0, 0, -7).YearDay() {
					t.Errorf("cutoff %s: the forecast for %s is the load at %s", cutoff, at, found)
				}
			}
		}
	}
}

// TestFeedIn checks that forecasts are clipped only for a meter that has never fed in.
func TestFeedIn(t *testing.T) {
	for _, c := range []struct {
		add  float32
		clip bool
	}{{0, true}, {-4, false}} {
		m := without(meter(40, time.UTC), 0, 0)
		for i := range m.Load {
			m.Load[i] = max(m.Load[i]-3, 0) + c.add
		}
		model := newFake(m, 24)
		model.add = -0.15
		f := state(t, Config{}).Issue(m, Models{Own: model}, m.Start+40*day)
		negative := slices.ContainsFunc(f.Rows, func(r Row) bool { return r.Values[0] < 0 })
		if negative == c.clip {
			t.Errorf("%+v: negative %t", c, negative)
		}
	}
}

// TestLevels requests levels that the model does not forecast.
func TestLevels(t *testing.T) {
	m := meter(60, time.UTC)
	cutoff := m.Start + 60*day
	plain := state(t, Config{}).Issue(m, Models{Own: newFake(m, 24)}, cutoff)
	more := state(t, Config{Levels: []float64{0.05, 0.1, 0.3, 0.9}}).Issue(m, Models{Own: newFake(m, 24)}, cutoff)
	for i := range 24 {
		a, b := plain.Rows[i].Values, more.Rows[i].Values
		if b[0] != a[0] || b[1] != a[0] || math.Abs(b[2]-(a[0]+a[1])/2) > 1e-9 || b[3] != a[2] {
			t.Errorf("row %d: %v and %v", i, a, b)
		}
	}
	points := newFake(m, 24)
	points.levels = nil
	s := state(t, Config{})
	var f Forecast
	outside, rows := 0, 0
	for at := m.Start + 30*day; at < cutoff-day; at += 6 * hour {
		f = s.Issue(m, Models{Own: points}, at)
		for i, row := range f.Rows[:24] {
			if !(row.Values[0] < row.Values[2]) || row.Source != Model {
				t.Fatalf("%+v", row)
			}
			if at > m.Start+40*day {
				rows++
				if y := float64(m.Load[(at-m.Start)/hour+int64(i)]); y < row.Values[0] || y > row.Values[2] {
					outside++
				}
			}
		}
	}
	if share := float64(outside) / float64(rows); share < 0.1 || share > 0.3 {
		t.Errorf("%.2f of the loads are outside of the intervals of a model without quantiles", share)
	}
}

func TestConfigs(t *testing.T) {
	for name, c := range map[string]Config{
		"step":     {Step: 7 * time.Minute, Clock: time.UTC, H: 1},
		"clock":    {Step: time.Hour, H: 1},
		"no steps": {Step: time.Hour, Clock: time.UTC},
		"too many": {Step: time.Hour, Clock: time.UTC, H: 14*24 + 1},
		"levels":   {Step: time.Hour, Clock: time.UTC, H: 1, Levels: []float64{0.5, 0.5}},
		"level":    {Step: time.Hour, Clock: time.UTC, H: 1, Levels: []float64{0, 0.5}},
		"fallback": {Step: time.Hour, Clock: time.UTC, H: 1, Fallback: "month"},
	} {
		if _, err := NewState(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
