package readings

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"loadstar/series/store"
)

// TestBacklog ingests the messages that a broker kept for half a day, with their times, in
// several flushes. The steps must equal those of samples that arrived in time.
func TestBacklog(t *testing.T) {
	now := time.Date(2026, 11, 15, 14, 0, 0, 0, time.UTC)
	begin := now.Add(-12 * time.Hour)
	for _, kind := range []Kind{Counter, Power} {
		s, err := store.Open(filepath.Join(t.TempDir(), "readings.db"), store.Config{Interval: 15 * time.Minute, Clock: time.UTC})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		i, err := NewIntake(Config{Store: s, Interval: 15 * time.Minute, Clients: map[string]Client{"a": {Limit: 10}}, Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		for n := range 12*60 - 1 {
			value := 2.0 // kW
			if kind == Counter {
				value = 100 + 2*float64(n)/60
			}
			i.Add([]Sample{{Client: "a", At: begin.Add(time.Duration(n) * time.Minute), Value: value, Kind: kind}}, func(err error) {
				if err != nil {
					t.Error(err)
				}
			})
			if n%17 == 0 {
				now = now.Add(200 * time.Millisecond)
				if err := i.flush(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := i.flush(); err != nil {
			t.Fatal(err)
		}
		_, quality, err := s.Values("a", begin.Unix(), begin.Add(47*15*time.Minute).Unix())
		if err != nil || len(quality) != 47 || slices.ContainsFunc(quality, func(q store.Quality) bool { return q != store.OK }) {
			t.Errorf("kind %d: %v %v", kind, quality, err)
		}
		m, err := s.Load("a", begin.Unix(), begin.Add(49*15*time.Minute).Unix())
		if err != nil {
			t.Fatal(err)
		}
		for n, v := range m.Load {
			if n < 47 && (v < 1.999 || v > 2.001) || n > 47 && v == v {
				t.Errorf("kind %d: step %d is %v kW, want 2", kind, n, v)
			}
		}
	}
}
