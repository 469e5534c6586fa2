package live

import (
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/series/store"
)

// TestFindingsNow checks that lists, the detail page and reports to the server show the same
// findings as soon as the readings are stored.
func TestFindingsNow(t *testing.T) {
	now := time.Date(2026, 11, 18, 12, 0, 0, 0, time.UTC)
	s := service(t, t.TempDir(), func(c *Config) {
		c.Now = func() time.Time { return now }
		c.Clients, c.ShareScores = []string{"a"}, true
	})
	past(t, s, 40, now.Unix())
	look := func(want ...string) {
		t.Helper()
		c, err := s.Client("a")
		if err != nil {
			t.Fatal(err)
		}
		q, err := s.Quality("a")
		if err != nil {
			t.Fatal(err)
		}
		if got := codes(q.Findings); !slices.Equal(c.Findings, want) || !slices.Equal(got, want) || !slices.Equal(s.Clients()[0].Findings, want) {
			t.Errorf("list %v, detail %v, want %v", c.Findings, got, want)
		}
	}
	report := func(want ...string) {
		t.Helper()
		all, sent := s.Host().Reports()
		if len(all) != 1 || !slices.Equal(all[0].Findings, want) || len(all[0].Shares) > 0 || !all[0].Interim || all[0].Day != now.Unix()/day {
			t.Errorf("reports %+v, want one with %v", all, want)
		}
		sent()
		if all, _ := s.Host().Reports(); len(all) != 0 {
			t.Errorf("reported again: %+v", all)
		}
	}
	look()
	if all, _ := s.Host().Reports(); len(all) != 0 {
		t.Errorf("nothing is wrong, but %+v is reported", all)
	}

	// A flat load can mean that nobody is at home, so the server receives it only with the
	// weekly report.
	flat := []store.Reading{}
	for u := now.Unix() - day; u < now.Unix(); u += 900 {
		flat = append(flat, store.Reading{Client: "a", Time: u, KW: 0.7})
	}
	if _, err := s.c.Store.Put(now, flat, nil); err != nil {
		t.Fatal(err)
	}
	now = now.Add(30 * time.Second)
	look("flat")
	if all, _ := s.Host().Reports(); len(all) != 0 {
		t.Errorf("a flat load is reported at once: %+v", all)
	}

	end := now.Unix() / 900 * 900
	garbage := []store.Reading{{Client: "a", Time: end - 1800, KW: 1e6, Quality: store.Bad}, {Client: "a", Time: end - 900, KW: 99_999, Quality: store.Bad}}
	if _, err := s.c.Store.Put(now, garbage, nil); err != nil {
		t.Fatal(err)
	}
	now = now.Add(30 * time.Second)
	look("impossible", "flat")
	q, err := s.Quality("a")
	if err != nil || !strings.Contains(q.Findings[0].Message, "2 readings cannot be right") || !strings.Contains(q.Findings[0].Message, "up to 1000000 kW") || !strings.Contains(q.Findings[0].Advice, "agent accept a") {
		t.Errorf("%+v %v", q.Findings, err)
	}
	report("impossible")

	// A week after the last flat reading, the finding is no longer shown.
	now = now.Add(8 * 24 * time.Hour)
	past(t, s, 8, now.Unix()/900*900)
	look()
	report()
}
