package ledger

import (
	"context"
	"slices"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/directory"
	"loadstar/server/sqlstore"
)

// TestReapply revokes in one ledger, and repeats the revocations in another ledger that
// resembles its backup.
func TestReapply(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		ctx := context.Background()
		old := open(t, at)
		token := func(l *Ledger, note string) string {
			hash := []byte("token " + note)
			testkit.Must(t, l.Directory.AddToken(ctx, hash, directory.Token{Note: note, Uses: 1, Expires: after(time.Hour)}, "user anna", t0))
			return directory.TokenID(hash)
		}
		join(t, old, "good", "bad")
		announce(t, old, "good", "g1", "g2")
		bad := token(old, "leaked")
		token(old, "open")
		for _, name := range []string{"bert", "carl"} {
			_, err := old.Users.PutUser(ctx, name, "operator", "user anna", t0)
			testkit.Must(t, err)
		}
		testkit.Must(t, old.Users.AddCertificate(ctx, directory.Certificate{Serial: "aabb", User: "carl", Issued: t0, Expires: after(time.Hour)}, "user anna"))

		// These events happened after the backup, in a ledger that continued.
		var events []directory.Event
		for i, e := range []directory.Event{
			{Action: "revoke agent", Subject: "bad"},
			{Action: "revoke agent", Subject: "joined later"},
			{Action: "revoke client", Subject: "g2"},
			{Action: "revoke client", Subject: "announced later"},
			{Action: "revoke token", Subject: bad},
			{Action: "revoke token", Subject: "created later"},
			{Action: "revoke certificate", Subject: "carl", Detail: "serial aabb"},
			{Action: "remove user", Subject: "bert"},
			{Action: "remove user", Subject: "added later"},
			{Action: "remove user", Subject: "local"},
		} {
			e.ID, e.At, e.Actor = string(rune('a'+i)), after(time.Minute), "user anna"
			events = append(events, e)
		}
		n, err := old.Directory.Reapply(ctx, events, after(time.Hour))
		testkit.Must(t, err)
		pgtest.Equal(t, "repeated", n, 7)
		for agent, want := range map[string]bool{"good": false, "bad": true, "joined later": true} {
			c, err := old.Directory.Caller(ctx, agent)
			testkit.Must(t, err)
			pgtest.Equal(t, agent+" is revoked", c.Revoked, want)
		}
		join(t, old, "another")
		refused, err := old.Directory.Announce(ctx, directory.Announcement{Agent: "another", Clients: []string{"g2", "announced later", "new"}, Inputs: []string{"load"}, Step: time.Hour, Most: 10}, t0)
		testkit.Must(t, err)
		pgtest.Equal(t, "refused clients", len(refused.Clients), 2)
		c, _, err := old.Users.CertificateOf(ctx, "aabb")
		testkit.Must(t, err)
		pgtest.Equal(t, "the certificate is revoked", c.Revoked.IsZero(), false)
		_, err = old.Users.User(ctx, "bert")
		wantIs(t, err, sqlstore.ErrNotFound)
		n, err = old.Directory.Reapply(ctx, events, after(time.Hour))
		testkit.Must(t, err)
		pgtest.Equal(t, "repeated once more", n, 0)

		// A user of the same name who was added later is a different person.
		_, err = old.Users.PutUser(ctx, "bert", "operator", "user anna", after(2*time.Hour))
		testkit.Must(t, err)
		n, err = old.Directory.Reapply(ctx, events, after(3*time.Hour))
		testkit.Must(t, err)
		pgtest.Equal(t, "repeated for a new user", n, 0)

		n, err = old.Directory.RevokeTokens(ctx, "restore", t0)
		testkit.Must(t, err)
		pgtest.Equal(t, "open tokens", n, 1)

		// Read all of these events, in pages.
		var names []string
		for next := ""; ; {
			page, err := old.Directory.Revocations(ctx, t0, next, 3)
			testkit.Must(t, err)
			if len(page) == 0 {
				break
			}
			for _, e := range page {
				names = append(names, e.Action+" "+e.Subject)
			}
			next = page[len(page)-1].ID
		}
		pgtest.Equal(t, "listed", len(names), 8)
		if !slices.Contains(names, "revoke client announced later") || !slices.Contains(names, "remove user bert") {
			t.Errorf("%q", names)
		}
	})
}

// TestAuditAfter reads the log forwards in pages, up to a given time.
func TestAuditAfter(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l := open(t, at)
		for i := range 7 {
			testkit.Must(t, l.Events.AddEvent(t.Context(), directory.Event{At: after(time.Duration(i) * time.Second), Actor: "a", Action: "x", Subject: string(rune('0' + i))}))
		}
		got := ""
		for next := "0"; ; {
			page, err := l.Events.Audit(t.Context(), directory.AuditQuery{After: next, Until: after(5 * time.Second), Limit: 2})
			testkit.Must(t, err)
			if len(page) == 0 {
				break
			}
			for _, e := range page {
				got += e.Subject
			}
			next = page[len(page)-1].ID
		}
		pgtest.Equal(t, "the events", got, "01234")
	})
}
