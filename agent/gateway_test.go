package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/internal/protocol"
	loadstarv1 "loadstar/proto/loadstar/v1"
)

// gateway is an in-process server that adds up updates exactly and injects network and
// server faults. It logs the counted updates, so that a test can repeat the training
// without agents.
type gateway struct {
	loadstarv1.UnimplementedAgentServiceHandler
	t    testing.TB
	http *httptest.Server

	mu    sync.Mutex
	rng   *rand.Rand
	chaos chaos

	run     string
	text    []byte
	plan    *fed.Plan
	parts   *recipe.Composition
	rules   round.Rules
	fleet   []string
	fold    bool
	machine *round.Server
	sums    *round.Fold
	blobs   map[string][]byte
	task    fed.Task // task of the current round
	cohort  int

	round   int64
	agents  map[string]bool   // agents that have announced clients
	hosts   map[string]string // agent that hosts each client
	asked   map[string]bool   // clients with an open turn in this round
	held    map[string]*held  // accepted but uncounted results, by client
	uploads map[string][]byte // partial results, by agent and hash
	log     []merged          // all closed rounds
	slow    map[string]bool   // clients whose results are refused, so that the round closes without them

	// Statistics that tests check.
	forms    map[loadstarv1.Form]int
	gets     map[string]int // number of downloads, by agent and blob
	ranges   int
	counts   map[string]int // number of calls, by procedure
	declined []string
	said     []said
	done     chan struct{}
}

// said records a check-in of an agent.
type said struct {
	agent string
	*loadstarv1.ExchangeRequest
}

// chaos holds the probability of each kind of fault.
type chaos struct {
	request, reply float64 // requests and replies that are lost
	cut            float64 // downloads that are cut off
	forget         float64 // accepted results that are lost
	late           float64 // rounds that close without some clients
	unannounced    float64 // check-ins after which the server has forgotten the agent's clients
	slowCount      float64 // results that are counted only when an agent asks for the verdict
}

// held is a result that the gateway has accepted but not counted.
type held struct{ request *loadstarv1.Result }

// merged is the log entry of a closed round.
type merged struct {
	round   int64
	version int
	counted []string
	shared  []float32 // shared weights after the merge
}

// newGateway returns a server with one run of the plan, whose first round is open.
func newGateway(t testing.TB, plan settings, fleet []string, cohort int, fold bool, seed uint64) *gateway {
	t.Helper()
	g := &gateway{
		t: t, rng: rand.New(rand.NewPCG(seed, 7)), run: "run-1", fleet: slices.Sorted(slices.Values(fleet)), fold: fold, cohort: cohort,
		blobs: map[string][]byte{}, agents: map[string]bool{}, hosts: map[string]string{}, asked: map[string]bool{}, held: map[string]*held{}, uploads: map[string][]byte{},
		slow: map[string]bool{}, forms: map[loadstarv1.Form]int{}, gets: map[string]int{}, counts: map[string]int{}, done: make(chan struct{}),
	}
	g.text = plan.text(t)
	g.plan, g.parts, g.machine = compose(t, g.text, len(fleet))
	g.rules = round.Rules{Needs: g.parts.Needs, Scale: g.parts.Scale, Control: g.parts.Control, Weight: g.parts.Weight, WeightControl: g.parts.WeightControl}
	g.sums = round.NewFold(g.rules)
	g.open()
	g.http = httptest.NewServer(g)
	t.Cleanup(g.http.Close)
	return g
}

// compose reads a plan and returns its components and a server at version 0.
func compose(t testing.TB, text []byte, fleet int) (*fed.Plan, *recipe.Composition, *round.Server) {
	t.Helper()
	p, err := recipe.Read(text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	parts, err := recipe.Compose(p, fleet)
	if err != nil {
		t.Fatal(err)
	}
	q, err := recipe.Frame(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	shared := make([]float32, q.SharedLen())
	q.Partition.Cut(q.Model.InitialWeights(p.Seed), q.SharedWeights(shared), make([]float32, q.Partition.PersonalLen()))
	return p, parts, round.NewServer(parts.NewAggregator(), parts.NewOptimizer(), fleet, shared)
}

// open opens the next round and selects its clients.
func (g *gateway) open() {
	g.task = g.machine.Task(int(g.round))
	clear(g.asked)
	clear(g.slow)
	for _, i := range g.rng.Perm(len(g.fleet))[:g.cohort] {
		g.asked[g.fleet[i]] = true
	}
	// With sums, all clients of one agent are late, because their sum arrives late as a whole.
	agent := g.rng.IntN(2)
	for i, c := range g.fleet {
		if g.asked[c] && i%2 == agent && (g.fold || g.rng.Float64() < 0.5) {
			g.slow[c] = true
		}
	}
	if g.rng.Float64() >= g.chaos.late || len(g.slow) == len(g.asked) {
		clear(g.slow)
	}
}

func (g *gateway) put(data []byte) string {
	sum := sha256.Sum256(data)
	hash := hex.EncodeToString(sum[:])
	g.blobs[hash] = data
	return hash
}

// inject sets the probabilities of faults. The gateway may already be serving requests,
// because agents of another test may connect to a reused port.
func (g *gateway) inject(c chaos) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.chaos = c
}

// ServeHTTP drops requests and replies at random.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	g.counts[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]]++
	request, reply := g.rng.Float64() < g.chaos.request, g.rng.Float64() < g.chaos.reply
	g.mu.Unlock()
	if request {
		panic(http.ErrAbortHandler)
	}
	if reply {
		g.handle(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	}
	g.handle(w, r)
}

func (g *gateway) handle(w http.ResponseWriter, r *http.Request) {
	if hash, ok := strings.CutPrefix(r.URL.Path, "/v1/blobs/"); ok {
		g.blob(w, r, hash)
		return
	}
	_, h := loadstarv1.NewAgentServiceHandler(g, connect.WithInterceptors(protocol.Server()))
	h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), agentKey{}, r.Header.Get("X-Agent"))))
}

type agentKey struct{}

func caller(ctx context.Context) string { return ctx.Value(agentKey{}).(string) }

// blob serves a blob or a byte range of a blob.
func (g *gateway) blob(w http.ResponseWriter, r *http.Request, hash string) {
	g.mu.Lock()
	data, ok := g.blobs[hash]
	cut := g.rng.Float64() < g.chaos.cut
	at := g.rng.IntN(len(data) + 1)
	g.gets[r.Header.Get("X-Agent")+" "+hash]++
	if r.Header.Get("Range") != "" {
		g.ranges++
	}
	g.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	if cut {
		w = &cutter{ResponseWriter: w, left: at}
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

// cutter closes a connection after a given number of bytes.
type cutter struct {
	http.ResponseWriter
	left int
}

func (c *cutter) Write(p []byte) (int, error) {
	if len(p) > c.left {
		c.ResponseWriter.Write(p[:c.left])
		c.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	c.left -= len(p)
	return c.ResponseWriter.Write(p)
}

func (g *gateway) Announce(ctx context.Context, r *loadstarv1.AnnounceRequest) (*loadstarv1.AnnounceResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.agents[caller(ctx)] = true
	for _, c := range r.Clients {
		g.hosts[c] = caller(ctx)
	}
	return &loadstarv1.AnnounceResponse{}, nil
}

func (g *gateway) Exchange(ctx context.Context, r *loadstarv1.ExchangeRequest) (*loadstarv1.ExchangeResponse, error) {
	return exchange(ctx, g, r)
}

func (g *gateway) answer(ctx context.Context, r *loadstarv1.ExchangeRequest) (*loadstarv1.ExchangeResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	agent := caller(ctx)
	if g.rng.Float64() < g.chaos.unannounced {
		maps.DeleteFunc(g.hosts, func(_, a string) bool { return a == agent })
	}
	if !slices.Contains(slices.Collect(maps.Values(g.hosts)), agent) {
		return &loadstarv1.ExchangeResponse{NextContactMs: 5, Announce: true}, nil
	}
	g.said = append(g.said, said{agent, r})
	a := &loadstarv1.ExchangeResponse{NextContactMs: 5}
	named := map[string]bool{}
	for _, t := range r.Training {
		for _, c := range t.Clients {
			if t.Round == g.round {
				named[c] = true
			} else {
				a.Verdicts = append(a.Verdicts, &loadstarv1.Verdict{Run: t.Run, Round: t.Round, Clients: []string{c}, Outcome: g.outcome(t.Round, c)})
			}
		}
	}
	for _, t := range r.Pushed {
		for _, c := range t.Clients {
			o := g.outcome(t.Round, c)
			a.Verdicts = append(a.Verdicts, &loadstarv1.Verdict{Run: t.Run, Round: t.Round, Clients: []string{c}, Outcome: o})
			if t.Round == g.round {
				named[c] = true
			}
		}
	}
	if int(g.round) >= g.plan.Rounds {
		return a, nil
	}
	task := &loadstarv1.Task{
		Run: g.run, Round: g.round, Version: int64(g.task.Version), Plan: g.put(g.text), Weights: g.put(round.AppendFloats(nil, g.task.Shared)),
		LeaseMs: 60000, Fold: g.fold, Fleet: int64(len(g.fleet)),
	}
	if g.rules.Needs.Control {
		task.Control = g.put(round.AppendFloats(nil, g.task.Control))
	}
	for c := range g.asked {
		if g.hosts[c] == agent && !named[c] && g.held[c] == nil {
			task.Clients = append(task.Clients, c)
		}
	}
	slices.Sort(task.Clients)
	if len(task.Clients) > 0 {
		a.Tasks = append(a.Tasks, task)
	}
	return a, nil
}

// outcome returns the outcome of a client's turn. If the turn's result is held, outcome may
// count it first.
func (g *gateway) outcome(r int64, client string) loadstarv1.Outcome {
	if r != g.round {
		for _, m := range g.log {
			if m.round == r && slices.Contains(m.counted, client) {
				return loadstarv1.Outcome_OUTCOME_COUNTED
			}
		}
		return loadstarv1.Outcome_OUTCOME_CLOSED
	}
	if h := g.held[client]; h != nil {
		if g.rng.Float64() < g.chaos.forget {
			for _, s := range h.request.Shares {
				delete(g.held, s.Client)
			}
			return loadstarv1.Outcome_OUTCOME_UNKNOWN
		}
		g.count(h.request)
		return loadstarv1.Outcome_OUTCOME_ACCEPTED // the next check-in reports it as counted
	}
	if g.asked[client] {
		return loadstarv1.Outcome_OUTCOME_UNKNOWN
	}
	return loadstarv1.Outcome_OUTCOME_COUNTED
}

func (g *gateway) receive(ctx context.Context, r *loadstarv1.Result) (*loadstarv1.Received, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	agent := caller(ctx)
	reject := func(format string, x ...any) (*loadstarv1.Received, error) {
		g.t.Errorf("rejected: "+format, x...)
		return &loadstarv1.Received{Outcome: loadstarv1.Outcome_OUTCOME_REJECTED, Reason: fmt.Sprintf(format, x...)}, nil
	}
	if len(r.Shares) == 0 || r.Run != g.run {
		return reject("a result of %d clients of run %s", len(r.Shares), r.Run)
	}
	known := 0
	for _, s := range r.Shares {
		if g.hosts[s.Client] != agent && g.hosts[s.Client] != "" {
			return reject("client %s is not that of %s", s.Client, agent)
		}
		if r.Round == g.round && (g.asked[s.Client] || g.held[s.Client] != nil) {
			known++
		}
	}
	switch o := g.outcomeOf(r); {
	case known == 0:
		return &loadstarv1.Received{Outcome: o}, nil
	case known != len(r.Shares):
		return reject("%d of %d clients", known, len(r.Shares))
	case g.held[r.Shares[0].Client] != nil:
		return &loadstarv1.Received{Outcome: loadstarv1.Outcome_OUTCOME_ACCEPTED}, nil
	}
	key := fmt.Sprint(agent, " ", r.Checksum)
	have := g.uploads[key]
	if r.Offset != int64(len(have)) {
		return &loadstarv1.Received{Outcome: loadstarv1.Outcome_OUTCOME_PART, NextOffset: int64(len(have))}, nil
	}
	have = append(have, r.Chunk...)
	if int64(len(have)) < r.Size {
		g.uploads[key] = have
		return &loadstarv1.Received{Outcome: loadstarv1.Outcome_OUTCOME_PART, NextOffset: int64(len(have))}, nil
	}
	delete(g.uploads, key)
	if protocol.Checksum(have) != r.Checksum {
		return reject("another hash")
	}
	r.Chunk = have
	for _, s := range r.Shares {
		if g.slow[s.Client] { // this client is late, so all other clients are counted first
			return &loadstarv1.Received{Outcome: loadstarv1.Outcome_OUTCOME_PART}, nil
		}
	}
	if g.rng.Float64() < g.chaos.slowCount {
		for _, s := range r.Shares {
			g.held[s.Client] = &held{r}
		}
		return &loadstarv1.Received{Outcome: loadstarv1.Outcome_OUTCOME_ACCEPTED}, nil
	}
	g.count(r)
	return &loadstarv1.Received{Outcome: loadstarv1.Outcome_OUTCOME_COUNTED}, nil
}

// outcomeOf returns the outcome of a result, which must be the same for all its clients.
func (g *gateway) outcomeOf(r *loadstarv1.Result) loadstarv1.Outcome {
	if r.Round == g.round {
		return loadstarv1.Outcome_OUTCOME_COUNTED
	}
	return g.outcome(r.Round, r.Shares[0].Client)
}

// count adds a result and closes the round if it was the last one.
func (g *gateway) count(r *loadstarv1.Result) {
	g.forms[r.Form]++
	switch r.Form {
	case loadstarv1.Form_FORM_UPDATE:
		s := r.Shares[0]
		u := fed.Update{Client: fed.ClientID(s.Client), Version: int(r.Version), Examples: int(s.Examples), Loss: s.Loss}
		if err := g.rules.ReadUpdate(&u, r.Chunk, len(g.task.Shared)); err != nil {
			g.t.Error(err)
		}
		if err := g.sums.Add(&u, g.task.Shared); err != nil {
			g.t.Error(err)
		}
	case loadstarv1.Form_FORM_SUM:
		if n, _, err := g.sums.AddSums(int(r.Version), len(g.task.Shared), r.Chunk); err != nil || n != len(r.Shares) || n < 3 || !g.fold {
			g.t.Errorf("a sum of %d for %d shares: %v", n, len(r.Shares), err)
		}
	}
	for _, s := range r.Shares {
		if !g.asked[s.Client] {
			g.t.Errorf("client %s is counted twice", s.Client)
		}
		if s.Steps < 1 || s.Examples < 1 || s.TrainLoss <= 0 {
			g.t.Errorf("a share of %v", s)
		}
		delete(g.asked, s.Client)
		delete(g.held, s.Client)
		g.counted(s.Client)
	}
	g.close()
}

func (g *gateway) counted(client string) {
	if n := len(g.log); n == 0 || g.log[n-1].round != g.round {
		g.log = append(g.log, merged{round: g.round, version: g.task.Version})
	}
	m := &g.log[len(g.log)-1]
	m.counted = append(m.counted, client)
}

// close closes the round if only slow clients have open turns.
func (g *gateway) close() {
	for c := range g.asked {
		if !g.slow[c] {
			return
		}
	}
	if err := g.machine.Merge(int(g.round), g.sums, nil); err != nil {
		g.t.Error(err)
	}
	g.sums.Reset()
	clear(g.held)
	if len(g.log) == 0 || g.log[len(g.log)-1].round != g.round {
		g.t.Error("a round without anybody")
	}
	g.log[len(g.log)-1].shared = g.machine.Shared()
	g.round++
	if len(g.log) == g.plan.Rounds {
		clear(g.asked)
		close(g.done)
		return
	}
	g.open()
}

func (g *gateway) decline(r *loadstarv1.Decline) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range r.Turns.Clients {
		g.declined = append(g.declined, c+": "+r.Reason)
		if r.Turns.Round == g.round && g.asked[c] {
			delete(g.asked, c)
		}
	}
	if len(g.log) > 0 && g.log[len(g.log)-1].round == g.round {
		g.close()
	}
}
