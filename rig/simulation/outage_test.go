package simulation

import (
	"flag"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	away    = flag.Duration("away", 5*time.Minute, "how long TestAway lets a part be away")
	outages = flag.Int("outages", 1, "how often")
)

// outage is a period in which calls with certain prefixes get no answer.
type outage struct {
	calls []string
	away  time.Duration
}

// outageAfter is the time at which the outage of a setting begins. The run is then in its first
// rounds.
const outageAfter = 5 * time.Second

func (o *outage) end() time.Duration {
	if o == nil {
		return 0
	}
	return outageAfter + o.away
}

func (o *outage) hits(c *call, elapsed time.Duration) bool {
	return o != nil && elapsed >= outageAfter && elapsed < o.end() &&
		slices.ContainsFunc(o.calls, func(prefix string) bool { return strings.HasPrefix(c.what, prefix) })
}

// TestAway makes each of the fleet's stores and links unavailable for some time. Nothing may be
// lost, and updates must be counted again soon afterwards.
func TestAway(t *testing.T) {
	const soon = 6 * time.Minute // an agent waits for up to 5 between its attempts
	for name, calls := range map[string][]string{
		"ledger":            {"ledger "},
		"blobs":             {"blob "},
		"agents' network":   {"request ", "response "},
		"whole data centre": {"ledger ", "blob ", "request ", "response "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var all []time.Duration
			for seed := range uint64(*outages) {
				set := draw(seed)
				set.exact, set.kind, set.rounds = true, int(seed)%asynchronous, 4
				set.lease, set.longest, set.cohort, set.odds = 3*time.Hour, 0, set.total(), map[kind]int{}
				want := reference(t, set)
				set.outage = &outage{calls: calls, away: *away}
				out := simulate(t, seed, set, nil)
				switch {
				case out.violation != "":
					t.Fatalf("seed %d: %s", seed, out.violation)
				case out.result != want:
					t.Fatalf("seed %d: weights or personal layers differ from those without an outage", seed)
				case out.resumed == 0 || out.resumed > soon:
					t.Fatalf("seed %d: nothing was counted within %v after the outage", seed, soon)
				}
				all = append(all, out.resumed)
			}
			slices.Sort(all)
			t.Logf("%s away for %v, %d times; counting again after %.1f s (median), %.1f s (longest)", name, *away, *outages, all[len(all)/2].Seconds(), all[len(all)-1].Seconds())
		})
	}
}
