package readings

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"loadstar/series/store"
)

// clock is a clock that a test sets.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = t
}

func openStore(t testing.TB, path string) *store.Store {
	t.Helper()
	s, err := store.Open(path, store.Config{Interval: 15 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// intake returns an intake for clients a and b, and for roof, which has feed-in.
func intake(t testing.TB, change func(*Config)) (*Intake, *store.Store, *clock) {
	t.Helper()
	s := openStore(t, filepath.Join(t.TempDir(), "readings.db"))
	now := &clock{t: start}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	c := Config{
		Store: s, Interval: 15 * time.Minute, Zone: berlin, Now: now.now,
		Clients: map[string]Client{"a": {}, "b": {}, "roof": {Net: true}},
	}
	if change != nil {
		change(&c)
	}
	i, err := NewIntake(c)
	if err != nil {
		t.Fatal(err)
	}
	return i, s, now
}

func load(t testing.TB, s *store.Store, client string, from time.Time, n int64) []float32 {
	t.Helper()
	m, err := s.Load(client, from.Unix(), from.Unix()+n*900)
	if err != nil {
		t.Fatal(err)
	}
	return m.Load
}

func TestIntake(t *testing.T) {
	i, s, now := intake(t, nil)
	var done []error
	note := func(err error) { done = append(done, err) }
	for m := 0.0; m <= 16; m++ {
		i.Add([]Sample{counter(m, m/30), {"roof", at(m), -1, Power}}, note)
	}
	i.Add([]Sample{{"unknown", at(1), 1, Power}, {"a", at(1), math.NaN(), Counter}, {"a", at(600), 1, Counter}, {"b", start, 4, Interval}}, note)
	i.Add(nil, note)
	if len(done) != 0 {
		t.Fatal("done before the flush")
	}
	now.set(at(16.1))
	if err := i.flush(); err != nil {
		t.Fatal(err)
	}
	if len(done) != 19 || slices.ContainsFunc(done, func(err error) bool { return err != nil }) {
		t.Errorf("done: %v", done)
	}
	if a, b, roof := load(t, s, "a", start, 1), load(t, s, "b", start, 1), load(t, s, "roof", start, 1); math.Abs(float64(a[0]-2)) > 1e-6 || b[0] != 4 || roof[0] != -1 {
		t.Errorf("steps: %v %v %v", a, b, roof)
	}
	counts := map[string]int64{}
	i.Stats().Each(func(source, outcome string, n int64) { counts[source+" "+outcome] = n })
	if counts["samples accepted"] != 3 || counts["samples ignored"] != 3 {
		t.Errorf("counts: %v", counts)
	}
	// A new intake continues within the step.
	j, err := NewIntake(i.c)
	if err != nil {
		t.Fatal(err)
	}
	for m := 17.0; m <= 31; m++ {
		j.Add([]Sample{counter(m, m/30)}, note)
	}
	now.set(at(31))
	if err := j.flush(); err != nil {
		t.Fatal(err)
	}
	if a := load(t, s, "a", at(15), 1); math.Abs(float64(a[0]-2)) > 1e-6 {
		t.Errorf("the step after a restart: %v", a)
	}
}

func TestIntakeRun(t *testing.T) {
	i, s, now := intake(t, func(c *Config) { c.Flush = time.Hour })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- i.Run(ctx) }()
	done := make(chan error, 3*flushValues)
	now.set(at(60))
	for n := range flushValues { // enough for a flush without waiting
		i.Add([]Sample{counter(float64(n)/30, float64(n)/900)}, func(err error) { done <- err })
	}
	for range flushValues {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	i.Add([]Sample{{"b", start, 5, Interval}}, func(err error) { done <- err })
	i.Flush()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	i.Add([]Sample{{"b", at(15), 6, Interval}}, func(err error) { done <- err })
	cancel()
	if err := errors.Join(<-ended, <-done); err != nil {
		t.Fatal(err)
	}
	if b := load(t, s, "b", start, 2); b[0] != 5 || b[1] != 6 {
		t.Errorf("steps: %v", b)
	}
	i.Add(nil, func(err error) { done <- err })
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Errorf("added after the end: %v", err)
	}
}

// TestIntakeFails checks that samples wait while the store fails, and are stored once.
func TestIntakeFails(t *testing.T) {
	i, s, now := intake(t, nil)
	path := filepath.Join(t.TempDir(), "other.db")
	broken := openStore(t, path)
	broken.Close()
	i.c.Store = broken
	var done []error
	note := func(err error) { done = append(done, err) }
	now.set(at(31))
	for m := 0.0; m <= 31; m++ {
		i.Add([]Sample{counter(m, m/30)}, note)
		if i.flush() == nil || i.Err() == nil {
			t.Fatal("stored in a closed file")
		}
	}
	if len(done) != 0 {
		t.Fatal("acknowledged what is not stored")
	}
	i.c.Store = s
	if err := i.flush(); err != nil || i.Err() != nil || len(done) != 32 {
		t.Fatal(err, len(done))
	}
	if a := load(t, s, "a", start, 2); math.Abs(float64(a[0]-2)) > 1e-6 || math.Abs(float64(a[1]-2)) > 1e-6 {
		t.Errorf("steps: %v", a)
	}
	i.c.Store = broken
	done = nil
	for range maxWaiting + 1 {
		i.Add([]Sample{counter(32, 3)}, note)
	}
	if len(done) != 1 || !errors.Is(done[0], errFull) {
		t.Errorf("too many samples: %v", done)
	}
	if i.end() == nil || len(done) != maxWaiting+1 || done[maxWaiting] == nil {
		t.Errorf("%d of the rest acknowledged", len(done))
	}
	i, _, _ = intake(t, func(c *Config) { c.Clock = func() error { return errClock } })
	done = nil
	i.Add([]Sample{counter(1, 1)}, note)
	if len(done) != 1 || !errors.Is(done[0], errClock) {
		t.Errorf("with a wrong clock: %v", done)
	}
}

// TestClockChanges checks samples and rows on days of 23 and 25 hours, which are local days
// of 92 and 100 quarters without gaps or repetitions.
func TestClockChanges(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		day   time.Time
		steps int
	}{{time.Date(2026, 3, 29, 0, 0, 0, 0, berlin), 92}, {time.Date(2025, 10, 26, 0, 0, 0, 0, berlin), 100}} {
		i, s, now := intake(t, nil)
		end := c.day.AddDate(0, 0, 1)
		now.set(end.Add(time.Minute))
		var text strings.Builder
		text.WriteString("unique_id,ds,y\n")
		n := 0
		for u := c.day; u.Before(end); u = u.Add(15 * time.Minute) {
			text.WriteString("b," + u.Format("2006-01-02 15:04") + "," + string(rune('1'+n%5)) + "\n") // no offset
			n++
		}
		for u := c.day; !u.After(end); u = u.Add(5 * time.Minute) {
			i.Add([]Sample{{"a", u, u.Sub(c.day).Hours() * 3, Counter}}, func(error) {})
		}
		if err := i.flush(); err != nil {
			t.Fatal(err)
		}
		answer, err := i.take("test", strings.NewReader(text.String()), false)
		if err != nil || n != c.steps || answer.Accepted != n || len(answer.Refused) != 0 {
			t.Fatalf("%d of %d rows: %+v %v", answer.Accepted, n, answer, err)
		}
		a, b := load(t, s, "a", c.day, int64(n)), load(t, s, "b", c.day, int64(n))
		for k := range a {
			if math.Abs(float64(a[k]-3)) > 1e-4 || b[k] != float32(k%5+1) {
				t.Errorf("step %d: %g and %g", k, a[k], b[k])
			}
		}
	}
}
