package issue

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/series"
)

func encode(t testing.TB, s *State) []byte {
	t.Helper()
	b, err := s.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestYear makes issues through a year with a clock change. A second client encodes and decodes
// its state between any two issues, and a third client makes only the recorded issues.
func TestYear(t *testing.T) {
	berlin := location(t, "Europe/Berlin")
	m := without(meter(365, berlin), 100*24, 100*24+90)
	s, coded, sparse := state(t, Config{Clock: berlin}), state(t, Config{Clock: berlin}), state(t, Config{Clock: berlin})
	for at := m.Start + hour; at <= m.Start+365*day; at += 2 * hour {
		own, generic := newFake(m, 24), newFake(m, 12)
		if at%(11*day) < day {
			own.ready = series.Unready
		}
		want := s.Issue(m, Models{Own: own, Generic: generic}, at)
		got := coded.Issue(m, Models{Own: own, Generic: generic}, at)
		if !equal(want, got) {
			t.Fatalf("%s: another forecast with a state that was encoded", time.Unix(at, 0))
		}
		if at/hour%3 == 0 {
			sparse.Issue(m, Models{Own: own, Generic: generic}, at)
		}
		b := encode(t, coded)
		coded = state(t, Config{Clock: berlin})
		if err := coded.UnmarshalBinary(b); err != nil {
			t.Fatal(err)
		}
		if at%(30*day) < 3*hour && !bytes.Equal(b, encode(t, coded)) {
			t.Fatal("decoding and encoding changes a state")
		}
	}
	if s.Every() != 3 {
		t.Fatal(s.Every())
	}
	sparse.Advance(m, s.Next())
	if !bytes.Equal(encode(t, s), encode(t, coded)) || !bytes.Equal(encode(t, s), encode(t, sparse)) {
		t.Error("the states differ")
	}
}

// equal compares forecasts and treats NaN as equal to NaN.
func equal(a, b Forecast) bool {
	if len(a.Rows) != len(b.Rows) {
		return false
	}
	for i := range a.Rows {
		x, y := a.Rows[i], b.Rows[i]
		for k := range x.Values {
			if math.Float64bits(x.Values[k]) != math.Float64bits(y.Values[k]) {
				return false
			}
		}
		if math.Float64bits(x.Mean) != math.Float64bits(y.Mean) {
			return false
		}
		x.Values, y.Values, x.Mean, y.Mean = nil, nil, 0, 0
		if !reflect.DeepEqual(x, y) {
			return false
		}
	}
	// Compare printed values, because NaN is not equal to itself.
	if fmt.Sprint(a.Days, a.Peak, a.Weight) != fmt.Sprint(b.Days, b.Peak, b.Weight) {
		return false
	}
	a.Rows, b.Rows, a.Days, b.Days, a.Peak, b.Peak, a.Weight, b.Weight = nil, nil, nil, nil, Peak{}, Peak{}, 0, 0
	return reflect.DeepEqual(a, b)
}

// TestFuture plants impossible loads after the cutoff, and checks that no bit of the forecast
// changes.
func TestFuture(t *testing.T) {
	m := meter(60, time.UTC)
	cutoff := m.Start + 50*day
	planted := without(m, 0, 0)
	for i := 50 * 24; i < len(planted.Load); i++ {
		planted.Load[i] = []float32{-1e30, 1e30, nan, float32(math.Inf(1))}[i%4]
	}
	for _, fallback := range []Fallback{LastWeek, ExtremeDay} {
		var got [2]Forecast
		var states [2][]byte
		for k, m := range []series.Meter{m, planted} {
			s := state(t, Config{Fallback: fallback})
			for at := cutoff - 10*day; at <= cutoff; at += hour {
				got[k] = s.Issue(m, Models{}, at)
			}
			states[k] = encode(t, s)
		}
		if !equal(got[0], got[1]) || !bytes.Equal(states[0], states[1]) {
			t.Errorf("%s: a load after the cutoff changed the forecast or the state", fallback)
		}
	}
}

// TestTails checks that readings older than the tail have no effect on an issue.
func TestTails(t *testing.T) {
	m := meter(90, time.UTC)
	cutoff := m.Start + 90*day
	cut := m
	cut.Load, cut.Start = m.Load[40*24:], m.Start+40*day
	planted := without(m, 0, 0)
	for i := range 40 * 24 {
		planted.Load[i] = 1e6
	}
	s := state(t, Config{})
	for at := cutoff - 20*day; at < cutoff; at += 6 * hour {
		s.Issue(m, Models{Own: newFake(m, 24)}, at)
	}
	b := encode(t, s)
	want := s.Issue(m, Models{Own: newFake(m, 24)}, cutoff)
	for _, m := range []series.Meter{cut, planted} {
		s := state(t, Config{})
		if err := s.UnmarshalBinary(b); err != nil {
			t.Fatal(err)
		}
		if got := s.Issue(m, Models{Own: newFake(m, 24)}, cutoff); !equal(got, want) {
			t.Error("another forecast")
		}
	}
}

// TestEarlierCutoff checks that an issue at an earlier cutoff does not use what the state
// learned later.
func TestEarlierCutoff(t *testing.T) {
	m := meter(60, time.UTC)
	s := state(t, Config{})
	for at := m.Start + 30*day; at <= m.Start+60*day; at += 6 * hour {
		s.Issue(m, Models{Own: newFake(m, 24)}, at)
	}
	b := encode(t, s)
	got := s.Issue(m, Models{Own: newFake(m, 24)}, m.Start+40*day)
	want := state(t, Config{}).Issue(m, Models{Own: newFake(m, 24)}, m.Start+40*day)
	if !equal(got, want) {
		t.Error("a forecast at an earlier cutoff depends on later readings")
	}
	if !bytes.Equal(b, encode(t, s)) {
		t.Error("an issue at an earlier cutoff changed the state")
	}
}

func TestOtherConfig(t *testing.T) {
	m := meter(30, time.UTC)
	s := state(t, Config{})
	s.Issue(m, Models{Own: newFake(m, 24)}, m.Start+30*day)
	b := encode(t, s)
	for name, c := range map[string]Config{
		"step": {Step: 30 * time.Minute}, "levels": {Levels: []float64{0.5}}, "h": {H: 72}, "fallback": {Fallback: ExtremeDay},
	} {
		if err := state(t, c).UnmarshalBinary(b); !errors.Is(err, ErrOtherConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := state(t, Config{H: 12}).UnmarshalBinary(b); err != nil {
		t.Errorf("fewer steps: %v", err)
	}
}

// FuzzState decodes damaged states, and forecasts with those that are accepted.
func FuzzState(f *testing.F) {
	m := meter(20, time.UTC)
	s := state(f, Config{})
	f.Add(encode(f, s)[20:])
	for at := m.Start + 10*day; at < m.Start+15*day; at += 6 * hour {
		s.Issue(m, Models{Own: newFake(m, 24), Generic: newFake(m, 12)}, at)
	}
	b := encode(f, s)
	f.Add(b[20 : len(b)-4])
	f.Fuzz(func(t *testing.T, b []byte) {
		s := state(t, Config{})
		if s.UnmarshalBinary(stateFormat.Wrap(b)) != nil {
			return
		}
		got := s.Issue(m, Models{Own: newFake(m, 24)}, m.Start+16*day)
		if len(got.Rows) != 48 {
			t.Fatal(len(got.Rows))
		}
		if _, err := s.AppendBinary(nil); err != nil {
			t.Fatal(err)
		}
	})
}

// TestGolden checks that later versions of the program can read the states that this version
// writes. Long steps keep the state small.
func TestGolden(t *testing.T) {
	config := Config{Step: 24 * time.Hour, H: 1, Levels: []float64{0.5}}
	m := meter(20, time.UTC)
	s := state(t, config)
	for at := m.Start + 30*day; at <= m.Start+50*day; at += day {
		model := newFake(m, 1)
		model.step = config.Step
		s.Issue(m, Models{Own: model}, at)
	}
	want := encode(t, s)
	testkit.CheckGolden(t, "state", stateFormat, want, func(b []byte) error {
		s := state(t, config)
		if err := s.UnmarshalBinary(b); err != nil {
			return err
		}
		if !bytes.Equal(encode(t, s), want) {
			return errors.New("another state")
		}
		return nil
	})
}
