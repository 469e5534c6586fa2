package serve

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"loadstar/forecast/issue"
	"loadstar/series"
)

// TestServe opens a folder and forecasts from it.
func TestServe(t *testing.T) {
	for name, x := range map[string]sample{
		"dense":   {meters: 3, days: 120, weather: true, ahead: 3},
		"windows": {meters: 3, days: 120, plan: windowPlan},
		"quarter": {meters: 2, days: 90, interval: 15 * time.Minute, plan: "{name: test, algorithm: fedavg, model: {name: dense, targets: 96}}"},
	} {
		t.Run(name, func(t *testing.T) {
			d := x.dataset(t)
			f := open(t, x.folder(t, d))
			_, end := d.Span()
			s := newState(t, d, 48)
			got := issueAt(t, f, d, s, 1, end)
			n := f.Model.Plan.Model.Targets.Steps()
			for i, row := range got.Rows {
				source, reason := issue.Model, issue.Reason("")
				if i >= n {
					source, reason = issue.Week, issue.BeyondReach
				}
				if row.Source != source || row.Reason != reason || !slices.IsSorted(row.Values) || row.Time != end+int64(i)*d.Seconds() {
					t.Fatalf("row %d: %+v", i, row)
				}
			}
			if got.Model != "test" || got.Client != "m/1" || got.Weight != 1 {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestTailEqualsWhole compares the forecast from the newest step with the forecast that the
// training problem gives for the same step of the whole series.
func TestTailEqualsWhole(t *testing.T) {
	for _, x := range []sample{
		{meters: 2, days: 130, weather: true, missing: 0.02, ahead: 3},
		{meters: 2, days: 130, zone: "America/New_York", weather: true, ahead: 3},
		{meters: 2, days: 130, plan: windowPlan},
	} {
		d := x.dataset(t)
		f := open(t, x.folder(t, d))
		from, end := d.Span()
		cutoff := end - 5*hour
		for _, earlier := range []int64{0, 7, 14, 28} {
			// A dataset that starts later must give the same forecasts, as long as it contains the
			// tail.
			start := Tail(cutoff) - earlier*daySeconds
			if start < from {
				t.Fatal("the series is too short for this test")
			}
			var meters []series.Meter
			for i := range d.Len() {
				m := d.Meter(i)
				m.Load = m.Load[(start-m.Start)/d.Seconds():]
				m.Start = start
				meters = append(meters, m)
			}
			part, err := series.NewDataset(fields(d), meters)
			if err != nil {
				t.Fatal(err)
			}
			want := issueAt(t, f, d, newState(t, d, 48), 1, cutoff)
			if got := issueAt(t, f, part, newState(t, d, 48), 1, cutoff); fmt.Sprint(got) != fmt.Sprint(want) { // NaN is printed, but is not equal to itself
				t.Errorf("%+v: another forecast with a series that starts %d days before the tail", x, earlier)
			}
			if want.Rows[0].Source != issue.Model {
				t.Fatalf("%+v", want.Rows[0])
			}
		}
		// Forecasts from tails with different aligned starts have the same bytes.
		tails, err := newTails(d, cutoff, cutoff, 48, nil)
		if err != nil {
			t.Fatal(err)
		}
		longer, err := newTails(d, cutoff-7*daySeconds, cutoff, 48, nil)
		if err != nil {
			t.Fatal(err)
		}
		longer.Cutoff = cutoff
		c, err := f.Client("m/1")
		if err != nil {
			t.Fatal(err)
		}
		var out [2][]float64
		for k, x := range []*Tails{tails, longer} {
			frame, err := f.Model.Frame(x)
			if err != nil {
				t.Fatal(err)
			}
			m, err := x.Meter(1)
			if err != nil {
				t.Fatal(err)
			}
			out[k] = make([]float64, 24*max(len(f.Model.levels), 1))
			if err := frame.Forecaster(m, c).Forecast(out[k], cutoff); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(out[0], out[1]) {
			t.Errorf("%+v: tails with other starts give %v and %v", x, out[0][:3], out[1][:3])
		}
	}
}

// TestReplay compares a replayed state with the state of a client that made an issue at every
// step, and with a state that was replayed in two parts.
func TestReplay(t *testing.T) {
	for _, x := range []sample{
		{meters: 2, days: 130, weather: true, missing: 0.02},
		{meters: 2, days: 130, start: "2021-08-20", plan: windowPlan, missing: 0.001},
	} {
		d := x.dataset(t)
		f := open(t, x.folder(t, d))
		_, end := d.Span()
		c, err := f.Client("m/1")
		if err != nil {
			t.Fatal(err)
		}
		replayed, parts, live := newState(t, d, 48), newState(t, d, 48), newState(t, d, 48)
		issues := 0
		r := NewReplay(d, f.Model, nil)
		r.Each = func(issue.Forecast) { issues++ }
		if err := r.Advance(replayed, 1, &c, nil, end); err != nil {
			t.Fatal(err)
		}
		if issues != replayDays*4 {
			t.Errorf("%d issues", issues)
		}
		from := end - replayDays*daySeconds
		// The first part begins with the same step, although its cutoff is earlier.
		for at := from; at < from+20*daySeconds+7*hour; at += 3 * hour {
			issueAt(t, f, d, live, 1, at)
		}
		if err := parts.UnmarshalBinary(encoded(t, live)); err != nil {
			t.Fatal(err)
		}
		if err := NewReplay(d, f.Model, nil).Advance(parts, 1, &c, nil, end); err != nil {
			t.Fatal(err)
		}
		for at := from + 20*daySeconds + 9*hour; at < end; at += 3 * hour {
			issueAt(t, f, d, live, 1, at)
		}
		want := issueAt(t, f, d, live, 1, end)
		for name, s := range map[string]*issue.State{"replayed": replayed, "half live": parts} {
			got := issueAt(t, f, d, s, 1, end)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %+v\nwant %+v", name, got.Rows[0], want.Rows[0])
			}
			if !bytes.Equal(encoded(t, s), encoded(t, live)) {
				t.Errorf("%s: another state", name)
			}
		}
	}
}

// TestFutureHasNoEffect plants impossible readings after the cutoff.
func TestFutureHasNoEffect(t *testing.T) {
	x := sample{meters: 2, days: 130, weather: true, ahead: 3}
	d := x.dataset(t)
	f := open(t, x.folder(t, d))
	_, end := d.Span()
	cutoff := end - 31*hour
	var meters []series.Meter
	for i := range d.Len() {
		m := d.Meter(i)
		m.Load = slices.Clone(m.Load)
		for k := len(m.Load) - 31; k < len(m.Load); k++ {
			m.Load[k] = float32(1e9 * float64(k%3-1))
		}
		m.Load[len(m.Load)-5] = float32(math.NaN())
		meters = append(meters, m)
	}
	planted, err := series.NewDataset(fields(d), meters)
	if err != nil {
		t.Fatal(err)
	}
	var got [2]issue.Forecast
	var states [2][]byte
	for k, d := range []*series.Dataset{d, planted} {
		s := newState(t, d, 48)
		c, err := f.Client("m/0")
		if err != nil {
			t.Fatal(err)
		}
		if err := NewReplay(d, f.Model, nil).Advance(s, 0, &c, nil, cutoff); err != nil {
			t.Fatal(err)
		}
		got[k] = issueAt(t, f, d, s, 0, cutoff)
		states[k] = encoded(t, s)
	}
	if !reflect.DeepEqual(got[0], got[1]) || !bytes.Equal(states[0], states[1]) {
		t.Error("a reading after the cutoff changed the forecast or the state")
	}
}

func TestWeatherIsPersisted(t *testing.T) {
	x := sample{meters: 1, days: 120, weather: true}
	d := x.dataset(t)
	f := open(t, x.folder(t, d))
	_, end := d.Span()
	got := issueAt(t, f, d, newState(t, d, 24), 0, end)
	if row := got.Rows[3]; row.Source != issue.Model || row.Reason != issue.WeatherPersisted || row.Quality != issue.Estimated {
		t.Errorf("%+v", row)
	}
	column := d.Weather.Columns[0]
	for days, want := range map[int]issue.Reason{5: issue.WeatherPersisted, 8: issue.WeatherClimatology} {
		stopped := slices.Clone(column)
		for i := len(stopped) - days*24; i < len(stopped); i++ {
			stopped[i] = float32(math.NaN())
		}
		d.Weather.Columns[0] = stopped
		got = issueAt(t, f, d, newState(t, d, 24), 0, end)
		if row := got.Rows[3]; row.Source != issue.Model || row.Reason != want {
			t.Errorf("%d days without weather: %+v, want %s", days, row, want)
		}
	}
	for i := range column {
		column[i] = float32(math.NaN())
	}
	d.Weather.Columns[0] = column
	got = issueAt(t, f, d, newState(t, d, 24), 0, end)
	if row := got.Rows[3]; row.Source != issue.Week || row.Reason != issue.WeatherMissing {
		t.Errorf("%+v", row)
	}
}

// TestWindowsAreFilled removes single loads from the windows of a window model.
func TestWindowsAreFilled(t *testing.T) {
	x := sample{meters: 1, days: 100, plan: windowPlan}
	d := x.dataset(t)
	f := open(t, x.folder(t, d))
	_, end := d.Span()
	m := d.Meter(0)
	n := len(m.Load)
	for name, c := range map[string]struct {
		missing []int
		reason  issue.Reason
		source  issue.Source
	}{
		"none":          {nil, "", issue.Model},
		"one":           {[]int{5}, issue.InputFilled, issue.Model},
		"two":           {[]int{5, 6, 9}, issue.InputFilled, issue.Model},
		"three":         {[]int{5, 6, 7}, issue.Gap, issue.Week},
		"the newest":    {[]int{1, 2}, issue.InputFilled, issue.Model},
		"a week before": {[]int{168 + 3}, issue.InputFilled, issue.Model},
	} {
		before := slices.Clone(m.Load)
		for _, i := range c.missing {
			m.Load[n-i] = float32(math.NaN())
		}
		got := issueAt(t, f, d, newState(t, d, 24), 0, end)
		if row := got.Rows[0]; row.Source != c.source || row.Reason != c.reason || (row.Quality == issue.OK) != (c.reason == "") {
			t.Errorf("%s: %+v", name, row)
		}
		copy(m.Load, before)
	}
}

// TestFit fits personal layers, which must improve forecasts.
func TestFit(t *testing.T) {
	for _, x := range []sample{{meters: 1, days: 120}, {meters: 1, days: 120, plan: windowPlan}} {
		d := x.dataset(t)
		f := open(t, x.folder(t, d))
		_, end := d.Span()
		c, fitted, err := f.Model.Fit(t.Context(), d, 0, end, nil, FitSteps)
		if err != nil || !fitted.Better() {
			t.Fatalf("%+v, %v", fitted, err)
		}
		p := f.Model.Problem.Partition
		shared, personal := make([]float32, p.SharedLen()), make([]float32, p.PersonalLen())
		p.Cut(c.Weights, shared, personal)
		if !slices.Equal(shared, f.Model.shared) {
			t.Error("fitting changed shared weights")
		}
		again, _, err := f.Model.Fit(t.Context(), d, 0, end, nil, FitSteps)
		if err != nil || !slices.Equal(again.Weights, c.Weights) {
			t.Errorf("another result, %v", err)
		}
		if _, _, err := f.Model.Fit(t.Context(), d, 0, d.Meter(0).Start+20*daySeconds, nil, FitSteps); !errors.Is(err, ErrShort) {
			t.Errorf("20 days: %v", err)
		}
	}
}

// TestConcurrent replays clients concurrently, with one replay and one folder.
func TestConcurrent(t *testing.T) {
	x := sample{meters: 6, days: 110, weather: true}
	d := x.dataset(t)
	f := open(t, x.folder(t, d))
	_, end := d.Span()
	replay := func(r *Replay, i int) ([]byte, error) {
		c, err := f.Client(d.Meter(i).ID)
		if err != nil {
			return nil, err
		}
		s, err := issue.NewState(issue.Config{Step: d.Interval, Clock: d.Clock, H: 48})
		if err == nil {
			err = r.Advance(s, i, &c, nil, end)
		}
		if err != nil {
			return nil, err
		}
		return s.AppendBinary(nil)
	}
	r := NewReplay(d, f.Model, nil)
	got, errs := make([][]byte, d.Len()), make([]error, d.Len())
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() { got[i], errs[i] = replay(r, i) })
	}
	all.Wait()
	for i := range got {
		want, err := replay(NewReplay(d, f.Model, nil), i)
		if err != nil || errs[i] != nil || !bytes.Equal(got[i], want) {
			t.Errorf("meter %d: another state, %v, %v", i, errs[i], err)
		}
	}
}
