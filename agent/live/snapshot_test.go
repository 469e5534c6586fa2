package live

import (
	"slices"
	"testing"
	"time"

	"loadstar/fed/serve"
	"loadstar/series/store"
)

// TestSnapshot checks that a snapshot contains the readings that the store had at the time. A
// correction that arrives later does not change it, and has a later revision, so the next issue
// scores the corrected day again.
func TestSnapshot(t *testing.T) {
	now := time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC)
	s := service(t, t.TempDir(), func(c *Config) { c.Now = func() time.Time { return now } })
	past(t, s, 30, now.Unix())
	cutoff := now.Unix()
	snap, err := s.roster.snapshot(s.roster.names, cutoff)
	if err != nil {
		t.Fatal(err)
	}
	same := func(from, to int64) bool {
		t.Helper()
		for _, name := range s.roster.names {
			got, err := snap.load(name, from, to)
			if err != nil {
				t.Fatal(err)
			}
			want, err := s.roster.stored(name, from, to)
			if err != nil || len(want) != int(to-from)/900 {
				t.Fatal(len(want), err)
			}
			if !slices.EqualFunc(got, want, func(a, b float32) bool { return a == b || a != a && b != b }) {
				return false
			}
		}
		return true
	}
	before := serve.Tail(cutoff)
	for _, span := range [][2]int64{{cutoff - day, cutoff}, {cutoff - 36*day, cutoff - day}, {before, before + 900}, {before - 900, before + 900}, {cutoff, cutoff}} {
		if !same(span[0], span[1]) {
			t.Errorf("from %d to %d steps before the cutoff, it differs from the store", (cutoff-span[0])/900, (cutoff-span[1])/900)
		}
	}
	corrected := store.Reading{Client: "a", Time: cutoff - 2*day, KW: 99}
	if r, err := s.c.Store.Put(now, []store.Reading{corrected}, nil); err != nil || len(r.Refused) > 0 {
		t.Fatal(err, r)
	}
	if same(cutoff-3*day, cutoff) {
		t.Error("it changes with the store")
	}
	if revision, err := s.c.Store.Revision("a"); err != nil || revision == snap.revisions["a"] {
		t.Errorf("revision %d before and after a correction, %v", revision, err)
	}
}
