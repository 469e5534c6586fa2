package operator

import (
	"strings"
	"testing"
	"time"

	v1 "loadstar/proto/loadstar/v1"
)

// TestWaiting checks what is said about a round that waits: for whom, since when, until when, and
// what follows. Agents a and c are in contact, b missed its contacts.
func TestWaiting(t *testing.T) {
	onBoth(t, func(f *fixture) {
		d := newTown(f)
		o := New(Config{Ledger: d.ledger})
		at := map[string]time.Time{"a": time.Now(), "b": time.Now().Add(-20 * time.Second), "c": time.Now()}
		o.Contact = func(agent string) (time.Time, time.Duration, bool) {
			seen, ok := at[agent]
			return seen, time.Second, ok
		}
		r, err := o.GetRun(d.Context(), &v1.GetRunRequest{Run: d.run})
		must(d, err)
		w := r.Waiting
		// Of seven clients two are counted, a1, a3, c0 and c1 are expected, b0 is silent.
		if w.GetClients() != 5 || w.GetSilent() != 1 || w.GetMerges() != 6 || w.GetAsked() != 7 || w.GetReplaces() || w.GetGivesUp() == 0 {
			d.Errorf("%v", w)
		}
		for _, text := range []string{"round 1 waits for name of b (1 client, silent since ", "and then merges 6 of 7 clients"} {
			if !strings.Contains(w.GetText(), text) {
				d.Errorf("no %q in %q", text, w.GetText())
			}
		}
		if strings.Contains(w.GetText(), "name of a") {
			d.Errorf("an agent that trains is named: %s", w.GetText())
		}
		some, err := o.Waits(d.Context())
		if err != nil || len(some) != 1 || !strings.HasPrefix(some[0], "run "+d.run) {
			d.Errorf("%q %v", some, err)
		}
		fleet, err := o.GetFleet(d.Context(), &v1.GetFleetRequest{})
		if err != nil || fleet.Silent != 1 {
			d.Errorf("%d agents are silent: %v", fleet.GetSilent(), err)
		}
		list, err := o.ListAgents(d.Context(), &v1.ListAgentsRequest{})
		must(d, err)
		for _, a := range list.Agents {
			if a.Silent != (a.Id == "b") {
				d.Errorf("agent %s: silent %v", a.Id, a.Silent)
			}
		}
	})
}
