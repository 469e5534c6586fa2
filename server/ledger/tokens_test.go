package ledger

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/directory"
	"loadstar/server/sqlstore"
)

// TestTokens checks that tokens are listed in pages, with their creators and the number of
// agents that joined, and are refused once they are revoked. Each agent has the id of its
// token.
func TestTokens(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		for i := range 5 {
			// Two of the tokens were created at the same moment.
			made := after(time.Duration(i/2) * time.Minute)
			testkit.Must(t, l.Directory.AddToken(ctx, []byte{7, byte(i)}, directory.Token{Note: fmt.Sprint(i), Uses: 3, Expires: after(time.Hour), Clients: 2, Pattern: "m-*"}, "anna", made))
		}
		testkit.Must(t, l.Directory.Join(ctx, []byte{7, 3}, directory.Agent{ID: "a", Expires: after(time.Hour)}, after(2*time.Minute)))
		list := func() (all []directory.Token) {
			t.Helper()
			for last := ""; ; {
				page, err := l.Directory.Tokens(ctx, last, 2)
				testkit.Must(t, err)
				if len(page) == 0 {
					return all
				}
				all, last = append(all, page...), page[len(page)-1].ID
			}
		}
		var ids []string
		for _, x := range list() {
			ids = append(ids, x.ID)
		}
		pgtest.Equal(t, "tokens", ids, []string{"0704", "0703", "0702", "0701", "0700"})
		pgtest.Equal(t, "a token", list()[1], directory.Token{
			ID: "0703", Note: "3", Actor: "anna", Created: after(time.Minute), Expires: after(time.Hour), Used: after(2 * time.Minute),
			Uses: 2, Joined: 1, Clients: 2, Pattern: "m-*",
		})
		_, err := l.Directory.Tokens(ctx, "none", 2)
		wantIs(t, err, sqlstore.ErrNotFound)

		_, err = l.Directory.RevokeToken(ctx, "070", "operator", t0)
		wantIs(t, err, sqlstore.ErrRefused) // several tokens begin with this
		for _, wrong := range []string{"", "08", "07031"} {
			_, err = l.Directory.RevokeToken(ctx, wrong, "operator", t0)
			wantIs(t, err, sqlstore.ErrNotFound)
		}
		gone, err := l.Directory.RevokeToken(ctx, "0703", "operator", after(3*time.Minute))
		testkit.Must(t, err)
		pgtest.Equal(t, "joined", gone.Joined, 1)
		pgtest.Equal(t, "revoked", list()[1].Revoked, after(3*time.Minute))
		_, err = l.Directory.RevokeToken(ctx, "0703", "operator", t0)
		wantIs(t, err, sqlstore.ErrNotFound)
		for _, err := range []error{l.Directory.CheckToken(ctx, []byte{7, 3}, t0), l.Directory.Join(ctx, []byte{7, 3}, directory.Agent{ID: "b"}, t0), l.Directory.Rejoin(ctx, []byte{7, 3}, directory.Agent{ID: "a"}, t0)} {
			if wantIs(t, err, sqlstore.ErrRefused); !strings.Contains(err.Error(), "revoked") {
				t.Error(err)
			}
		}
		// The agent that joined with the token stays, and can be found by the token.
		with, err := l.Directory.AgentStates(ctx, directory.AgentQuery{Token: "0703", Limit: 9})
		testkit.Must(t, err)
		if len(with) != 1 || with[0].ID != "a" || with[0].Token != "0703" || !with[0].Revoked.IsZero() {
			t.Errorf("%+v", with)
		}
		events, err := l.Events.Audit(ctx, directory.AuditQuery{Limit: 9})
		testkit.Must(t, err)
		for _, want := range []string{"create token 0702 agents 3, until 2023-11-14T23:13:20Z, clients 2, names m-*: 2", "join a token 0703", "revoke token 0703 1 agents joined with it: 3"} {
			if !slices.ContainsFunc(events, func(e directory.Event) bool { return e.Action+" "+e.Subject+" "+e.Detail == want }) {
				t.Errorf("no event %q in %v", want, events)
			}
		}
	})
}

// locked calls do while no other transaction can write agents, clients or tokens.
func locked(t *testing.T, l *Ledger, do func(ctx context.Context)) {
	t.Helper()
	tx, err := l.Store.Write.BeginTx(t.Context(), nil) // with SQLite this is the only connection that writes
	testkit.Must(t, err)
	defer func() { testkit.Must(t, tx.Rollback()) }()
	if !l.Store.SQLite {
		_, err := tx.ExecContext(t.Context(), "LOCK TABLE agents, clients, tokens, audit IN EXCLUSIVE MODE")
		testkit.Must(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	do(ctx)
}

// TestNothingToWrite checks that an announcement that changes nothing writes nothing, and that
// a wrong token is refused without a write.
func TestNothingToWrite(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l := open(t, at)
		join(t, l, "a", "b")
		announce(t, l, "b", "taken")
		skew := 300 * time.Millisecond
		a := directory.Announcement{
			Agent: "a", Clients: append(named("a", 700), "taken"), Inputs: []string{"wind", "load"}, Step: time.Hour, Most: 1000,
			Version: "1.2.3", Protocol: 2, Skew: &skew, Generated: true,
		}
		first, err := l.Directory.Announce(t.Context(), a, t0)
		testkit.Must(t, err)
		pgtest.Equal(t, "refused", first, directory.Refused{Clients: []string{"taken"}, Reason: "client taken belongs to another agent"})
		locked(t, l, func(ctx context.Context) {
			drift := 900 * time.Millisecond
			a := a
			a.Skew, a.Inputs = &drift, []string{"load", "wind", "load"}
			slices.Reverse(a.Clients)
			again, err := l.Directory.Announce(ctx, a, after(time.Hour))
			testkit.Must(t, err)
			pgtest.Equal(t, "refused again", again, first)
			fewer, err := l.Directory.Announce(ctx, directory.Announcement{Agent: "a", Clients: []string{"a00003"}, Inputs: a.Inputs, Step: time.Hour, Most: 1000, Version: "1.2.3", Protocol: 2, Skew: &skew, Generated: true}, t0)
			testkit.Must(t, err)
			pgtest.Equal(t, "fewer clients", fewer, directory.Refused{})
			wantIs(t, l.Directory.CheckToken(ctx, []byte("wrong"), t0), sqlstore.ErrRefused)
		})
		// Only the client that differs is written.
		_, err = l.Store.Write.ExecContext(t.Context(), "UPDATE clients SET step = 60 WHERE name = 'a00007'")
		testkit.Must(t, err)
		_, err = l.Directory.Announce(t.Context(), a, after(time.Minute))
		testkit.Must(t, err)
		for name, want := range map[string]time.Time{"a00007": after(time.Minute), "a00008": t0} {
			c, err := l.Directory.Client(t.Context(), name)
			testkit.Must(t, err)
			if !c.Announced.Equal(want) || c.Step != time.Hour {
				t.Errorf("%+v, want it announced at %v", c, want)
			}
		}
		x, err := l.Directory.AgentState(t.Context(), "a")
		testkit.Must(t, err)
		if x.Clients != 700 || x.Version != "1.2.3" || x.Protocol != 2 || *x.Skew != skew {
			t.Errorf("%+v", x)
		}
		a.Clients = append(a.Clients, "one more")
		_, err = l.Directory.Announce(t.Context(), a, after(time.Hour))
		testkit.Must(t, err)
		events, err := l.Events.Audit(t.Context(), directory.AuditQuery{Actions: []string{"announce"}, Actors: []string{"agent a"}, Limit: 9})
		testkit.Must(t, err)
		if len(events) != 1 || events[0].Detail != "clients 701, before 700" {
			t.Errorf("%v", events)
		}
	})
}

// TestTokenLimits checks that the token with which an agent joined limits its clients.
func TestTokenLimits(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		testkit.Must(t, l.Directory.AddToken(ctx, []byte("small"), directory.Token{Uses: 9, Expires: after(time.Hour), Clients: 3, Pattern: "m-?"}, "test", t0))
		testkit.Must(t, l.Directory.AddToken(ctx, []byte("other"), directory.Token{Uses: 9, Expires: after(time.Hour), Clients: 2, Pattern: "x*"}, "test", t0))
		testkit.Must(t, l.Directory.Join(ctx, []byte("small"), directory.Agent{ID: "a"}, t0))
		say := func(want directory.Refused, clients ...string) {
			t.Helper()
			got, err := l.Directory.Announce(ctx, directory.Announcement{Agent: "a", Clients: clients, Step: time.Hour, Most: 5}, t0)
			testkit.Must(t, err)
			pgtest.Equal(t, fmt.Sprint(clients), got, want)
		}
		say(directory.Refused{Clients: []string{"m-10"}, Reason: "client m-10 does not match the pattern m-? of the token with which this agent joined"}, "m-1", "m-10")
		say(directory.Refused{Clients: []string{"m-4"}, Reason: "client m-4 is one too many: the token with which this agent joined allows 3 clients"}, "m-2", "m-3", "m-4")
		testkit.Must(t, l.Directory.RevokeClient(ctx, "m-2", "operator", t0)) // the place of m-2 remains occupied
		say(directory.Refused{Clients: []string{"m-2", "m-4"}, Reason: "client m-2 is revoked"}, "m-4", "m-2")
		n, err := l.Directory.CountClients(ctx, time.Time{})
		testkit.Must(t, err)
		pgtest.Equal(t, "clients", n, 2)
		// An agent that joins again keeps its clients. It can add only clients that its new token
		// allows.
		testkit.Must(t, l.Directory.Rejoin(ctx, []byte("other"), directory.Agent{ID: "a", Name: "again"}, t0))
		say(directory.Refused{Clients: []string{"m-5"}, Reason: "client m-5 does not match the pattern x* of the token with which this agent joined"}, "m-1", "m-3", "m-5")
		say(directory.Refused{Clients: []string{"x1"}, Reason: "client x1 is one too many: the token with which this agent joined allows 2 clients"}, "x1")
		wantIs(t, l.Directory.Rejoin(ctx, []byte("other"), directory.Agent{ID: "nobody"}, t0), sqlstore.ErrNotFound)
		testkit.Must(t, l.Directory.RevokeAgent(ctx, "a", "operator", t0))
		wantIs(t, l.Directory.Rejoin(ctx, []byte("other"), directory.Agent{ID: "a"}, t0), sqlstore.ErrRefused)
		tokens, err := l.Directory.Tokens(ctx, "", 9)
		testkit.Must(t, err)
		for _, x := range tokens {
			if x.Joined != 1 || x.Uses != 8 {
				t.Errorf("a refused join used a token: %+v", x)
			}
		}
	})
}

// TestFreeClients checks that the clients of a revoked agent stay bound to it until they are
// freed.
func TestFreeClients(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		join(t, l, "owner", "thief", "heir")
		announce(t, l, "owner", "a", "b", "c")
		free := func(agent, client string) (int64, error) {
			return l.Directory.FreeClients(ctx, agent, client, "operator", t0)
		}
		say := func(agent string, want []string) {
			t.Helper()
			got, err := l.Directory.Announce(ctx, directory.Announcement{Agent: agent, Clients: []string{"a", "b", "c"}, Step: time.Hour, Most: 9}, t0)
			testkit.Must(t, err)
			pgtest.Equal(t, agent, got.Clients, want)
		}
		_, err := free("owner", "")
		wantIs(t, err, sqlstore.ErrRefused)
		testkit.Must(t, l.Directory.RevokeClient(ctx, "c", "operator", t0))
		testkit.Must(t, l.Directory.RevokeAgent(ctx, "owner", "operator", t0))
		say("thief", []string{"a", "b", "c"})
		n, err := free("owner", "b")
		testkit.Must(t, err)
		pgtest.Equal(t, "freed", n, 1)
		say("heir", []string{"a", "c"})
		say("thief", []string{"a", "b", "c"}) // the heir now hosts b
		for agent, client := range map[string]string{"nobody": "", "owner": "b"} {
			_, err := free(agent, client)
			wantIs(t, err, sqlstore.ErrNotFound)
		}
		n, err = free("owner", "")
		testkit.Must(t, err)
		pgtest.Equal(t, "freed", n, 1)
		say("heir", []string{"c"})
		n, err = free("owner", "")
		testkit.Must(t, err)
		pgtest.Equal(t, "freed again", n, 0)
	})
}
