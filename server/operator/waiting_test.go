package operator

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	v1 "loadstar/proto/loadstar/v1"

	"loadstar/internal/testkit"
)

// TestWaiting checks the description of a waiting round: the clients for which it waits, since
// when and until when, and the outcome. Agents a and c are in contact, and b has missed its
// contacts.
func TestWaiting(t *testing.T) {
	onBoth(t, func(f *fixture) {
		d := newTown(f)
		o := New(Config{Ledger: d.ledger})
		at := map[string]time.Time{"a": time.Now(), "b": time.Now().Add(-20 * time.Second), "c": time.Now()}
		o.runs.Contact = func(agent string) (time.Time, time.Duration, bool) {
			seen, ok := at[agent]
			return seen, time.Second, ok
		}
		r, err := o.GetRun(d.Context(), &v1.GetRunRequest{Run: d.run})
		testkit.Must(d, err)
		w := r.Waiting
		// Of seven clients, two are counted, four (a1, a3, c0 and c1) are expected, and b0 is
		// silent.
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
		testkit.Must(d, err)
		for _, a := range list.Agents {
			if a.Silent != (a.Id == "b") {
				d.Errorf("agent %s: silent %v", a.Id, a.Silent)
			}
		}
	})
}

// TestRefusedNames checks that the conflict between two agents that announced the same name is
// shown with the client, and that a waiting run counts the refused client.
func TestRefusedNames(t *testing.T) {
	onBoth(t, func(f *fixture) {
		d := newTown(f)
		o := New(Config{Ledger: d.ledger, Wake: func(string) {}, Log: slog.New(slog.DiscardHandler)})
		o.runs.Refused = func() map[string][]string { return map[string][]string{"b": {"a0"}} }
		list, err := o.ListClients(d.Context(), &v1.ListClientsRequest{})
		testkit.Must(d, err)
		for _, c := range list.Clients {
			if got := strings.Join(c.Also, " "); (got == "name of b") != (c.Name == "a0") {
				d.Errorf("%s is also announced by %q", c.Name, got)
			}
		}
		one, err := o.GetClient(d.Context(), &v1.GetClientRequest{Client: "a0"})
		if err != nil || len(one.GetClient().GetAlso()) != 1 {
			d.Errorf("%v %v", one.GetClient(), err)
		}
		for wait, warns := range map[int64]bool{0: false, 9: true} {
			s, err := o.StartRun(d.Context(), &v1.StartRunRequest{Plan: plan, Clients: wait})
			testkit.Must(d, err)
			if said := strings.Contains(strings.Join(s.Warnings, " "), "1 client refused"); said != warns {
				d.Errorf("--wait-for %d: %q", wait, s.Warnings)
			}
			r, err := o.GetRun(d.Context(), &v1.GetRunRequest{Run: s.Run})
			testkit.Must(d, err)
			if !strings.Contains(r.Run.Reason, "1 refused (") {
				d.Errorf("a run that waits says %q", r.Run.Reason)
			}
		}
	})
}
