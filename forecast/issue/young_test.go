package issue

import (
	"testing"
	"time"
)

// TestGenericWidths checks that served intervals are at least half as wide as the generic
// model's own intervals until the tracker knows every day of the week, and may be narrower
// after that. The intervals of a client's own model may be narrower from the start.
func TestGenericWidths(t *testing.T) {
	m := meter(40, time.UTC)
	for i := range m.Load {
		m.Load[i] = float32(3 + i%24%2) // the fake model is always right
	}
	for _, own := range []bool{false, true} {
		s, narrow := state(t, Config{H: 24}), 0
		for at := 1; at < 30*4; at++ {
			f := newFake(m, 24)
			models := Models{Generic: f}
			if own {
				models = Models{Own: f}
			}
			cutoff := m.Start + int64(at)*6*hour
			narrower := false
			for _, row := range s.Issue(m, models, cutoff).Rows {
				narrower = narrower || row.Values[2]-row.Values[0] < 0.2-1e-9
			}
			if narrower && !own && at <= settledDays*4 {
				t.Fatalf("the interval is narrower than half of the model's after %d hours", 6*at)
			}
			if narrower {
				narrow++
			}
		}
		if narrow == 0 {
			t.Errorf("own model %v: the interval never becomes narrower", own)
		}
	}
}
