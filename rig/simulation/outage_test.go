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

// outage is a period in which calls with certain prefixes get no response.
type outage struct {
	calls []string
	away  time.Duration
}

// outageEnd returns when the outage of a setting ends, or 0 before it begins.
func (w *world) outageEnd() time.Duration {
	if w.outageBegan == 0 {
		return 0
	}
	return w.outageBegan + w.outage.away
}

func (w *world) outageHits(c *call, elapsed time.Duration) bool {
	return elapsed < w.outageEnd() && slices.ContainsFunc(w.outage.calls, func(prefix string) bool { return strings.HasPrefix(c.what, prefix) })
}

const keepersAway = "keepers"

// TestAway makes each of the fleet's stores and links unavailable for a while. Nothing may be
// lost, and updates must be counted again soon afterwards.
func TestAway(t *testing.T) {
	for name, calls := range map[string][]string{
		"ledger":            {"ledger "},
		"blobs":             {"blob "},
		"agents' network":   {"request ", "response "},
		"whole data centre": {"ledger ", "blob ", "request ", "response "},
		keepersAway:         {"request k"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var all []time.Duration
			for seed := range uint64(*outages) {
				set, soon := draw(seed), 6*time.Minute // an agent waits for up to 5 minutes between its attempts
				set.kind, set.lease = int(seed)%asynchronous, 3*time.Hour
				if name == keepersAway { // the gateways respond, so agents extend their leases and learn when to call again
					set, soon = drawPrivate(seed), 30*time.Second
					set.private.check, set.private.midnight, set.private.early, set.lease = "norm", false, false, 2*time.Minute
				}
				set.exact, set.rounds = true, 4
				set.longest, set.cohort, set.odds = 0, set.total(), map[kind]int{}
				want := reference(t, set)
				set.outage = &outage{calls: calls, away: *away}
				out := simulate(t, seed, set, nil)
				switch {
				case out.violation != "":
					t.Fatalf("seed %d: %s", seed, out.violation)
				case out.result != want:
					t.Fatalf("seed %d: weights or personal layers differ from those without an outage", seed)
				case out.resumed == 0 || out.resumed > soon:
					t.Fatalf("seed %d: no round was complete within %v after the outage", seed, soon)
				}
				all = append(all, out.resumed)
			}
			slices.Sort(all)
			t.Logf("%s away for %v, %d times; a round is complete after %.1f s (median), %.1f s (longest)", name, *away, *outages, all[len(all)/2].Seconds(), all[len(all)-1].Seconds())
		})
	}
}
