package live

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"loadstar/agent/release"
	"loadstar/fed/recipe"
)

// releaseOf returns a release of the untrained model.
func releaseOf(t *testing.T, id string, version int) release.Release {
	t.Helper()
	p, err := recipe.Read([]byte(untrained))
	if err != nil {
		t.Fatal(err)
	}
	q, err := recipe.Frame(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	shared, personal := make([]float32, q.Partition.SharedLen()), make([]float32, q.Partition.PersonalLen())
	q.Partition.Cut(q.Model.InitialWeights(1), shared, personal)
	plan, err := recipe.Write(p)
	if err != nil {
		t.Fatal(err)
	}
	return release.Release{ID: id, Name: "day", Number: version, Run: "run", Version: version, Role: release.Personal, Plan: plan, Weights: shared}
}

// TestManyReleases checks that a server that offers many releases cannot fill the memory or the
// disk, and that a removed release does not return as a new one with the next list or after a
// restart.
func TestManyReleases(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2026, 11, 16, 12, 0, 0, 0, time.UTC)
	open := func(t *testing.T) *Service {
		return service(t, dir, func(c *Config) { c.Now = func() time.Time { return now } })
	}
	var ids []string
	offer := func(t *testing.T, s *Service) {
		for i, id := range ids {
			if s.Host().Has(id) {
				continue
			}
			r := releaseOf(t, id, i+1)
			if err := s.Host().Offer(r, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(t *testing.T, s *Service, want ...string) {
		var got []string
		for id := range s.roster.models {
			got = append(got, id)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("it has %v, want %v", got, want)
		}
	}
	for i := range 6 {
		ids = append(ids, fmt.Sprintf("r%d", i+1))
	}
	t.Run("first", func(t *testing.T) {
		s := open(t)
		offer(t, s)
		check(t, s, "r4", "r5", "r6")
		now = now.Add(time.Hour)
		ids = append(ids, "r7")
		offer(t, s)
		check(t, s, "r5", "r6", "r7")
	})
	t.Run("again", func(t *testing.T) {
		now = now.Add(time.Hour)
		s := open(t)
		offer(t, s)
		check(t, s, "r5", "r6", "r7")
		if err := s.Host().Retain([]string{"r5", "r6", "r7"}); err != nil {
			t.Fatal(err)
		}
		if s.Host().Has("r1") || !s.Host().Has("r5") {
			t.Error("what a server no longer offers is remembered")
		}
	})
}

// TestReportsNameReleasesOnly checks that a report names only releases of the server, and never
// a model from a folder.
func TestReportsNameReleasesOnly(t *testing.T) {
	now := time.Date(2026, 11, 16, 12, 0, 0, 0, time.UTC)
	s := service(t, t.TempDir(), func(c *Config) {
		c.Now = func() time.Time { return now }
		c.Clients, c.ShareScores = []string{"a"}, true
	})
	past(t, s, 20, now.Unix())
	withModel(t, s, now.Unix())
	s.roster.members["a"].scores.set(dayScore{Day: now.Unix()/day - 1})
	for _, folder := range []bool{false, true} {
		s.roster.models["u"].Folder = folder
		all, _ := s.Host().Reports()
		if len(all) != 1 || (all[0].Release == "") != folder {
			t.Errorf("folder %v: %+v", folder, all)
		}
	}
}

// TestReportsAreCoarse checks that a client reports once a week, with rounded numbers, so that
// the difference between two reports reveals little about a single day. A new client reports
// immediately, for the previous week.
func TestReportsAreCoarse(t *testing.T) {
	now := time.Date(2026, 11, 18, 12, 0, 0, 0, time.UTC) // a Wednesday
	s := service(t, t.TempDir(), func(c *Config) {
		c.Now = func() time.Time { return now }
		c.Clients, c.ShareScores = []string{"a"}, true
	})
	past(t, s, 20, now.Unix())
	withModel(t, s, now.Unix())
	s.roster.members["a"].scores.set(dayScore{Day: now.Unix()/day - 1, Blocks: []sums{{N: 24, Hits: 19, Week: 3, WeekAbs: 1}}})
	var days []time.Weekday
	var reported []int
	for i := range 15 {
		all, sent := s.Host().Reports()
		for _, r := range all {
			if r.RelativeMAE != 0.33 || r.Coverage != 0.79 {
				t.Errorf("%+v", r)
			}
			for source, share := range r.Shares {
				if share != coarse(share) {
					t.Errorf("%s: %g", source, share)
				}
			}
			days, reported = append(days, time.Unix(r.Day*day, 0).UTC().Weekday()), append(reported, i)
		}
		sent()
		now = now.Add(24 * time.Hour)
	}
	if !slices.Equal(reported, []int{0, 5, 12}) || slices.ContainsFunc(days, func(d time.Weekday) bool { return d != time.Sunday }) {
		t.Errorf("it reported after %v days, for days that are %v", reported, days)
	}
}
