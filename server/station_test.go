package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"loadstar/fed/round"
	"loadstar/internal/mtls"
	"loadstar/internal/protocol"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/directory"
	"loadstar/server/pki"
	"loadstar/server/terms"
)

// small is a plan with few weights, for tests that send made-up updates instead of
// training.
const small = "{algorithm: fedavg, rounds: 50, model: {name: fekri2023, lookback: 1, targets: 1, inputs: [load]}, server: {bound: 2, max_examples: 100, clip: 0}, evaluate: {every: 0}}"

// station is a server with its real handler on a real port. Tests can also reach its
// internals.
type station struct {
	testing.TB
	*server
	url      string
	operator v1.OperatorServiceClient
	log      *logged
	stop     func()
}

// logged collects the errors that the server logs. A test fails if there are any.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(p))
	return len(p), nil
}

func newStation(t testing.TB, change func(*Config)) *station {
	t.Helper()
	st := &station{TB: t, log: &logged{}}
	ready := make(chan string, 1)
	c := Config{
		Dir: t.TempDir(), Roles: Roles(), Listen: "127.0.0.1:0", Hosts: []string{"127.0.0.1"}, AgentClients: 10_000,
		Certificates: time.Hour, Lease: 10 * time.Minute, Lead: time.Minute, Poll: 20 * time.Millisecond, MaxPoll: time.Second, Rate: 1000,
		Log: slog.New(slog.NewTextHandler(st.log, &slog.HandlerOptions{Level: slog.LevelError})), Ready: func(at string) { ready <- at },
	}
	if change != nil {
		change(&c)
	}
	st.server = &server{Config: c, registry: prometheus.NewRegistry()}
	ctx, cancel := context.WithCancel(context.Background())
	testkit.Must(t, st.open(ctx))
	ended := make(chan error, 1)
	go func() { ended <- st.serve(ctx) }()
	st.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the server: %v", err)
		}
		st.close()
		for _, line := range st.log.lines {
			t.Errorf("the server logged: %s", line)
		}
	})
	t.Cleanup(st.stop)
	select {
	case at := <-ready:
		st.url = "https://" + at
	case err := <-ended:
		t.Fatal(err)
	}
	st.operator = v1.NewOperatorServiceClient(st.operatorHTTP(), st.url)
	return st
}

// operatorHTTP returns a client with the operator's certificate.
func (st *station) operatorHTTP() *http.Client {
	st.Helper()
	c, err := mtls.ReadFolder(filepath.Join(st.Dir, "operator"))
	testkit.Must(st, err)
	return st.http(c.TLS())
}

func (st *station) http(c *tls.Config) *http.Client {
	return st.patient(mtls.Transport(c))
}

// patient returns a client that waits longer for a response than agents do, because the
// race detector slows the server down on a loaded machine.
func (st *station) patient(t *http.Transport) *http.Client {
	t.ResponseHeaderTimeout = 10 * time.Minute
	h := mtls.Client(t)
	st.Cleanup(h.CloseIdleConnections)
	return h
}

// nobody returns a client without a certificate.
func (st *station) nobody() *http.Client {
	c, err := mtls.ReadFolder(filepath.Join(st.Dir, "operator"))
	testkit.Must(st, err)
	return st.http(&tls.Config{MinVersion: tls.VersionTLS13, RootCAs: mtls.Pool(c.Root)})
}

// raw is an agent without its own logic; the test makes its calls.
type raw struct {
	v1.AgentServiceClient
	st   *station
	id   string
	http *http.Client
	ctx  context.Context
}

func (st *station) token(uses int64) string {
	st.Helper()
	s, err := st.operator.CreateToken(st.Context(), &v1.CreateTokenRequest{Uses: uses, TtlSeconds: 3600})
	testkit.Must(st, err)
	return s.Token
}

// join adds an agent with the given clients. Unlike [station.host], it does not ask the server
// for a certificate, because other tests cover joining.
func (st *station) join(clients ...string) *raw {
	st.Helper()
	return st.joinFor(time.Hour, clients...)
}

// joinFor is like join, with a certificate of the given lifetime.
func (st *station) joinFor(life time.Duration, clients ...string) *raw {
	st.Helper()
	id := strings.ToLower(rand.Text()[:16])
	if st.Hub != nil {
		id = st.Hub.Name + "." + id
	}
	testkit.Must(st, st.ledger.Directory.AddToken(st.Context(), []byte(id), directory.Token{Uses: 1, Expires: time.Now().Add(time.Hour)}, "test", time.Now()))
	testkit.Must(st, st.ledger.Directory.Join(st.Context(), []byte(id), directory.Agent{ID: id, Name: "raw"}, time.Now()))
	h := st.patient(mtls.AgentTransport(st.certified(st.authority, pki.Identity{Role: pki.Agent, ID: id}, life)))
	a := &raw{v1.NewAgentServiceClient(h, st.url, protocol.Client()), st, id, h, st.Context()}
	if len(clients) > 0 {
		s, err := a.Announce(a.ctx, &v1.AnnounceRequest{Clients: clients, StepSeconds: 3600})
		testkit.Must(st, err)
		if len(s.Refused) > 0 {
			st.Fatalf("refused: %v", s.Refused)
		}
	}
	return a
}

// certified returns a TLS configuration with a certificate from an authority.
func (st *station) certified(a *pki.Authority, who pki.Identity, ttl time.Duration) *tls.Config {
	st.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(st, err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	testkit.Must(st, err)
	issued, err := a.Issue(csr, who, ttl)
	testkit.Must(st, err)
	operator, err := mtls.ReadFolder(filepath.Join(st.Dir, "operator"))
	testkit.Must(st, err)
	shown := tls.Certificate{Certificate: issued.Chain[:1], PrivateKey: key}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: mtls.Pool(operator.Root),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil },
	}
}

// start starts a run with all clients that the server knows.
func (st *station) start(plan string) string {
	st.Helper()
	s, err := st.operator.StartRun(st.Context(), &v1.StartRunRequest{Plan: plan})
	testkit.Must(st, err)
	return s.Run
}

// patient is the time for which a test waits for an event that must happen. It is long enough
// for a machine under heavy load.
const patient = 5 * time.Minute

// Push sends a result and returns its outcome.
func (a *raw) Push(ctx context.Context, q *v1.Result) (*v1.Received, error) {
	s, err := a.Exchange(ctx, &v1.ExchangeRequest{Result: q})
	return s.GetReceived(), err
}

// Decline declines turns.
func (a *raw) Decline(ctx context.Context, q *v1.Decline) (*v1.ExchangeResponse, error) {
	return a.Exchange(ctx, &v1.ExchangeRequest{Declines: []*v1.Decline{q}})
}

// task checks in until the agent gets its task in a round of a run.
func (a *raw) task(run string, round int64) (task *v1.Task) {
	a.st.Helper()
	testkit.Eventually(a.st, "there is a task", func() bool {
		s, err := a.Exchange(a.ctx, &v1.ExchangeRequest{})
		testkit.Must(a.st, err)
		i := slices.IndexFunc(s.Tasks, func(t *v1.Task) bool { return t.Run == run && t.Round == round })
		if i >= 0 {
			task = s.Tasks[i]
		}
		return i >= 0
	})
	return task
}

// numbers returns the numbers of a valid update for a run. They depend on the seed.
func (st *station) numbers(run string, seed int) []byte {
	st.Helper()
	t, err := st.terms.Of(st.Context(), run)
	testkit.Must(st, err)
	x := make([]float32, t.Shared)
	for i := range x {
		x[i] = float32(math.Sin(float64(i + 31*seed)))
	}
	return round.AppendFloats(nil, x)
}

// update returns a valid result of one client.
func (st *station) update(task *v1.Task, client string, seed int) *v1.Result {
	st.Helper()
	return whole(&v1.Result{
		Run: task.Run, Round: task.Round, Version: task.Version, Form: v1.Form_FORM_UPDATE,
		Shares: []*v1.Share{{Client: client, Examples: 10, Steps: 2, TrainLoss: 0.5}},
	}, st.numbers(task.Run, seed))
}

// sum returns a valid sum of several clients.
func (st *station) sum(task *v1.Task, clients ...string) *v1.Result {
	st.Helper()
	t, err := st.terms.Of(st.Context(), task.Run)
	testkit.Must(st, err)
	q := &v1.Result{Run: task.Run, Round: task.Round, Version: task.Version, Form: v1.Form_FORM_SUM}
	f := round.NewFold(t.Rules)
	for i, c := range clients {
		x := terms.Share{Client: c, Examples: 10 + i, Steps: 2}
		testkit.Must(st, t.Add(f, &terms.Result{Version: int(task.Version), Numbers: st.numbers(task.Run, i), Shares: []terms.Share{x}}, nil))
		q.Shares = append(q.Shares, &v1.Share{Client: c, Examples: int64(x.Examples), Steps: int64(x.Steps)})
	}
	b, err := round.AppendSums(nil, &f.Sums()[0])
	testkit.Must(st, err)
	return whole(q, b)
}

// whole sets the numbers of a result, as a single chunk.
func whole(q *v1.Result, numbers []byte) *v1.Result {
	q.Checksum, q.Size, q.Offset, q.Chunk = protocol.Checksum(numbers), int64(len(numbers)), 0, numbers
	return q
}

// heard returns the verdict that the agent receives on a turn.
func (a *raw) heard(run string, round int64, client string) v1.Outcome {
	a.st.Helper()
	s, err := a.Exchange(a.ctx, &v1.ExchangeRequest{Pushed: []*v1.Turns{{Run: run, Round: round, Clients: []string{client}}}})
	testkit.Must(a.st, err)
	for _, v := range s.Verdicts {
		if v.Run == run && v.Round == round && slices.Contains(v.Clients, client) {
			return v.Outcome
		}
	}
	return v1.Outcome_OUTCOME_UNSPECIFIED
}

// refused returns the numbers of refused calls by reason, from the metrics.
func (st *station) refused() map[string]float64 {
	st.Helper()
	all := map[string]float64{}
	families, err := st.registry.Gather()
	testkit.Must(st, err)
	for _, f := range families {
		if f.GetName() != "loadstar_gateway_refused_total" {
			continue
		}
		for _, m := range f.Metric {
			all[m.Label[0].GetValue()] = m.GetCounter().GetValue()
		}
	}
	return all
}

// dump returns the content of the ledger as a string, without check-in times, the lead and the
// audit log.
func (st *station) dump() string {
	st.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(st.Dir, ledgerFile)+"?_pragma=busy_timeout(10000)")
	testkit.Must(st, err)
	defer db.Close()
	var b strings.Builder
	for _, table := range []string{
		"tokens", "(SELECT id, name, revoked FROM agents)", "clients", "runs", "members", "versions", "rounds", "leases", "receipts", "partials", "updates",
	} {
		rows, err := db.Query("SELECT * FROM " + table)
		testkit.Must(st, err)
		columns, err := rows.Columns()
		testkit.Must(st, err)
		var lines []string
		for rows.Next() {
			values, into := make([]any, len(columns)), make([]any, len(columns))
			for i := range values {
				into[i] = &values[i]
			}
			testkit.Must(st, rows.Scan(into...))
			lines = append(lines, fmt.Sprintf("%.200q\n", values))
		}
		testkit.Must(st, rows.Err())
		rows.Close()
		slices.Sort(lines)
		fmt.Fprintf(&b, "%s\n%s", table, strings.Join(lines, ""))
	}
	return b.String()
}

// unharmed calls do, and checks that the given number of calls were refused for the given
// reason and that the ledger did not change.
func (st *station) unharmed(what, reason string, times float64, do func()) {
	st.Helper()
	before, counts := st.dump(), st.refused()
	do()
	if got := st.refused()[reason] - counts[reason]; got != times {
		st.Errorf("%s: refused %g times because of %q, want %g", what, got, reason, times)
	}
	for r, n := range st.refused() {
		if r != reason && n != counts[r] {
			st.Errorf("%s: refused because of %q", what, r)
		}
	}
	if after := st.dump(); after != before {
		st.Errorf("%s: the ledger changed from\n%s\nto\n%s", what, before, after)
	}
}

func (st *station) wantCode(what string, err error, want connect.Code) {
	st.Helper()
	if connect.CodeOf(err) != want {
		st.Errorf("%s: %v, want %v", what, err, want)
	}
}
