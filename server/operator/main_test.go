package operator

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/access"
	"loadstar/server/directory"
	"loadstar/server/ledger"
	"loadstar/server/pki"
)

// cluster is the PostgreSQL server of all tests that need one.
var cluster pgtest.Cluster

func TestMain(m *testing.M) { cluster.Main(m) }

// onBoth runs a test on a new database of each kind.
func onBoth(t *testing.T, test func(d *fixture)) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(newFixture(t))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(newFixtureAt(t, cluster.Database(t)))
	})
}

// fixture serves the operators' API with its real handler and a real ledger. A test can set the
// caller; by default, it is the user local with a session.
type fixture struct {
	authority *pki.Authority
	v1.OperatorServiceClient
	*testing.T
	ledger  *ledger.Ledger
	access  *access.Gate
	url     string
	http    *http.Client
	closing chan struct{}

	mu      sync.Mutex
	woken   []string
	revoked []string
	who     *access.Caller
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureAt(t, "sqlite:"+filepath.Join(t.TempDir(), "ledger.db"))
}

func newFixtureAt(t *testing.T, at string) *fixture {
	t.Helper()
	l, err := ledger.Open(t.Context(), at)
	testkit.Must(t, err)
	t.Cleanup(func() { l.Close() })
	authority, err := pki.Open(filepath.Join(t.TempDir(), "pki"), pki.Keys{})
	testkit.Must(t, err)
	d := &fixture{T: t, ledger: l, authority: authority, access: access.New(l.Users, slog.New(slog.DiscardHandler)), closing: make(chan struct{})}
	d.who = d.signIn("local")
	h := New(Config{Ledger: l, Access: d.access, Authority: authority, Page: "http://page.example", Wake: d.wake, Revoked: d.revoke, Explain: explained, Deadline: time.Hour, Closing: d.closing, Log: slog.New(slog.DiscardHandler)}).Handler()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.mu.Lock()
		who := d.who
		d.mu.Unlock()
		if who != nil {
			r = r.WithContext(access.With(r.Context(), *who))
		}
		h.ServeHTTP(w, r)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	d.url, d.http = s.URL, s.Client()
	d.http.Transport.(*http.Transport).TLSClientConfig.MinVersion = tls.VersionTLS13
	d.OperatorServiceClient = v1.NewOperatorServiceClient(d.http, d.url)
	return d
}

// signIn opens a session of a user.
func (d *fixture) signIn(user string) *access.Caller {
	d.Helper()
	code, _, err := d.access.CreateLogin(d.Context(), user, time.Minute, "test", time.Now())
	testkit.Must(d, err)
	cookie, _, err := d.access.Login(d.Context(), code, time.Now())
	testkit.Must(d, err)
	c, err := d.access.Session(d.Context(), cookie, time.Now())
	testkit.Must(d, err)
	return &c
}

// as sets the caller.
func (d *fixture) as(who *access.Caller) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.who = who
}

func (d *fixture) wake(run string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.woken = append(d.woken, run)
}

// revoke implements Config.Revoked. It records a revoked agent and checks that the ledger
// has already stored the revocation.
func (d *fixture) revoke(agent string) {
	if c, err := d.ledger.Directory.Caller(d.Context(), agent); err != nil || !c.Revoked {
		agent += " is not revoked"
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.revoked = append(d.revoked, agent)
}

func (d *fixture) code(what string, err error, want connect.Code) {
	d.Helper()
	if connect.CodeOf(err) != want {
		d.Errorf("%s: %v, want %v", what, err, want)
	}
}

// members adds an agent with the given clients to the ledger.
func (d *fixture) members(agent string, clients ...string) {
	d.Helper()
	ctx := d.Context()
	testkit.Must(d, d.ledger.Directory.AddToken(ctx, []byte(agent), directory.Token{Uses: 1, Expires: time.Now().Add(time.Hour)}, "test", time.Now()))
	testkit.Must(d, d.ledger.Directory.Join(ctx, []byte(agent), directory.Agent{ID: agent, Name: "name of " + agent}, time.Now()))
	_, err := d.ledger.Directory.Announce(ctx, directory.Announcement{Agent: agent, Clients: clients, Step: time.Hour, Most: 1 << 20}, time.Now())
	testkit.Must(d, err)
}
