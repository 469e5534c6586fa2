package calibrate

import (
	"math"
	"slices"
	"testing"
)

// TestStateContinues checks that a tracker that is stored and restored after every step
// serves the same forecasts, and that Correct serves what Issue does without recording it.
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
		const origin = 480_000 // steps may be absolute
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
