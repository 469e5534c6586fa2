package server

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"loadstar/fed"
	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/fed/round"
	"loadstar/internal/mtls"
	"loadstar/internal/protocol"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/keepers"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// open is a keeper whose keys and rules a test can change. All its members share one key.
type open struct {
	v1.UnimplementedKeeperServiceHandler
	identity ed25519.PrivateKey
	says     *v1.KeeperStatement
	key      mask.Key
	server   *httptest.Server

	mu       sync.Mutex
	refuses  string                               // the rule by which the keeper refuses
	withheld bool                                 // the keeper approves no plan
	newest   int64                                // the newest round that the keeper claims to have released
	releases map[int64][]*v1.KeeperReleaseRequest // by round
	members  []string                             // in the order of their enrolment
	slow     chan struct{}                        // if it is not nil, checks wait until it is closed
	gaveUp   bool                                 // whether the server has given up waiting for a check
}

func newOpen(t testing.TB) *open {
	_, identity, err := ed25519.GenerateKey(nil)
	testkit.Must(t, err)
	_, sealing, err := member.NewSealingKey()
	testkit.Must(t, err)
	k := &open{identity: identity, key: mask.NewKey(), releases: map[int64][]*v1.KeeperReleaseRequest{}}
	k.says = &v1.KeeperStatement{
		Identity: identity.Public().(ed25519.PublicKey), Fleet: "fleet", SealingKey: sealing, Number: 1,
		NotAfter: time.Now().Add(time.Hour).Unix(), Rules: &v1.KeeperRules{Least: 2, Cell: 100, Invited: true},
	}
	k.start(t, "127.0.0.1:0")
	return k
}

func (k *open) start(t testing.TB, at string) {
	mux := http.NewServeMux()
	mux.Handle(v1.NewKeeperServiceHandler(k))
	k.server = httptest.NewUnstartedServer(mux)
	testkit.Must(t, k.server.Listener.Close())
	var err error
	k.server.Listener, err = net.Listen("tcp", at)
	testkit.Must(t, err)
	k.server.TLS, err = mtls.Pinned(k.identity, func([32]byte) bool { return true })
	testkit.Must(t, err)
	k.server.StartTLS()
	t.Cleanup(k.server.Close)
}

func (k *open) address(name string) keepers.Address {
	return keepers.Address{Name: name, URL: k.server.URL, Identity: member.PinOf(k.says.Identity)}
}

func (k *open) State(_ context.Context, q *v1.KeeperStateRequest) (*v1.KeeperStateResponse, error) {
	text, err := member.SignStatement(k.says, k.identity)
	if err != nil {
		return nil, err
	}
	a := &v1.KeeperStateResponse{Statement: &v1.SignedStatement{}}
	if err := proto.Unmarshal(text, a.Statement); err != nil {
		return nil, err
	}
	if q.Run != "" {
		a.Directions = k.key[:]
		k.mu.Lock()
		a.Newest = k.newest
		k.mu.Unlock()
	}
	k.mu.Lock()
	a.Approved = q.Plan != "" && !k.withheld
	k.mu.Unlock()
	a.Signature = member.Sign(k.identity, 1, q, a)
	return a, nil
}

func (k *open) Enrol(_ context.Context, q *v1.KeeperEnrolRequest) (*v1.KeeperEnrolResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := &v1.KeeperEnrolResponse{}
	for _, e := range q.Enrolments {
		k.members = append(k.members, e.Agent)
		a.Receipts = append(a.Receipts, &v1.Receipt{})
	}
	a.Signature = member.Sign(k.identity, 1, q, a)
	return a, nil
}

func (k *open) enrolled() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.members)
}

func (k *open) Release(_ context.Context, q *v1.KeeperReleaseRequest) (*v1.KeeperReleaseResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.releases[q.Round.Round] = append(k.releases[q.Round.Round], q)
	if k.refuses != "" {
		err := connect.NewError(connect.CodeFailedPrecondition, errors.New("refused"))
		d, _ := connect.NewErrorDetail(&v1.KeeperRefusal{Rule: k.refuses, Reason: "said the test"})
		err.AddDetail(d)
		return nil, err
	}
	if err := member.CheckRound(q.Round); err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	sum := make([]uint64, q.Round.Length)
	c := member.Context(k.says, q.Round)
	for _, r := range q.Results {
		if err := member.CheckResult(r); err != nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, err)
		}
		member.Of(c, r)
		seed := k.key.Seed(c, mask.Nonce(r.Nonce))
		seed.Add(sum)
	}
	a := &v1.KeeperReleaseResponse{}
	for _, x := range sum {
		a.Masks = binary.LittleEndian.AppendUint64(a.Masks, x)
	}
	a.Signature = member.Sign(k.identity, 1, q, a)
	return a, nil
}

// Check implements the rule check: norm.
func (k *open) Check(ctx context.Context, q *v1.KeeperCheckRequest) (*v1.KeeperCheckResponse, error) {
	k.mu.Lock()
	slow := k.slow
	k.mu.Unlock()
	if slow != nil {
		select {
		case <-slow:
		case <-ctx.Done():
			k.mu.Lock()
			k.gaveUp = true
			k.mu.Unlock()
		}
	}
	if err := member.CheckRound(q.Round); err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	a := &v1.KeeperCheckResponse{}
	c := member.Context(k.says, q.Round)
	for _, r := range q.Results {
		member.Of(c, r.Result)
		seed, directions, v := k.key.Seed(c, mask.Nonce(r.Result.Nonce)), mask.Seed(k.key), make([]uint64, q.Round.Length)
		seed.Add(v)
		ok, products := true, r.Products
		for _, b := range q.Round.Limits {
			p := directions.Products(v[:b.Length])
			for i := range p {
				p[i] = products[i] - p[i]
			}
			ok = ok && mask.Norm(&p) <= 1.5*float64(b.Limit*r.Result.Clients)
			v, products = v[b.Length:], products[mask.Sketch:]
		}
		a.Accepted = append(a.Accepted, ok)
	}
	a.Signature = member.Sign(k.identity, 1, q, a)
	return a, nil
}

// masked returns a masked result of several clients, with the same updates as in [station.sum].
func (st *station) masked(task *v1.Task, agent string, part int64, keepers []*open, clients ...string) *v1.Result {
	st.Helper()
	return st.maskedTimes(1, task, agent, part, keepers, clients...)
}

// maskedTimes is like masked, with the sum multiplied by a factor.
func (st *station) maskedTimes(factor uint64, task *v1.Task, agent string, part int64, keepers []*open, clients ...string) *v1.Result {
	st.Helper()
	t, err := st.terms.Of(st.Context(), task.Run)
	testkit.Must(st, err)
	f, sizes := round.NewFold(t.Rules), &round.Sizes{}
	for i, c := range clients {
		x := terms.Share{Client: c, Examples: 10 + i, Steps: 2, TrainLoss: 0.5}
		testkit.Must(st, t.Add(f, &terms.Result{Version: int(task.Version), Numbers: st.numbers(task.Run, i), Limits: terms.LimitsOf(task.Limits), Shares: []terms.Share{x}}, nil))
		sizes.Add(&fed.Update{Claimed: x.Examples, Steps: x.Steps, TrainLoss: x.TrainLoss})
	}
	x, err := t.Rules.Vector(t.Shared).Encode(f, sizes)
	testkit.Must(st, err)
	for i := range t.Shared {
		x[i] *= factor
	}
	nonce := mask.NewNonce()
	believed, err := t.MaskedRound(task)
	testkit.Must(st, err)
	for _, k := range keepers {
		c := member.Context(k.says, believed)
		member.Of(c, &v1.MaskedResult{Agent: agent, Part: part, Clients: int64(len(clients))})
		seed := k.key.Seed(c, nonce)
		seed.Add(x)
	}
	q := &v1.Result{Run: task.Run, Round: task.Round, Version: task.Version, Form: v1.Form_FORM_MASKED, Nonce: nonce[:], Part: part}
	for _, c := range clients {
		q.Shares = append(q.Shares, &v1.Share{Client: c})
	}
	return whole(q, round.AppendVector(nil, x))
}

const (
	plainPlan  = "{algorithm: fedavg, rounds: 3, model: {name: fekri2023, lookback: 1, targets: 1, inputs: [load]}, server: {bound: 2, max_examples: 100, clip: 0, weighting: examples}, schedule: {deadline: 12h, quorum: 0.7}, evaluate: {every: 0}}"
	hiddenPlan = "{algorithm: fedavg, rounds: 3, model: {name: fekri2023, lookback: 1, targets: 1, inputs: [load]}, server: {bound: 2, max_examples: 100, clip: 0, weighting: examples}, schedule: {deadline: 12h}, privacy: {mode: private, keepers: [auditor, union], least: 2, check: none}, evaluate: {every: 0}}"
)

// counted pushes a result that must be counted.
func (a *raw) counted(q *v1.Result) {
	a.st.Helper()
	s, err := a.Push(a.ctx, q)
	testkit.Must(a.st, err)
	if s.Outcome != v1.Outcome_OUTCOME_COUNTED {
		a.st.Fatalf("the result is %v: %s", s.Outcome, s.Reason)
	}
}

// weights returns the hash of the blob with the weights of a version of a run.
func (st *station) weights(run string, version int64) (hash string) {
	st.Helper()
	testkit.Eventually(st, "the version is there", func() bool {
		v, err := st.ledger.Version(st.Context(), run, version)
		hash = v.Weights
		return err == nil
	})
	return hash
}

// TestMaskedRounds trains a private plan with two keepers. Its weights equal those of the plain
// plan, even if a keeper is unavailable and the server restarts in the meantime.
func TestMaskedRounds(t *testing.T) {
	both := []*open{newOpen(t), newOpen(t)}
	slices.SortFunc(both, func(a, b *open) int { // in the order in which the server asks them
		x, y := member.PinOf(a.says.Identity), member.PinOf(b.says.Identity)
		return slices.Compare(y[:], x[:])
	})
	change := func(c *Config) { c.Keepers = []keepers.Address{both[0].address("auditor"), both[1].address("union")} }
	st := newStation(t, change)
	a, b := st.join("a0", "a1"), st.join("b0", "b1", "b2")
	testkit.Eventually(t, "both keepers have answered", func() bool {
		s, err := b.Announce(b.ctx, &v1.AnnounceRequest{Clients: []string{"b0", "b1", "b2"}, StepSeconds: 3600})
		testkit.Must(t, err)
		return len(s.Statements) == 2
	})
	plain, hidden := st.start(plainPlan), st.start(hiddenPlan)
	inPlain := func(in int64) {
		t.Helper()
		a.counted(st.sum(a.task(plain, in), "a0", "a1"))
		task := b.task(plain, in)
		b.counted(st.sum(task, "b0", "b1"))
		if in > 1 {
			b.counted(st.sum(task, "b2"))
		}
	}
	inPlain(0)
	b.counted(st.sum(b.task(plain, 0), "b2"))
	inPlain(1) // the round stays open while the ledger is searched
	x, y := a.task(hidden, 0), b.task(hidden, 0)
	wrong := func(what, want string, q *v1.Result, change func(*v1.Result)) {
		t.Helper()
		q = proto.CloneOf(q)
		change(q)
		s, err := b.Push(b.ctx, q)
		testkit.Must(t, err)
		if s.Outcome != v1.Outcome_OUTCOME_REJECTED || !strings.Contains(s.Reason, want) {
			t.Errorf("%s: %v, %s", what, s.Outcome, s.Reason)
		}
	}
	q := st.masked(y, b.id, 0, both, "b0", "b1")
	wrong("a plain update", "the plan is private, and the result is not masked", st.update(y, "b0", 1), func(*v1.Result) {})
	wrong("a short nonce", "the nonce has 15 bytes", q, func(q *v1.Result) { q.Nonce = q.Nonce[1:] })
	wrong("a negative part", "the result is number -1", q, func(q *v1.Result) { q.Part = -1 })
	wrong("a part that keepers refuse", "the result is number 65536 of its agent in the round, want 0 to 65535", q, func(q *v1.Result) { q.Part = member.MaxParts })
	wrong("a short vector", "bytes, want", q, func(q *v1.Result) { whole(q, q.Chunk[8:]) })
	wrong("an example", "contains more than the name of client b1", q, func(q *v1.Result) { q.Shares[1].Examples = 5 })
	wrong("an evaluation", "must not have an evaluation", q, func(q *v1.Result) { q.Evaluation = &v1.Evaluation{Clients: 1} })
	wrong("a client twice", "has the same client twice", q, func(q *v1.Result) { q.Shares[1].Client = "b0" })
	b.counted(q)
	b.counted(q) // the answer to the earlier attempt was lost
	wrong("the same part", "rule part: another result of agent "+b.id+" is number 0 of the round", st.masked(y, b.id, 0, both, "b2"), func(*v1.Result) {})
	b.counted(st.masked(y, b.id, 1, both, "b2"))
	a.counted(st.masked(x, a.id, 0, both, "a0", "a1"))
	same := func(version int64) {
		t.Helper()
		if got, want := st.weights(hidden, version), st.weights(plain, version); got != want {
			t.Errorf("the weights of version %d differ from those of the plain run", version)
		}
	}
	same(1)

	// A keeper does not respond. The round waits, and the server restarts in the meantime.
	at := strings.TrimPrefix(both[1].server.URL, "https://")
	send := func(in int64) {
		t.Helper()
		a.counted(st.masked(a.task(hidden, in), a.id, 0, both, "a0", "a1"))
		task := b.task(hidden, in)
		b.counted(st.masked(task, b.id, 0, both, "b0", "b1"))
		b.counted(st.masked(task, b.id, 1, both, "b2"))
	}
	waits := func() {
		t.Helper()
		testkit.Eventually(st, "the run waits", func() bool {
			r, err := st.operator.GetRun(st.Context(), &v1.GetRunRequest{Run: hidden})
			testkit.Must(t, err)
			return strings.HasPrefix(r.Run.Waits, "keeper union has not answered since 20")
		})
	}
	both[1].server.Close()
	send(1)
	waits()
	for run, there := range map[string]bool{hidden: false, plain: true} {
		for what, found := range st.search(run, "a0") {
			if found != there {
				t.Errorf("the ledger has %s of a client: %v, want %v", what, found, there)
			}
		}
	}
	st.stop()
	st = newStation(t, func(c *Config) { change(c); c.Dir = st.Dir })
	waits()
	both[1].start(t, at)
	a, b = st.again(a), st.again(b)
	b.counted(st.sum(b.task(plain, 1), "b2"))
	inPlain(2)
	same(2)
	both[0].mu.Lock()
	asked := both[0].releases[1]
	both[0].mu.Unlock()
	if len(asked) < 2 || !proto.Equal(asked[0], asked[1]) || len(asked[0].Results) != 3 {
		t.Errorf("the keeper that answers was asked %d times: %v", len(asked), asked)
	}
	send(2)
	same(3)
	if r := st.finished(hidden); r.Reason != "" {
		t.Errorf("the run finished: %s", r.Reason)
	}
	rounds, err := st.ledger.Rounds(t.Context(), hidden, 0, 9)
	testkit.Must(t, err)
	for _, r := range rounds {
		if r.Loss != 0.5 || r.Counted != 5 || r.State != ledger.RoundMerged {
			t.Errorf("round %d is %s, counted %d, with a loss of %g", r.Round, r.State, r.Counted, r.Loss)
		}
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(st.Dir, ledgerFile))
	testkit.Must(t, err)
	defer db.Close()
	for query, want := range map[string]int64{
		"SELECT count(*) FROM receipts WHERE run = $1": 15,
		"SELECT count(*) FROM receipts WHERE run = $1 AND (examples <> 0 OR steps <> 0 OR train_loss <> 0 OR norm <> 0 OR control_norm <> 0)": 0,
		"SELECT count(*) FROM masks WHERE run = $1":          0,
		"SELECT count(*) FROM private_rounds WHERE run = $1": 0,
		"SELECT count(*) FROM partials WHERE run = $1":       0,
	} {
		var n int64
		testkit.Must(t, db.QueryRow(query, hidden).Scan(&n))
		if n != want {
			t.Errorf("%s: %d, want %d", query, n, want)
		}
	}
}

// search looks in the ledger for data of a client that a run must not reveal: numbers from the
// sum that the client's agent has sent, and the sizes of the client's update. It expects the
// updates of [station.sum].
func (st *station) search(run, client string) map[string]bool {
	st.Helper()
	t, err := st.terms.Of(st.Context(), run)
	testkit.Must(st, err)
	f := round.NewFold(t.Rules)
	for i, examples := range []int{10, 11} {
		x := terms.Share{Client: "c", Examples: examples, Steps: 2}
		testkit.Must(st, t.Add(f, &terms.Result{Numbers: st.numbers(run, i), Shares: []terms.Share{x}}, nil))
	}
	wanted, err := round.AppendSums(nil, &f.Sums()[0])
	testkit.Must(st, err)
	wanted = wanted[len(wanted)-400:] // the last fifty numbers
	db, err := sql.Open("sqlite", "file:"+filepath.Join(st.Dir, ledgerFile))
	testkit.Must(st, err)
	defer db.Close()
	found := map[string]bool{"an update": false}
	rows, err := db.Query("SELECT numbers FROM partials WHERE run = $1", run)
	testkit.Must(st, err)
	defer rows.Close()
	for rows.Next() {
		var numbers []byte
		testkit.Must(st, rows.Scan(&numbers))
		for at := 0; at < len(wanted); at += 8 {
			found["an update"] = found["an update"] || bytes.Contains(numbers, wanted[at:at+8])
		}
	}
	testkit.Must(st, rows.Err())
	var examples, steps float64
	testkit.Must(st, db.QueryRow("SELECT max(examples), max(steps) FROM receipts WHERE run = $1 AND client = $2", run, client).Scan(&examples, &steps))
	found["examples"], found["steps"] = examples != 0, steps != 0
	return found
}

// TestRefusedRounds checks that a round is abandoned if a keeper refuses it or its sum is
// impossible, and that the third such round in a row ends the run.
func TestRefusedRounds(t *testing.T) {
	both := []*open{newOpen(t), newOpen(t)}
	st := newStation(t, func(c *Config) {
		c.Keepers = []keepers.Address{both[0].address("auditor"), both[1].address("union")}
	})
	a, b := st.join("a0", "a1"), st.join("b0")
	if _, err := st.operator.StartRun(t.Context(), &v1.StartRunRequest{Plan: strings.Replace(hiddenPlan, "union", "nobody", 1)}); err == nil || !strings.Contains(err.Error(), "the plan needs keeper nobody") {
		t.Errorf("an unknown keeper: %v", err)
	}
	run := st.start(strings.Replace(hiddenPlan, "rounds: 3", "rounds: 9", 1))
	show := func() *v1.Run {
		r, err := st.operator.GetRun(t.Context(), &v1.GetRunRequest{Run: run})
		testkit.Must(t, err)
		return r.Run
	}
	for i, x := range []struct {
		refuses, want string
		masks         []*open
	}{
		{"", "round 1 was abandoned: the sum of the results is impossible", both[:1]},
		{"quorum", "round 2 was abandoned: keeper union refused: quorum: said the test", both},
		{"", "", both},
		{"", "round 4 was abandoned: the sum of the results is impossible", both[1:]},
		{"least", "round 5 was abandoned: keeper union refused: least: said the test", both},
		{"least", "3 rounds in a row could not be unmasked; round 6 was abandoned: keeper union refused: least", both},
	} {
		both[1].mu.Lock()
		both[1].refuses = x.refuses
		both[1].mu.Unlock()
		a.counted(st.masked(a.task(run, int64(i)), a.id, 0, x.masks, "a0", "a1"))
		b.counted(st.masked(b.task(run, int64(i)), b.id, 0, x.masks, "b0"))
		testkit.Eventually(st, "the round is over", func() bool { r := show(); return r.Round > int64(i) || r.State == "failed" })
		if r := show(); !strings.HasPrefix(r.Reason, x.want) || x.want == "" && r.Reason != "" {
			t.Errorf("round %d: %s, %s", i+1, r.State, r.Reason)
		}
	}
	if r := show(); r.State != "failed" || r.Version != 1 {
		t.Errorf("the run is %s at version %d", r.State, r.Version)
	}
}

// TestTooFewAgents checks that a run with fewer agents than a sum needs does not begin, that
// its reason explains what to write in the plan, and that it begins when there are more agents.
func TestTooFewAgents(t *testing.T) {
	t.Parallel()
	k := newOpen(t)
	k.says.Rules.Least = 3
	st := newStation(t, func(c *Config) {
		c.Keepers, c.Log = []keepers.Address{k.address("auditor")}, slog.New(slog.DiscardHandler)
	})
	var clients []string
	for i := range 30 {
		clients = append(clients, fmt.Sprintf("a%02d", i))
	}
	st.join(clients[:20]...)
	st.join(clients[20:]...)
	testkit.Eventually(t, "the keeper has answered", func() bool { return st.keepers.Least("auditor") == 3 })
	alone := strings.ReplaceAll(hiddenPlan, ", union", "")
	state := func(run string) *v1.Run {
		r, err := st.operator.GetRun(t.Context(), &v1.GetRunRequest{Run: run})
		testkit.Must(t, err)
		return r.Run
	}
	runs := map[string]string{}
	for plan, want := range map[string]string{
		strings.ReplaceAll(alone, "least: 2, ", ""): "2 agents can take part, and a round needs at least 20 for its sum; wait for more agents, or lower privacy.least",
		alone: "2 agents can take part, and a round needs at least 3, because keeper auditor releases no sum of fewer than 3",
		strings.NewReplacer("least: 2", "least: 4", "check: none", "check: norm", "clip: 0", "clip: 1.5, robust: nearest").Replace(alone): "2 agents can take part, and a round needs at least 5 for its sum",
	} {
		run := st.start(plan)
		runs[plan] = run
		testkit.Eventually(t, "the run says what it waits for", func() bool { return strings.HasPrefix(state(run).Reason, want) })
		if rounds, err := st.ledger.Rounds(t.Context(), run, 0, 9); err != nil || len(rounds) > 0 || state(run).State != "waiting" {
			t.Errorf("%d rounds, %s, %v", len(rounds), state(run).State, err)
		}
	}
	st.join("b0")
	testkit.Eventually(t, "the run begins with three agents", func() bool { return state(runs[alone]).State == "running" })
}

// TestRoundsWait checks that a run whose plan no keeper has approved asks no clients, and that
// a temporary refusal does not make the run abandon a round. In both cases the run waits, and
// no round is lost.
func TestRoundsWait(t *testing.T) {
	k := []*open{newOpen(t)}
	set := func(withheld bool, refuses string) {
		k[0].mu.Lock()
		defer k[0].mu.Unlock()
		k[0].withheld, k[0].refuses = withheld, refuses
	}
	set(true, "daily")
	var log logged
	st := newStation(t, func(c *Config) {
		c.Keepers, c.Log = []keepers.Address{k[0].address("auditor")}, slog.New(slog.NewTextHandler(&log, nil))
	})
	a, b := st.join("a0", "a1"), st.join("b0")
	run := st.start(strings.ReplaceAll(hiddenPlan, ", union", ""))
	waits := func(want string) {
		t.Helper()
		testkit.Eventually(t, "the run waits", func() bool {
			r, err := st.operator.GetRun(t.Context(), &v1.GetRunRequest{Run: run})
			testkit.Must(t, err)
			if r.Run.Round != 0 || r.Run.State == "failed" {
				t.Fatalf("the run is %s in round %d: %s", r.Run.State, r.Run.Round+1, r.Run.Reason)
			}
			return strings.Contains(r.Run.Waits, want)
		})
	}
	waits("keeper auditor has not approved plan")
	if leases, err := st.ledger.Counter.OpenLeases(t.Context(), run); err != nil || len(leases) > 0 {
		t.Errorf("%d clients train a plan that is not approved, %v", len(leases), err)
	}
	set(false, "daily")
	a.counted(st.masked(a.task(run, 0), a.id, 0, k, "a0", "a1"))
	b.counted(st.masked(b.task(run, 0), b.id, 0, k, "b0"))
	begun := time.Now()
	waits("keeper auditor refused: daily")
	time.Sleep(3 * time.Second) // much longer than a merge
	waited := time.Since(begun)
	set(false, "")
	st.weights(run, 1)
	testkit.Eventually(t, "the merge is measured", func() bool { return st.merges().GetSampleCount() == 1 })
	if took := st.merges().GetSampleSum(); took >= waited.Seconds() {
		t.Errorf("loadstar_merge_seconds is %g and includes the wait of %v for the keeper", took, waited)
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	for message, loss := range map[string]string{"round closed": "", "round unmasked": "loss=0.5"} {
		i := slices.IndexFunc(log.lines, func(line string) bool { return strings.Contains(line, message) })
		if i < 0 || !strings.Contains(log.lines[i], loss) || loss == "" && strings.Contains(log.lines[i], "loss=") {
			t.Errorf("the log of %q is not right: %q", message, log.lines)
		}
	}
}

// merges returns the histogram of merges.
func (st *station) merges() *dto.Histogram {
	st.Helper()
	families, err := st.registry.Gather()
	testkit.Must(st, err)
	for _, f := range families {
		if f.GetName() == "loadstar_merge_seconds" {
			return f.Metric[0].GetHistogram()
		}
	}
	return nil
}

// TestRoundsOfABackup checks that a server that is restored from a backup does not repeat
// rounds that the keeper has released, but continues after them.
func TestRoundsOfABackup(t *testing.T) {
	k := []*open{newOpen(t)}
	st := newStation(t, func(c *Config) { c.Keepers = []keepers.Address{k[0].address("auditor")} })
	a, b := st.join("a0", "a1"), st.join("b0")
	run := st.start(strings.NewReplacer("rounds: 3", "rounds: 9", ", union", "").Replace(hiddenPlan))
	k[0].mu.Lock()
	k[0].refuses, k[0].newest = "once", 4
	k[0].mu.Unlock()
	a.counted(st.masked(a.task(run, 0), a.id, 0, k, "a0", "a1"))
	b.counted(st.masked(b.task(run, 0), b.id, 0, k, "b0"))
	x, y := a.task(run, 5), b.task(run, 5)
	k[0].mu.Lock()
	k[0].refuses = ""
	k[0].mu.Unlock()
	a.counted(st.masked(x, a.id, 0, k, "a0", "a1"))
	b.counted(st.masked(y, b.id, 0, k, "b0"))
	st.weights(run, 1)
}

// TestCheckedResults checks that a result counts only after the keeper has checked its norm.
func TestCheckedResults(t *testing.T) {
	k := []*open{newOpen(t)}
	st := newStation(t, func(c *Config) { c.Keepers = []keepers.Address{k[0].address("auditor")} })
	a, b, c := st.join("a0", "a1", "a2", "a3"), st.join("b0"), st.join("c0", "c1")
	checked := strings.NewReplacer("check: none", "check: norm", "clip: 0", "clip: 1.5", ", union", "")
	run := st.start(checked.Replace(hiddenPlan))
	x, y, z := a.task(run, 0), b.task(run, 0), c.task(run, 0)
	for what, q := range map[string]*v1.Result{
		"far beyond the limit": st.maskedTimes(1000, z, c.id, 0, k, "c0"),
		"a wrong mask":         st.masked(z, c.id, 1, []*open{newOpen(t)}, "c1"),
	} {
		s, err := c.Push(c.ctx, q)
		testkit.Must(t, err)
		if s.Outcome != v1.Outcome_OUTCOME_REJECTED || !strings.Contains(s.Reason, "the check of keeper auditor refused the result") {
			t.Errorf("%s: %v, %s", what, s.Outcome, s.Reason)
		}
	}
	// A refusal ends the turn. The agent makes no second attempt, and the round does not wait
	// for the client.
	if s, err := c.Push(c.ctx, st.masked(z, c.id, 2, k, "c0")); err == nil && s.Outcome == v1.Outcome_OUTCOME_COUNTED {
		t.Error("after a refusal another result of the client counts")
	}
	a.counted(st.masked(x, a.id, 0, k, "a0", "a1", "a2", "a3"))
	b.counted(st.masked(y, b.id, 0, k, "b0"))
	st.weights(run, 1)

	// While the keeper does not respond, results wait.
	at := strings.TrimPrefix(k[0].server.URL, "https://")
	x, y, z = a.task(run, 1), b.task(run, 1), c.task(run, 1)
	c.counted(st.masked(z, c.id, 0, k, "c0", "c1"))
	k[0].server.Close()
	pushed := make(chan *v1.Received, 1)
	go func() {
		q := st.masked(y, b.id, 0, k, "b0")
		s, err := b.Push(b.ctx, q)
		for connect.CodeOf(err) == connect.CodeUnavailable || s.GetOutcome() == v1.Outcome_OUTCOME_UNKNOWN { // until the result has waited too long
			s, err = b.Push(b.ctx, q)
		}
		if err != nil {
			t.Error(err)
		}
		pushed <- s
	}()
	testkit.Eventually(st, "the result waits", func() bool { return st.keepers.Known() != nil && st.waiting() == 1 })
	// A result without its numbers does not wait. Its agent keeps the result and learns when to
	// ask again.
	offer := st.masked(x, a.id, 0, k, "a0", "a1", "a2", "a3")
	offer.Chunk = nil
	testkit.Eventually(st, "the server has noticed", func() bool { _, err := st.keepers.Statements([]string{"auditor"}); return err != nil })
	s, err := a.Exchange(a.ctx, &v1.ExchangeRequest{Result: offer})
	testkit.Must(t, err)
	if s.Received.Outcome != v1.Outcome_OUTCOME_UNKNOWN || s.NextContactMs < 5000 || len(s.Tasks)+len(s.Verdicts) > 0 {
		t.Errorf("without its numbers: %v", s)
	}
	k[0].start(t, at)
	if s := <-pushed; s.GetOutcome() != v1.Outcome_OUTCOME_COUNTED {
		t.Errorf("after the keeper's return: %v", s)
	}
	if s, err := a.Push(a.ctx, offer); err != nil || s.Outcome != v1.Outcome_OUTCOME_PART || s.NextOffset != 0 {
		t.Errorf("without its numbers, after the keeper's return: %v, %v", s, err)
	}
	a.counted(st.masked(x, a.id, 0, k, "a0", "a1", "a2", "a3"))
	st.weights(run, 2)
}

// TestSlowKeeper checks that the results of other runs do not wait for a keeper that takes long to
// check a result.
func TestSlowKeeper(t *testing.T) {
	k, other := newOpen(t), newOpen(t)
	st := newStation(t, func(c *Config) {
		c.Keepers = []keepers.Address{k.address("auditor"), other.address("union")}
	})
	a, b := st.join("a0", "a1"), st.join("b0", "b1")
	checked := strings.NewReplacer("check: none", "check: norm", "clip: 0", "clip: 1.5", ", union", "").Replace(hiddenPlan)
	slow, quick, plain := st.start(checked), st.start(strings.Replace(checked, "auditor", "union", 1)), st.start(plainPlan)
	k.mu.Lock()
	k.slow = make(chan struct{})
	k.mu.Unlock()
	waits := st.masked(a.task(slow, 0), a.id, 0, []*open{k}, "a0", "a1")
	others := []*v1.Result{st.sum(b.task(plain, 0), "b0", "b1"), st.masked(b.task(quick, 0), b.id, 0, []*open{other}, "b0", "b1")}
	done := make(chan error, 1)
	go func() {
		s, err := a.Push(a.ctx, waits)
		if err == nil && s.Outcome != v1.Outcome_OUTCOME_COUNTED {
			err = errors.New(s.String())
		}
		done <- err
	}()
	testkit.Eventually(t, "the result waits", func() bool { return st.waiting() == 1 })
	for _, q := range others {
		b.counted(q)
	}
	close(k.slow)
	testkit.Must(t, <-done)
	if k.mu.Lock(); k.gaveUp {
		t.Error("other results were counted only after the server had given up waiting for the keeper")
	}
	k.mu.Unlock()
}

// waiting returns the number of results that wait to be counted.
func (st *station) waiting() (n float64) {
	families, err := st.registry.Gather()
	testkit.Must(st, err)
	for _, f := range families {
		if f.GetName() == "loadstar_gateway_waiting" {
			n = f.Metric[0].GetGauge().GetValue()
		}
	}
	return n
}

// again returns the agent, connected to another server with the same ledger.
func (st *station) again(a *raw) *raw {
	return &raw{v1.NewAgentServiceClient(a.http, st.url, protocol.Client()), st, a.id, a.http, st.Context()}
}
