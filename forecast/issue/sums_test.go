package issue

import (
	"bytes"
	"math"
	"slices"
	"testing"
	"time"

	"loadstar/series"
)

func TestMean(t *testing.T) {
	if got := Mean(1, 2, 6); math.Abs(got-2.9) > 1e-12 { // 0.3 + 0.8 + 1.8
		t.Errorf("the mean is %g", got)
	}
	// The mean does not depend on the requested levels.
	m := meter(40, time.UTC)
	want := state(t, Config{}).Issue(m, Models{Own: newFake(m, 24)}, m.Start+40*day)
	for _, levels := range [][]float64{{0.5}, {0.05, 0.5, 0.95}} {
		got := state(t, Config{Levels: levels}).Issue(m, Models{Own: newFake(m, 24)}, m.Start+40*day)
		for i, r := range got.Rows {
			if r.Source == Model && r.Mean != want.Rows[i].Mean {
				t.Fatalf("%v: row %d has mean %g, want %g", levels, i, r.Mean, want.Rows[i].Mean)
			}
		}
	}
	for i, r := range want.Rows {
		if r.Mean != Mean(r.Values[0], r.Values[1], r.Values[2]) {
			t.Errorf("row %d has %v and mean %g", i, r.Values, r.Mean)
		}
	}
}

// TestEnergy checks the energies of days: of a day that has already begun, of a day with 23
// hours, and of a day with a missing reading.
func TestEnergy(t *testing.T) {
	berlin := location(t, "Europe/Berlin")
	m := meter(120, berlin)
	midnight := time.Date(2021, 3, 28, 0, 0, 0, 0, berlin).Unix() // the clocks go forward
	for _, x := range []struct {
		name    string
		cutoff  int64
		missing bool
		days    int
	}{
		{"midnight", midnight, false, 2}, {"afternoon", midnight + 14*hour, false, 2}, {"gap", midnight + 14*hour, true, 2}, {"day before", midnight - 5*hour, false, 2},
	} {
		readings := m
		if x.missing {
			at := int((midnight-m.Start)/hour) + 3
			readings = without(m, at, at+1)
		}
		f := state(t, Config{Clock: berlin}).Issue(readings, Models{Own: newFake(m, 24)}, x.cutoff)
		if len(f.Days) != x.days {
			t.Fatalf("%s: %d days", x.name, len(f.Days))
		}
		for i, d := range f.Days {
			want := 0.0
			for at := d.Start; at < min(d.End, x.cutoff); at += hour {
				want += float64(readings.Load[(at-m.Start)/hour])
			}
			for _, r := range f.Rows {
				if r.Time >= d.Start && r.Time < d.End {
					want += r.Mean
				}
			}
			if math.IsNaN(want) != math.IsNaN(d.Mean) || math.Abs(want-d.Mean) > 1e-9 || x.missing != (i == 0 && math.IsNaN(d.Mean)) && i == 0 {
				t.Errorf("%s: day %d has %g kWh, want %g", x.name, i, d.Mean, want)
			}
		}
	}
}

// TestCoverage makes forecasts for a year and counts how often energies and peaks are between
// P10 and P90. The readings are random, so the intervals must match their distribution.
func TestCoverage(t *testing.T) {
	m := meter(365, time.UTC)
	s := state(t, Config{})
	var energy, peak, n float64
	for at := m.Start + 30*day; at <= m.Start+364*day; at += 6 * hour {
		f := s.Issue(m, Models{Own: newFake(m, 24)}, at)
		if at%day != 0 || at < m.Start+60*day {
			continue
		}
		total, top := 0.0, 0.0
		for k := range 24 {
			v := float64(m.Load[(at-m.Start)/hour+int64(k)])
			total, top = total+v, max(top, v)
		}
		n++
		if d := f.Days[0]; d.P10 <= total && total <= d.P90 {
			energy++
		}
		if f.Peak.P10 <= top && top <= f.Peak.P90 {
			peak++
		}
	}
	if energy/n < 0.74 || energy/n > 0.87 || peak/n < 0.74 || peak/n > 0.87 {
		t.Errorf("P10 to P90 has %.3f of the energies and %.3f of the peaks, want 0.8", energy/n, peak/n)
	}
}

// TestGroup checks that a group's forecast is the sum of its members' forecasts in any order,
// and that its state survives encoding.
func TestGroup(t *testing.T) {
	meters := []series.Meter{meter(60, time.UTC), meter(60, time.UTC), meter(60, time.UTC)}
	states := make([]*State, len(meters))
	for i := range meters {
		meters[i].ID = string(rune('a' + i))
		states[i] = state(t, Config{})
	}
	group := func() *Group {
		g, err := NewGroup(Config{Step: time.Hour, Clock: time.UTC, H: 48})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	g, coded := group(), group()
	sum := Sum("sum", meters)
	for at := meters[0].Start + 30*day; at <= meters[0].Start+60*day; at += 3 * hour {
		var members []Forecast
		for i, m := range meters {
			members = append(members, states[i].Issue(m, Models{Own: newFake(m, 24)}, at))
		}
		f, recorded := g.Issue(sum, members, at)
		slices.Reverse(members)
		if again, same := coded.Issue(sum, members, at); !equal(f, again) || recorded != same || recorded != (at/hour%6 == 0) {
			t.Fatal("the order of members or the encoding changes a forecast")
		}
		b, err := g.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		coded = group()
		if err := coded.UnmarshalBinary(b); err != nil {
			t.Fatal(err)
		}
		if again, err := coded.AppendBinary(nil); err != nil || !bytes.Equal(b, again) {
			t.Fatal("decoding and encoding changes a group")
		}
		slices.Reverse(members)
		for i, r := range f.Rows {
			want := members[0].Rows[i].Mean + members[1].Rows[i].Mean + members[2].Rows[i].Mean
			if r.Mean != want || r.Values[1] != want || !(r.Values[0] < want && want < r.Values[2]) {
				t.Fatalf("row %d has %v and mean %g, want %g", i, r.Values, r.Mean, want)
			}
		}
	}
	b, err := g.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := state(t, Config{}).UnmarshalBinary(b); err == nil {
		t.Error("a client took the state of a group")
	}
}

func TestAbove(t *testing.T) {
	p := Peak{P10: 4, P50: 5, P90: 7}
	for limit, want := range map[float64]float64{4: 0.9, 5: 0.5, 7: 0.1} {
		if got := p.Above(limit); math.Abs(got-want) > 1e-9 {
			t.Errorf("above %g: %g, want %g", limit, got, want)
		}
	}
	if p := (Peak{P10: 5, P50: 5, P90: 5}); p.Above(4.9) != 1 || p.Above(5) != 0 {
		t.Error("a peak without spread")
	}
	if p := (Peak{P10: math.NaN(), P50: 5, P90: math.NaN()}); !math.IsNaN(p.Above(4)) {
		t.Error("a chance without quantiles")
	}
}
