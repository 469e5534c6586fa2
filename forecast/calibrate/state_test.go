package calibrate

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"loadstar/internal/stateformat"
	"loadstar/internal/testkit"
)

// TestStateContinues checks that a tracker that is stored and restored after every step serves
// the same forecasts, and that Correct serves the forecasts of Issue without recording them.
func TestStateContinues(t *testing.T) {
	for _, c := range []Config{
		{Levels: []float64{0.1, 0.5, 0.9}, Point: 1, Horizon: 1, Targets: 24, StepsPerDay: 24, Correct: true},
		{Levels: []float64{0.1, 0.5, 0.9}, Point: 1, Horizon: 1, Targets: 1, StepsPerDay: 24},
		{Horizon: 2, Targets: 12, StepsPerDay: 48, Correct: true},
	} {
		plain, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		stored, _ := New(c)
		h := newHistory(3, c, 40, 1, constant(0.5), constant(1))
		const origin = 480_000 // steps may be absolute numbers
		for step, load := range h.loads {
			if step%11 == 0 {
				load = math.NaN()
			}
			plain.Observe(origin+step, load)
			stored.Observe(origin+step, load)
			f := h.forecasts[step]
			if f == nil {
				continue
			}
			b, err := stored.AppendBinary(nil)
			if err != nil {
				t.Fatal(err)
			}
			if stored, _ = New(c); stored.UnmarshalBinary(b) != nil {
				t.Fatal(stored.UnmarshalBinary(b))
			}
			want, got, only := slices.Clone(f), slices.Clone(f), slices.Clone(f)
			stored.Correct(origin+step, only, h.references[step])
			if (step+1)%plain.Every() == 0 {
				plain.Issue(origin+step, want, h.references[step])
				stored.Issue(origin+step, got, h.references[step])
			} else {
				plain.Correct(origin+step, want, h.references[step])
				got = only
			}
			if !slices.Equal(got, want) || !slices.Equal(only, want) || plain.Weight() != stored.Weight() {
				t.Fatalf("step %d: %v and %v, want %v", step, got, only, want)
			}
		}
	}
}

// storedTracker returns a small tracker that has seen the given number of days.
func storedTracker(t testing.TB, days int) *Tracker {
	t.Helper()
	c := Config{Levels: []float64{0.1, 0.5, 0.9}, Point: 1, Horizon: 1, Targets: 2, StepsPerDay: 2, Correct: true}
	tracker, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	for step := range days * c.StepsPerDay {
		load := float64(step*step%7) / 2
		tracker.Observe(40000+step, load)
		tracker.Issue(40000+step, []float64{0.5, 1, 1.5, 1.5, 2, 2.5}, []float64{1.25, math.NaN()})
	}
	return tracker
}

func TestStateFormat(t *testing.T) {
	for name, days := range map[string]int{"tracker-start": 2, "tracker": 10} {
		want, err := storedTracker(t, days).AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		testkit.CheckGolden(t, name, trackerFormat, want, func(b []byte) error {
			tracker := storedTracker(t, 1)
			before, _ := tracker.AppendBinary(nil)
			err := tracker.UnmarshalBinary(b)
			got, _ := tracker.AppendBinary(nil)
			switch {
			case err != nil && !bytes.Equal(got, before):
				t.Fatal("a refused state changed the tracker")
			case err == nil && !bytes.Equal(got, want):
				err = fmt.Errorf("the state differs after reading it")
			}
			return err
		})
	}
}

// TestStateOfOtherForecasts checks that a state is rejected by trackers with other
// configurations.
func TestStateOfOtherForecasts(t *testing.T) {
	b, err := storedTracker(t, 3).AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := storedTracker(t, 0).c
	for _, change := range []func(*Config){
		func(c *Config) { c.Levels = []float64{0.05, 0.5, 0.95} },
		func(c *Config) { c.Levels = nil; c.Point = 0 },
		func(c *Config) { c.Targets = 3 },
		func(c *Config) { c.Horizon = 2 },
		func(c *Config) { c.StepsPerDay = 3 },
		func(c *Config) { c.Correct = false },
	} {
		other := c
		change(&other)
		tracker, err := New(other)
		if err != nil {
			t.Fatal(err)
		}
		if err := tracker.UnmarshalBinary(b); !errors.Is(err, stateformat.ErrDamaged) {
			t.Errorf("%+v: %v", other, err)
		}
	}
}

// FuzzState checks that a tracker with any accepted state can continue.
func FuzzState(f *testing.F) {
	for _, days := range []int{0, 2, 10} {
		b, err := storedTracker(f, days).AppendBinary(nil)
		if err != nil {
			f.Fatal(err)
		}
		_, state, err := trackerFormat.Unwrap(b)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(state)
	}
	f.Fuzz(func(t *testing.T, state []byte) {
		tracker := storedTracker(t, 0)
		if tracker.UnmarshalBinary(trackerFormat.Wrap(state)) != nil {
			return
		}
		for range 9 {
			step := tracker.next
			tracker.Observe(step, 1)
			rows := []float64{0.5, 1, 1.5, 1.5, 2, 2.5}
			tracker.Issue(step, rows, []float64{1, math.NaN()})
			for i, v := range rows {
				if math.IsNaN(v) || i%3 > 0 && v < rows[i-1] {
					t.Fatalf("%v", rows)
				}
			}
		}
	})
}

// TestStateSize checks that the state of a day-ahead tracker stays small.
func TestStateSize(t *testing.T) {
	for _, c := range []struct {
		Config
		most int
	}{
		{Config{Levels: []float64{0.1, 0.5, 0.9}, Point: 1, Horizon: 1, Targets: 24, StepsPerDay: 24, Correct: true}, 9_000},
		{Config{Levels: []float64{0.1, 0.5, 0.9}, Point: 1, Horizon: 1, Targets: 192, StepsPerDay: 96, Correct: true}, 80_000},
	} {
		tracker, err := New(c.Config)
		if err != nil {
			t.Fatal(err)
		}
		h := newHistory(1, c.Config, 40, tracker.Every(), constant(0), constant(1))
		for step, load := range h.loads {
			tracker.Observe(step, load)
			if f := h.forecasts[step]; f != nil {
				tracker.Issue(step, f, h.references[step])
				b, err := tracker.AppendBinary(nil)
				if err != nil || step > 5*c.StepsPerDay && len(b) > c.most {
					t.Fatalf("%+v: %d bytes after %d steps, %v", c, len(b), step, err)
				}
			}
		}
	}
}
