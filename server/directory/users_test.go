package directory

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/sqlstore"
)

// hashed returns the hash of a secret.
func hashed(secret string) []byte {
	h := sha256.Sum256([]byte(secret))
	return h[:]
}

func actorOf(user string) string { return "user " + user + " via web" }

// signedIn adds a session of a user by means of a login code.
func signedIn(t pgtest.T, l *database, user, cookie string, now time.Time) Session {
	t.Helper()
	testkit.Must(t, l.Users.AddLogin(context.Background(), hashed("code of "+cookie), user, now.Add(time.Minute), "admin", now))
	s, err := l.Users.UseLogin(context.Background(), hashed("code of "+cookie), hashed(cookie), time.Hour, actorOf, now)
	testkit.Must(t, err)
	return s
}

// actions returns the audited actions on a subject, oldest first.
func actions(t pgtest.T, l *database, subject string) string {
	t.Helper()
	events, err := l.Events.Audit(context.Background(), AuditQuery{Limit: 1000})
	testkit.Must(t, err)
	var all []string
	for i := len(events) - 1; i >= 0; i-- {
		if events[i].Subject == subject {
			all = append(all, events[i].Action)
		}
	}
	return strings.Join(all, ", ")
}

func TestUsers(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		u, err := l.Users.User(ctx, LocalUser)
		testkit.Must(t, err)
		pgtest.Equal(t, "local", u.Role+" "+u.Source, "admin server")
		u, err = l.Users.PutUser(ctx, "anna", "viewer", "admin", t0)
		testkit.Must(t, err)
		pgtest.Equal(t, "anna", u, User{Name: "anna", Role: "viewer", Source: SourceAdmin, Created: t0})
		_, err = l.Users.PutUser(ctx, "anna", "viewer", "admin", t0) // without a change, there is no event
		testkit.Must(t, err)
		u, err = l.Users.PutUser(ctx, "anna", "admin", "admin", t0)
		testkit.Must(t, err)
		pgtest.Equal(t, "anna", u.Role, "admin")
		_, err = l.Users.PutUser(ctx, "bert", "operator", "admin", t0)
		testkit.Must(t, err)
		all, err := l.Users.Users(ctx)
		testkit.Must(t, err)
		pgtest.Equal(t, "users", len(all), 3)
		pgtest.Equal(t, "order", all[0].Name+all[1].Name+all[2].Name, "annabertlocal")
		// There is always an admin.
		_, err = l.Users.PutUser(ctx, LocalUser, "viewer", "admin", t0)
		wantIs(t, err, sqlstore.ErrRefused)
		wantIs(t, l.Users.RemoveUser(ctx, LocalUser, "admin", t0), sqlstore.ErrRefused)
		wantIs(t, l.Users.RemoveUser(ctx, "nobody", "admin", t0), sqlstore.ErrNotFound)
		// Removing a user removes everything that belongs to the user.
		signedIn(t, l, "anna", "cookie", t0)
		testkit.Must(t, l.Users.AddLogin(ctx, hashed("code"), "anna", after(time.Minute), "admin", t0))
		testkit.Must(t, l.Users.AddCertificate(ctx, Certificate{Serial: "5e", User: "anna", Issued: t0, Expires: after(time.Hour)}, "admin"))
		testkit.Must(t, l.Users.RemoveUser(ctx, "anna", "admin", t0))
		_, _, err = l.Users.SessionOf(ctx, hashed("cookie"), t0)
		wantIs(t, err, sqlstore.ErrNotFound)
		_, err = l.Users.UseLogin(ctx, hashed("code"), hashed("other"), time.Hour, actorOf, t0)
		wantIs(t, err, sqlstore.ErrRefused)
		_, _, err = l.Users.CertificateOf(ctx, "5e")
		wantIs(t, err, sqlstore.ErrNotFound)
		pgtest.Equal(t, "audit", actions(t, l, "anna"), "add user, change role, create login, sign in, create login, issue certificate, remove user")
		wantIs(t, l.Users.AddLogin(ctx, hashed("x"), "anna", after(time.Minute), "admin", t0), sqlstore.ErrNotFound)
	})
}

func TestUsersLimit(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		_, err := l.Store.Write.ExecContext(ctx, "INSERT INTO users (name, role, source, created) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1) SELECT 'u' || i, 'viewer', 'oidc', 0 FROM n", maxUsers-1)
		testkit.Must(t, err)
		_, err = l.Users.PutUser(ctx, "one-too-many", "viewer", "admin", t0)
		wantIs(t, err, sqlstore.ErrRefused)
		// Users of a provider without a session are removed to make room for others.
		_, err = l.Users.SignIn(ctx, User{Name: "oidc:anna", Role: "viewer", Subject: "1"}, "spare", hashed("cookie"), time.Hour, actorOf, t0)
		testkit.Must(t, err)
		_, err = l.Users.PutUser(ctx, "one-too-many", "viewer", "admin", t0)
		testkit.Must(t, err)
		all, err := l.Users.Users(ctx)
		testkit.Must(t, err)
		pgtest.Equal(t, "users", len(all), 3)
	})
}

func TestLogins(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		_, err := l.Users.PutUser(ctx, "anna", "viewer", "admin", t0)
		testkit.Must(t, err)
		// A code works once, and only until it expires.
		s := signedIn(t, l, "anna", "first", t0)
		_, err = l.Users.UseLogin(ctx, hashed("code of first"), hashed("again"), time.Hour, actorOf, t0)
		wantIs(t, err, sqlstore.ErrRefused)
		testkit.Must(t, l.Users.AddLogin(ctx, hashed("late"), "anna", after(time.Minute), "admin", t0))
		_, err = l.Users.UseLogin(ctx, hashed("late"), hashed("x"), time.Hour, actorOf, after(time.Minute))
		wantIs(t, err, sqlstore.ErrRefused)
		// A session has its user's current role, and expires.
		got, role, err := l.Users.SessionOf(ctx, hashed("first"), t0)
		testkit.Must(t, err)
		pgtest.Equal(t, "session", fmt.Sprint(got.ID == s.ID, got.User, role, got.Via, got.Expires.Equal(after(time.Hour))), "trueannaviewerlogintrue")
		_, err = l.Users.PutUser(ctx, "anna", "operator", "admin", t0)
		testkit.Must(t, err)
		_, role, err = l.Users.SessionOf(ctx, hashed("first"), after(time.Hour-time.Millisecond))
		testkit.Must(t, err)
		pgtest.Equal(t, "role", role, "operator")
		_, _, err = l.Users.SessionOf(ctx, hashed("first"), after(time.Hour))
		wantIs(t, err, sqlstore.ErrNotFound)
		_, err = l.Users.Session(ctx, s.ID, after(time.Hour))
		wantIs(t, err, sqlstore.ErrNotFound)
		// Only the newest codes and sessions of a user remain.
		for i := range maxLogins + 3 {
			testkit.Must(t, l.Users.AddLogin(ctx, hashed(fmt.Sprint("l", i)), "anna", after(time.Duration(i+60)*time.Second), "admin", t0))
		}
		_, err = l.Users.UseLogin(ctx, hashed("l2"), hashed("x"), time.Hour, actorOf, t0)
		wantIs(t, err, sqlstore.ErrRefused)
		_, err = l.Users.UseLogin(ctx, hashed("l3"), hashed("from l3"), time.Hour, actorOf, t0)
		testkit.Must(t, err)
		for i := range maxSessions {
			signedIn(t, l, "anna", fmt.Sprint("s", i), after(time.Duration(i+1)*time.Second))
		}
		all, err := l.Users.Sessions(ctx, "anna", 100, after(time.Minute))
		testkit.Must(t, err)
		pgtest.Equal(t, "sessions", len(all), maxSessions)
		_, _, err = l.Users.SessionOf(ctx, hashed("first"), t0)
		wantIs(t, err, sqlstore.ErrNotFound)
		signedIn(t, l, LocalUser, "local's", after(time.Minute))
		all, err = l.Users.Sessions(ctx, "", 100, after(time.Minute))
		testkit.Must(t, err)
		pgtest.Equal(t, "newest first", fmt.Sprint(len(all), all[0].User), fmt.Sprint(maxSessions+1, "local"))
		// A session that has ended no longer exists.
		testkit.Must(t, l.Users.EndSession(ctx, all[0].ID, "admin", after(time.Minute)))
		wantIs(t, l.Users.EndSession(ctx, all[0].ID, "admin", after(time.Minute)), sqlstore.ErrNotFound)
		_, _, err = l.Users.SessionOf(ctx, hashed("local's"), after(time.Minute))
		wantIs(t, err, sqlstore.ErrNotFound)
		// Expired rows are deleted.
		signedIn(t, l, "anna", "much later", after(48*time.Hour))
		for table, want := range map[string]int{"sessions": 1, "logins": 0} {
			var n int
			testkit.Must(t, l.Store.DB.QueryRowContext(ctx, "SELECT count(*) FROM "+table).Scan(&n))
			pgtest.Equal(t, table, n, want)
		}
	})
}

// TestLoginOnce checks that exactly one of many concurrent uses of a code succeeds.
func TestLoginOnce(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		testkit.Must(t, l.Users.AddLogin(ctx, hashed("code"), LocalUser, after(time.Minute), "admin", t0))
		var wg sync.WaitGroup
		var mu sync.Mutex
		worked := 0
		for i := range 8 {
			wg.Go(func() {
				_, err := l.Users.UseLogin(ctx, hashed("code"), hashed(fmt.Sprint(i)), time.Hour, actorOf, t0)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					worked++
				} else if !errors.Is(err, sqlstore.ErrRefused) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		pgtest.Equal(t, "worked", worked, 1)
	})
}

func TestSignIn(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		sign := func(subject, name, role, cookie string) string {
			t.Helper()
			s, err := l.Users.SignIn(ctx, User{Name: name, Role: role, Subject: subject}, name+"-"+subject, hashed(cookie), time.Hour, actorOf, t0)
			testkit.Must(t, err)
			return s.User
		}
		roleOf := func(cookie string) string {
			t.Helper()
			_, role, err := l.Users.SessionOf(ctx, hashed(cookie), t0)
			testkit.Must(t, err)
			return role
		}
		pgtest.Equal(t, "first", sign("1", "oidc:anna", "viewer", "a"), "oidc:anna")
		pgtest.Equal(t, "another of the name", sign("2", "oidc:anna", "admin", "b"), "oidc:anna-2")
		pgtest.Equal(t, "roles", roleOf("a")+" "+roleOf("b"), "viewer admin")
		// The subject identifies a user, not the name.
		pgtest.Equal(t, "renamed", sign("1", "oidc:boss", "operator", "c"), "oidc:anna")
		pgtest.Equal(t, "roles", roleOf("a")+" "+roleOf("c"), "operator operator")
		// A provider's user cannot get a local name, a login link or a certificate.
		_, err := l.Users.SignIn(ctx, User{Name: LocalUser, Role: "viewer", Subject: "3"}, LocalUser, hashed("d"), time.Hour, actorOf, t0)
		wantIs(t, err, sqlstore.ErrRefused)
		_, err = l.Users.PutUser(ctx, "oidc:anna", "admin", "admin", t0)
		wantIs(t, err, sqlstore.ErrRefused)
		wantIs(t, l.Users.AddLogin(ctx, hashed("x"), "oidc:anna", after(time.Minute), "admin", t0), sqlstore.ErrRefused)
		wantIs(t, l.Users.AddCertificate(ctx, Certificate{Serial: "5e", User: "oidc:anna", Issued: t0, Expires: after(time.Hour)}, "admin"), sqlstore.ErrRefused)
		pgtest.Equal(t, "audit", actions(t, l, "oidc:anna"), "add user, sign in, change role, sign in")
		testkit.Must(t, l.Users.RemoveUser(ctx, "oidc:anna", "admin", t0))
		_, _, err = l.Users.SessionOf(ctx, hashed("c"), t0)
		wantIs(t, err, sqlstore.ErrNotFound)
	})
}

func TestCertificates(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		_, err := l.Users.PutUser(ctx, "anna", "viewer", "admin", t0)
		testkit.Must(t, err)
		add := func(serial string, life time.Duration) error {
			return l.Users.AddCertificate(ctx, Certificate{Serial: serial, User: "anna", Issued: t0, Expires: after(life)}, "admin")
		}
		testkit.Must(t, add("aa01", time.Hour))
		testkit.Must(t, add("aa02", time.Hour))
		c, role, err := l.Users.CertificateOf(ctx, "aa01")
		testkit.Must(t, err)
		pgtest.Equal(t, "certificate", fmt.Sprint(c.User, role, c.Revoked.IsZero(), c.Expires.Equal(after(time.Hour))), "annaviewertrue true")
		_, err = l.Users.RevokeCertificate(ctx, "aa", "admin", t0)
		wantIs(t, err, sqlstore.ErrRefused)
		_, err = l.Users.RevokeCertificate(ctx, "%", "admin", t0)
		wantIs(t, err, sqlstore.ErrNotFound)
		_, err = l.Users.RevokeCertificate(ctx, "", "admin", t0)
		wantIs(t, err, sqlstore.ErrNotFound)
		// The thief of a key may have opened a session, and may have a login link for later.
		_, err = l.Users.PutUser(ctx, "bob", "viewer", "admin", t0)
		testkit.Must(t, err)
		signedIn(t, l, "anna", "hers", t0)
		signedIn(t, l, "bob", "his", t0)
		testkit.Must(t, l.Users.AddLogin(ctx, hashed("later"), "anna", after(time.Hour), "admin", t0))
		c, err = l.Users.RevokeCertificate(ctx, "aa01", "admin", after(time.Second))
		testkit.Must(t, err)
		_, _, err = l.Users.SessionOf(ctx, hashed("hers"), t0)
		wantIs(t, err, sqlstore.ErrNotFound)
		_, err = l.Users.UseLogin(ctx, hashed("later"), hashed("x"), time.Hour, actorOf, t0)
		wantIs(t, err, sqlstore.ErrRefused)
		_, _, err = l.Users.SessionOf(ctx, hashed("his"), t0)
		testkit.Must(t, err)
		pgtest.Equal(t, "revoked", c.Serial+" "+c.User, "aa01 anna")
		c, _, err = l.Users.CertificateOf(ctx, "aa01")
		testkit.Must(t, err)
		pgtest.Equal(t, "revoked", c.Revoked.Equal(after(time.Second)), true)
		_, err = l.Users.RevokeCertificate(ctx, "aa01", "admin", t0)
		wantIs(t, err, sqlstore.ErrNotFound)
		_, err = l.Users.RevokeCertificate(ctx, "aa", "admin", t0) // aa02 is the only valid certificate
		testkit.Must(t, err)
		// The number of a user's certificates is limited. Revoked and expired certificates do not
		// count.
		for i := range maxUserCertificates {
			testkit.Must(t, add(fmt.Sprintf("bb%02d", i), time.Duration(i+1)*time.Minute))
		}
		wantIs(t, add("cc", time.Hour), sqlstore.ErrRefused)
		_, err = l.Users.RevokeCertificate(ctx, "bb07", "admin", t0)
		testkit.Must(t, err)
		testkit.Must(t, add("cc", time.Hour))
		wantIs(t, add("dd", time.Hour), sqlstore.ErrRefused)
		testkit.Must(t, l.Users.AddCertificate(ctx, Certificate{Serial: "dd", User: "anna", Issued: after(time.Minute), Expires: after(time.Hour)}, "admin"))
		_, _, err = l.Users.CertificateOf(ctx, "bb00")
		wantIs(t, err, sqlstore.ErrNotFound)
		all, err := l.Users.UserCertificates(ctx, 1000, after(30*time.Minute))
		testkit.Must(t, err)
		for _, c := range all {
			if !c.Expires.After(after(30 * time.Minute)) {
				t.Errorf("%+v has expired", c)
			}
		}
		wantIs(t, l.Users.AddCertificate(ctx, Certificate{Serial: "x", User: "nobody", Issued: t0, Expires: after(time.Hour)}, "admin"), sqlstore.ErrNotFound)
	})
}

// TestRecordLocal checks that a gateway can always record its certificate, that a revoked
// certificate stays revoked, and that the newest certificates of the user local are accepted.
func TestRecordLocal(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		l, ctx := open(t, at), t.Context()
		record := func(i int) {
			t.Helper()
			now := after(time.Duration(i) * time.Second)
			testkit.Must(t, l.Users.RecordLocal(ctx, Certificate{Serial: fmt.Sprintf("%04x", i), User: LocalUser, Issued: now, Expires: after(1000 * time.Hour)}, now))
		}
		valid := func(i int) bool {
			t.Helper()
			c, _, err := l.Users.CertificateOf(ctx, fmt.Sprintf("%04x", i))
			testkit.Must(t, err)
			return c.Revoked.IsZero()
		}
		record(1)
		record(1)
		record(2)
		_, err := l.Users.RevokeCertificate(ctx, "0001", "admin", t0)
		testkit.Must(t, err)
		record(1)
		pgtest.Equal(t, "revoked", fmt.Sprint(valid(1), valid(2)), "false true")
		for i := range maxUserCertificates {
			record(3 + i)
		}
		pgtest.Equal(t, "the oldest", fmt.Sprint(valid(2), valid(3), valid(2+maxUserCertificates)), "false true true")
		record(2)
		pgtest.Equal(t, "the oldest again", valid(2), false)
		pgtest.Equal(t, "audit", strings.Count(actions(t, l, LocalUser), "record certificate"), 2+maxUserCertificates)
	})
}
