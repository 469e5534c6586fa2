package directory

import (
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
)

// identities represents an agent whose certificates a test issues and presents.
type identities struct {
	*testing.T
	l   *database
	now time.Time
}

// cert returns a certificate with a serial number that is issued now.
func (x *identities) cert(serial string) Credential { return Credential{serial, x.now} }

// renew issues a certificate to the agent.
func (x *identities) renew(serial string) Credential {
	x.Helper()
	x.now = x.now.Add(time.Second)
	testkit.Must(x, x.l.Directory.Renewed(x.Context(), "agent", x.cert(serial), x.now.Add(time.Hour)))
	return x.cert(serial)
}

// shows presents a certificate to the directory, as a gateway does.
func (x *identities) shows(c Credential, want CredentialState) {
	x.Helper()
	who, err := x.l.Directory.Caller(x.Context(), "agent")
	testkit.Must(x, err)
	got := who.Credential(c, x.now)
	if got != want {
		x.Errorf("certificate %s: %d, want %d", c.Serial, got, want)
	}
	if got == Issued {
		done, err := x.l.Directory.Switch(x.Context(), who, c, x.now)
		testkit.Must(x, err)
		again, err := x.l.Directory.Switch(x.Context(), who, c, x.now)
		testkit.Must(x, err)
		if !done || again {
			x.Errorf("switched %v, again %v", done, again)
		}
	}
}

// TestCredentials checks that an honest agent is never mistaken for a copy, and that a copy is
// detected, at the latest when one of the two machines renews its certificate.
func TestCredentials(t *testing.T) {
	for what, test := range map[string]func(x *identities, first Credential){
		"a renewal": func(x *identities, first Credential) {
			for _, serial := range []string{"2", "3", "4"} {
				next := x.renew(serial)
				x.shows(first, InUse)
				x.shows(next, Issued)
				x.shows(next, InUse)
				x.shows(first, Replaced) // a call that was already in progress
				x.now = x.now.Add(replacedFor)
				x.shows(first, Copied)
				first = next
			}
		},
		"an answer is lost": func(x *identities, first Credential) {
			x.renew("2")
			x.shows(first, InUse)
			x.now = x.now.Add(30 * 24 * time.Hour)
			x.shows(first, InUse)
			next := x.renew("3")
			x.shows(next, Issued)
		},
		"an answer is late": func(x *identities, first Credential) {
			next := x.renew("2")
			x.renew("3") // a gateway handled an older request late; the agent no longer waits
			x.shows(first, InUse)
			x.shows(next, Issued)
			x.shows(next, InUse)
			x.shows(x.renew("4"), Issued)
		},
		"an old copy": func(x *identities, first Credential) {
			next := x.renew("2")
			x.shows(next, Issued)
			x.shows(x.renew("3"), Issued)
			x.shows(first, Copied)
			x.renew("4")
			x.shows(first, Copied)
			x.shows(next, Replaced)
		},
		"a copy renews first": func(x *identities, _ Credential) {
			stolen := x.renew("2")
			own := x.renew("3")
			x.shows(stolen, Issued)
			x.shows(own, Copied)
			x.shows(stolen, InUse)
		},
		"a copy renews last": func(x *identities, _ Credential) {
			own := x.renew("2")
			stolen := x.renew("3")
			x.shows(stolen, Issued)
			x.shows(own, Copied)
		},
	} {
		t.Run(what, func(t *testing.T) {
			l := open(t, "sqlite:"+t.TempDir()+"/ledger.db")
			testkit.Must(t, l.Directory.AddToken(t.Context(), []byte("token"), Token{Uses: 1, Expires: after(time.Hour)}, "test", t0))
			x := &identities{t, l, t0}
			first := x.cert("1")
			testkit.Must(t, l.Directory.Join(t.Context(), []byte("token"), Agent{ID: "agent", Credential: first}, t0))
			x.shows(first, InUse)
			test(x, first)
		})
	}
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) { // an agent that joined before serials were stored
		l := open(t, at)
		testkit.Must(t, l.Directory.AddToken(t.Context(), []byte("token"), Token{Uses: 1, Expires: after(time.Hour)}, "test", t0))
		testkit.Must(t, l.Directory.Join(t.Context(), []byte("token"), Agent{ID: "agent"}, t0))
		x := &identities{t, l, t0}
		x.shows(x.cert("1"), Issued)
		x.shows(x.cert("1"), InUse)
		x.shows(x.renew("2"), Issued)
		x.shows(x.cert("7"), Copied)
		c, err := l.Directory.Caller(t.Context(), "agent")
		testkit.Must(t, err)
		for _, want := range []bool{true, false} {
			first, err := l.Directory.NoteCopy(t.Context(), c, x.cert("7"), after(time.Minute))
			testkit.Must(t, err)
			pgtest.Equal(t, "first", first, want)
		}
		a, err := l.Directory.AgentState(t.Context(), "agent")
		testkit.Must(t, err)
		pgtest.Equal(t, "copied", a.Copied, after(time.Minute))
		events, err := l.Events.Audit(t.Context(), AuditQuery{Actions: []string{"identity copied"}, Limit: 9})
		testkit.Must(t, err)
		if len(events) != 1 || events[0].Detail != "certificate 7 was presented, 2 is in use" {
			t.Errorf("%v", events)
		}
	})
}
