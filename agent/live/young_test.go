package live

import (
	"testing"
	"time"

	"loadstar/fed/serve"
	"loadstar/forecast/issue"
)

// TestYoungModel checks that an agent without a release forecasts once it has one day of
// readings, even after a restart, and that a released model takes over only if it is at least
// as good.
func TestYoungModel(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2026, 11, 16, 12, 0, 0, 0, time.UTC)
	open := func(t *testing.T) *Service {
		return service(t, dir, func(c *Config) {
			c.Now, c.Clients = func() time.Time { return now }, []string{"a"}
			var err error
			if c.Generic, err = serve.NewGeneric(c.Kernel); err != nil {
				t.Fatal(err)
			}
		})
	}
	check := func(t *testing.T, s *Service, want issue.Source, reason issue.Reason, model string) {
		t.Helper()
		x, err := s.IssueNow(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if x.Model != model {
			t.Errorf("model %q, want %q", x.Model, model)
		}
		for i, r := range x.Rows {
			if r.Source != want || r.Reason != reason {
				t.Fatalf("row %d: %+v, want %s because of %s", i, r, want, reason)
			}
		}
	}
	t.Run("first", func(t *testing.T) {
		s := open(t)
		check(t, s, issue.None, issue.NoReadings, serve.GenericName)
		past(t, s, 1, now.Unix())
		check(t, s, issue.Generic, issue.NoRelease, serve.GenericName)
		if len(s.Models()) != 0 {
			t.Errorf("it lists %+v", s.Models())
		}
	})
	t.Run("again", func(t *testing.T) {
		now = now.Add(3 * day * time.Second)
		s := open(t)
		past(t, s, 3, now.Unix())
		check(t, s, issue.Generic, issue.NoRelease, serve.GenericName)
	})
	t.Run("release", func(t *testing.T) {
		now = now.Add(30 * day * time.Second)
		s := open(t)
		past(t, s, 30, now.Unix())
		withModel(t, s, now.Unix())
		check(t, s, issue.Model, "", "untrained@1")
	})
}
