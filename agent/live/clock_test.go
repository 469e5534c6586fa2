package live

import (
	"testing"
	"testing/synctest"
	"time"

	"loadstar/series/store"
)

// TestClockWasAhead checks that a clock that was ahead for some time and is correct again does
// not silence the service, even after a restart, and that clients resume learning from their
// forecasts.
func TestClockWasAhead(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Date(2026, 11, 16, 12, 3, 0, 0, time.UTC)
		now := begin
		s := service(t, dir, func(c *Config) {
			c.Now = func() time.Time { return now }
			c.Groups = map[string][]string{"both": {"a", "b"}}
		})
		var readings []store.Reading
		for at := begin.Add(-20 * 24 * time.Hour).Truncate(15 * time.Minute); at.Before(begin.Add(-15 * time.Minute)); at = at.Add(15 * time.Minute) {
			readings = append(readings, store.Reading{Client: "a", Time: at.Unix(), KW: 1}, store.Reading{Client: "b", Time: at.Unix(), KW: 2})
		}
		if r, err := s.c.Store.Put(now, readings, nil); err != nil || len(r.Refused) > 0 {
			t.Fatal(err, r)
		}
		if !s.Tick() {
			t.Fatal("no forecast at first")
		}
		now = begin.AddDate(2, 0, 0)
		if !s.Tick() {
			t.Fatal("no forecast in two years")
		}
		now = begin.Add(time.Hour)
		if !s.Tick() {
			t.Fatal("no forecast after the clock was set back")
		}
		x, err := s.Forecast("a")
		if err != nil || x.Cutoff != now.Truncate(15*time.Minute).Unix() {
			t.Errorf("the newest forecast is of %d: %v", x.Cutoff, err)
		}
		for _, name := range s.roster.names {
			if next := s.roster.members[name].champion.state.Next(); next > now.Unix() {
				t.Errorf("client %s learns nothing until %s", name, time.Unix(next, 0))
			}
		}
		if next := s.roster.groups[0].state.Next(); next > now.Unix() {
			t.Errorf("the group learns nothing until %s", time.Unix(next, 0))
		}
		if s.Tick() {
			t.Error("the same step was forecast twice")
		}
	})
}
