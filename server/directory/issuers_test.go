package directory

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/sqlstore"
)

// TestCountIssuers counts the agents and certificates of issuers by the prefixes of their
// serial numbers.
func TestCountIssuers(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		testkit.Must(t, l.Directory.AddToken(ctx, []byte("token"), Token{Uses: 100, Expires: after(time.Hour)}, "test", t0))
		for i, serial := range []string{"aaaa0001", "aaaa0002", "bbbb0001", "cccc0001", "", "aaaa0003"} {
			a := Agent{ID: fmt.Sprintf("agent-%d", i), Expires: after(time.Duration(i) * time.Minute), Credential: Credential{Serial: serial, Issued: t0}}
			testkit.Must(t, l.Directory.Join(ctx, []byte("token"), a, t0))
		}
		testkit.Must(t, l.Directory.RevokeAgent(ctx, "agent-5", "admin", t0))
		addUser(t, l, "anna")
		for i, serial := range []string{"aaaa1001", "aaaa1002", "bbbb1001", "dddd1001"} {
			testkit.Must(t, l.Users.AddCertificate(ctx, Certificate{Serial: serial, User: "anna", Issued: t0, Expires: after(time.Duration(i+1) * time.Minute)}, "admin"))
		}
		testkit.Must(t, l.Users.RecordLocal(ctx, Certificate{Serial: "aaaa2001", User: LocalUser, Issued: t0, Expires: after(time.Hour)}, t0))
		count := func(now time.Time, want string) {
			t.Helper()
			all, err := l.Directory.CountIssuers(ctx, []string{"aaaa", "bbbb"}, now)
			testkit.Must(t, err)
			pgtest.Equal(t, "counts", fmt.Sprint(all["aaaa"], all["bbbb"], all[""], len(all)), want)
		}
		count(t0, "{2 1 2} {1 0 1} {2 0 1} 3")
		count(after(90*time.Second), "{2 2 1} {1 0 1} {2 0 1} 3")
		// A certificate that was renewed counts only for its new issuer.
		testkit.Must(t, l.Users.RenewCertificate(ctx, "aaaa1002", Certificate{Serial: "bbbb1002", User: "anna", Issued: after(time.Second), Expires: after(2 * time.Minute)}, "anna"))
		count(after(90*time.Second), "{2 2 0} {1 0 2} {2 0 1} 3")
		none, err := l.Directory.CountIssuers(ctx, nil, t0)
		testkit.Must(t, err)
		pgtest.Equal(t, "no issuers", fmt.Sprint(none), "map[:{5 1 4}]")
	})
}

// TestRenewCertificate checks that renewed certificates are revoked together, and that their
// number does not grow.
func TestRenewCertificate(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		addUser(t, l, "anna")
		addUser(t, l, "ben")
		cert := func(serial, user string, n int) Certificate {
			return Certificate{Serial: serial, User: user, Issued: after(time.Duration(n) * time.Second), Expires: after(time.Hour)}
		}
		testkit.Must(t, l.Users.AddCertificate(ctx, cert("0a", "anna", 0), "admin"))
		testkit.Must(t, l.Users.AddCertificate(ctx, cert("ff", "anna", 0), "admin"))
		testkit.Must(t, l.Users.RenewCertificate(ctx, "0a", cert("1a", "anna", 1), "anna"))
		testkit.Must(t, l.Users.RenewCertificate(ctx, "0a", cert("1b", "anna", 2), "anna")) // the first answer was lost
		valid := func() (serials []string) {
			t.Helper()
			all, err := l.Users.UserCertificates(ctx, 100, t0)
			testkit.Must(t, err)
			for _, c := range all {
				if c.Revoked.IsZero() {
					serials = append(serials, c.Serial)
				}
			}
			slices.Sort(serials)
			return serials
		}
		pgtest.Equal(t, "after two renewals", fmt.Sprint(valid()), "[0a 1b ff]")
		testkit.Must(t, l.Users.RenewCertificate(ctx, "1b", cert("2a", "anna", 3), "anna"))
		pgtest.Equal(t, "after three renewals", fmt.Sprint(valid()), "[1b 2a ff]")
		wantIs(t, l.Users.RenewCertificate(ctx, "0a", cert("3a", "anna", 4), "anna"), sqlstore.ErrNotFound)
		wantIs(t, l.Users.RenewCertificate(ctx, "ff", cert("3a", "ben", 4), "ben"), sqlstore.ErrNotFound)
		_, err := l.Users.RevokeCertificate(ctx, "1b", "admin", after(time.Minute))
		testkit.Must(t, err)
		pgtest.Equal(t, "after the revocation", fmt.Sprint(valid()), "[ff]")
		wantIs(t, l.Users.RenewCertificate(ctx, "2a", cert("3a", "anna", 5), "anna"), sqlstore.ErrNotFound)
		events, err := l.Directory.Revocations(ctx, t0, "", 100)
		testkit.Must(t, err)
		pgtest.Equal(t, "events of revocations", len(events), 2)
	})
}

func addUser(t *testing.T, l *database, name string) {
	t.Helper()
	_, err := l.Users.PutUser(t.Context(), name, "viewer", "admin", t0)
	testkit.Must(t, err)
}
