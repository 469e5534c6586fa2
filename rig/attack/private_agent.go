package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"loadstar/agent"
	"loadstar/fed/mask"
	"loadstar/fed/policy"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/internal/protocol"
	"loadstar/nn/kernel"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/rig/leak"
	"loadstar/rig/product"
	"loadstar/series"
	"loadstar/server/terms"
)

// caller is one of the lying server's agents. It is an agent of this tree in this process,
// together with the server's data for it.
type caller struct {
	v1.UnimplementedAgentServiceHandler
	name      string
	v         *vault
	statement []byte
	blobs     map[string][]byte // the blobs of all agents
	clients   []string

	mu       sync.Mutex
	receipt  bool     // the agent was sent a receipt
	enrolled bool     // the agent has called again since the receipt
	task     *v1.Task // nil once it is answered
	result   *v1.Result
	reason   string
}

func (c *caller) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if hash, ok := strings.CutPrefix(r.URL.Path, "/v1/blobs/"); ok {
		c.mu.Lock()
		data := c.blobs[hash]
		c.mu.Unlock()
		_, _ = w.Write(data) // the agent has disconnected and needs no answer
		return
	}
	_, h := v1.NewAgentServiceHandler(c, connect.WithInterceptors(protocol.Server()))
	h.ServeHTTP(w, r)
}

// Announce names the keeper.
func (c *caller) Announce(context.Context, *v1.AnnounceRequest) (*v1.AnnounceResponse, error) {
	return &v1.AnnounceResponse{Statements: [][]byte{c.statement}}, nil
}

// Exchange forwards enrolments. It returns the task until the agent has sent a result or a
// reason to decline.
func (c *caller) Exchange(ctx context.Context, r *v1.ExchangeRequest) (*v1.ExchangeResponse, error) {
	a := &v1.ExchangeResponse{NextContactMs: 20}
	for _, e := range r.Enrolments {
		k, err := c.v.Enrol(ctx, &v1.KeeperEnrolRequest{Fleet: keptFleet, Enrolments: []*v1.KeeperEnrolment{{Agent: c.name, Sealed: e.Sealed}}})
		if err != nil {
			return nil, err
		}
		a.Receipts = append(a.Receipts, k.Receipts...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enrolled = c.enrolled || c.receipt && len(r.Enrolments) == 0
	c.receipt = c.receipt || len(a.Receipts) > 0
	for _, d := range r.Declines {
		if c.task != nil && d.Turns.GetRun() == c.task.Run {
			c.task, c.reason = nil, d.Reason
		}
	}
	if u := r.Result; u != nil {
		if int64(len(u.Chunk)) < u.Size {
			return nil, errors.New("the result has several parts")
		}
		if c.task != nil && u.Run == c.task.Run {
			c.task, c.result = nil, u
		}
		a.Received = &v1.Received{Outcome: v1.Outcome_OUTCOME_COUNTED}
	}
	if c.task != nil && len(r.Training)+len(r.Pushed) == 0 {
		a.Tasks = []*v1.Task{c.task}
	}
	return a, nil
}

// train gives the agent a task. It returns the agent's result, or the reason why the agent
// declines.
func (c *caller) train(ctx context.Context, t *v1.Task) (result *v1.Result, reason string, err error) {
	t = proto.CloneOf(t)
	t.Clients = c.clients
	c.mu.Lock()
	c.task, c.result, c.reason = t, nil, ""
	c.mu.Unlock()
	ok, err := product.Eventually(ctx, time.Minute, func() (bool, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		result, reason = c.result, c.reason
		return c.task == nil, nil
	})
	if err == nil && !ok {
		err = fmt.Errorf("%s neither trains nor declines", c.name)
	}
	return result, reason, err
}

// callers are three agents of a lying server. They are members of a keeper that would release
// the sum of two results.
type callers struct {
	v         *vault
	statement []byte
	blobs     map[string][]byte
	all       []*caller
}

const callersPlan = `name: private
algorithm: fedavg
rounds: 9
model: {name: fekri2023, lookback: 1, targets: 1, inputs: [load]}
client: {steps: 2, batch: 32}
schedule: {deadline: 12h, quorum: 0.7}
privacy: {mode: private, keepers: [auditor], least: 2, check: %s}
evaluate: {every: 0}
`

// callers starts a keeper and the agents, and waits until these are enrolled.
func (f *Fleet) callers(ctx context.Context) *callers {
	const n = 3
	v := f.lyingVault(ctx, "keeper", 0, "least: 2")
	file := must(f.write("invitations", v.invite(ctx, n).String()+"\n"))
	state := must(v.State(ctx, &v1.KeeperStateRequest{}))
	cs := &callers{v: v, statement: must(proto.Marshal(state.Statement)), blobs: map[string][]byte{}}
	homes := must(leak.Homes(n, 60))
	k := must(kernel.Default())
	allow := policy.None()
	allow.Private, allow.LeastMembers, allow.Keepers = policy.PrivateRequire, 2, []string{v.pin.String()}
	running, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	f.later(func() error { stop(); group.Wait(); return nil })
	for i := range n {
		d := must(series.NewDataset(*homes, []series.Meter{homes.Meter(i)}))
		c := &caller{name: fmt.Sprint("agent-", i), v: v, statement: cs.statement, blobs: cs.blobs, clients: []string{homes.Meter(i).ID}}
		server := httptest.NewServer(c)
		f.later(func() error { server.Close(); return nil })
		group.Go(func() {
			_ = agent.Run(running, agent.Config{ // an agent that has ended does not respond
				Dir: f.path(c.name), Server: server.URL, Client: server.Client(), Dataset: d, Kernel: k, Policy: &allow, Chunk: 4 << 20, Name: c.name, Invitations: file,
			})
		})
		cs.all = append(cs.all, c)
	}
	ok, err := product.Eventually(ctx, 30*time.Second, func() (bool, error) {
		for _, c := range cs.all {
			c.mu.Lock()
			enrolled := c.enrolled
			c.mu.Unlock()
			if !enrolled {
				return false, nil
			}
		}
		return true, nil
	})
	if err == nil && !ok {
		err = errors.New("the agents did not enrol")
	}
	check(err)
	return cs
}

// put stores a blob for all agents.
func (cs *callers) put(data []byte) string {
	sum := sha256.Sum256(data)
	hash := hex.EncodeToString(sum[:])
	for _, c := range cs.all {
		c.mu.Lock()
	}
	cs.blobs[hash] = data
	for _, c := range cs.all {
		c.mu.Unlock()
	}
	return hash
}

// begin returns the terms of a run and the task of its first round.
func (cs *callers) begin(run, check string) (*terms.Terms, *v1.Task) {
	p := must(recipe.Read(fmt.Appendf(nil, callersPlan, check)))
	p = must(terms.Settle(p, int64(len(cs.all)), nil, []time.Duration{time.Hour}))
	text := must(recipe.Write(p))
	blob := cs.put(text)
	t := must(terms.Read(string(text), blob, int64(len(cs.all))))
	server := t.Server()
	l := server.Limits()
	return t, &v1.Task{
		Run: run, Plan: blob, Weights: cs.put(round.AppendFloats(nil, server.Shared())), LeaseMs: time.Hour.Milliseconds(), Fleet: int64(len(cs.all)), Fold: true,
		Limits:  &v1.Limits{Norm: l.Norm, Control: l.Control, Examples: l.Examples, Loss: l.Loss, Coordinate: l.Coordinate},
		Privacy: &v1.Privacy{Statements: [][]byte{cs.statement}, Day: mask.Day(time.Now())},
	}
}

// isolate gives the first agent one task and the others a changed one. It then asks the keeper for
// the sum as if all had received the first task. It reports whether the keeper opened the sum, or
// the reason for a refusal. Without a change, all agents get the same task.
func (cs *callers) isolate(ctx context.Context, run, check string, change func(*v1.Task)) (opened bool, why error, err error) {
	t, task := cs.begin(run, check)
	q, err := t.MaskedRound(task)
	if err != nil {
		return false, nil, err
	}
	other := proto.CloneOf(task)
	if change != nil {
		if change(other); proto.Equal(other, task) {
			return false, nil, errors.New("the task was not changed")
		}
	}
	var all []*hidden
	for i, c := range cs.all {
		told := task
		if i > 0 {
			told = other
		}
		r, reason, err := c.train(ctx, told)
		if err != nil || r == nil {
			return false, nil, errors.Join(fmt.Errorf("%s declines: %s", c.name, reason), err)
		}
		h := &hidden{MaskedResult: &v1.MaskedResult{Agent: c.name, Part: r.Part, Clients: int64(len(r.Shares)), Nonce: r.Nonce}, y: make([]uint64, q.Length)}
		if err := round.AddVector(h.y, r.Chunk); err != nil {
			return false, nil, err
		}
		all = append(all, h)
	}
	if check == "norm" {
		accepted, err := cs.v.judge(ctx, q, all)
		if err != nil {
			return false, nil, err
		}
		if !accepted[0] {
			return false, nil, errors.New("the result of the agent that received the true task is not accepted")
		}
		if change != nil && slices.Contains(accepted[1:], true) {
			return true, nil, nil
		}
	}
	sum, err := cs.v.open(ctx, q, all)
	if ruleOf(err) != "" {
		return false, err, nil
	}
	if err != nil {
		return false, nil, err
	}
	_, _, err = t.Unmasked(task.Version, int64(len(all)), terms.LimitsOf(task.Limits), sum)
	return err == nil, err, nil
}

// lieToOthers tries several changed tasks. With an unchanged task, the sum must be opened.
func lieToOthers(ctx context.Context, cs *callers, changes map[string]func(*v1.Task)) (*Result, error) {
	for _, check := range []string{"norm", "none"} {
		if opened, why, err := cs.isolate(ctx, "honest "+check, check, nil); err != nil || !opened {
			return nil, errors.Join(fmt.Errorf("an honest round is not opened: %w", why), err)
		}
	}
	for what, change := range changes {
		for _, check := range []string{"none", "norm"} {
			opened, why, err := cs.isolate(ctx, what+" "+check, check, change)
			if err != nil {
				return nil, fmt.Errorf("%s, check %s: %w", what, check, err)
			}
			if opened {
				r := succeeded("%s, check %s: the sum is opened, and the update of one agent is in it alone", what, check)
				return &r, nil
			}
			if rule := ruleOf(why); check == "norm" && rule != "check" || check == "none" && !errors.Is(why, terms.ErrSum) {
				return nil, fmt.Errorf("%s, check %s: not opened for another reason: %w", what, check, why)
			}
		}
	}
	return nil, nil
}

// otherWeights succeeds if a sum is opened although all agents but one received other weights, for
// example weights with which their updates are 0. It also succeeds if an agent that has masked a
// round masks it again for other weights.
func otherWeights(ctx context.Context, f *Fleet) (Result, error) {
	cs := f.callers(ctx)
	dead := func(x *v1.Task) { x.Weights = cs.put(make([]byte, len(cs.blobs[x.Weights]))) }
	changes := map[string]func(*v1.Task){
		"weights": dead,
		"version": func(x *v1.Task) { x.Version++ },
		"plan": func(x *v1.Task) {
			x.Plan = cs.put(bytes.Replace(cs.blobs[x.Plan], []byte("name: private"), []byte("name: other"), 1))
		},
	}
	if broken, err := lieToOthers(ctx, cs, changes); broken != nil || err != nil {
		return orSucceeded(broken), err
	}
	_, task := cs.begin("honest none", "none")
	dead(task)
	if r, reason, err := cs.all[0].train(ctx, task); err != nil {
		return Result{}, err
	} else if r != nil {
		return succeeded("an agent masks one round for two tasks"), nil
	} else if !strings.Contains(reason, "has masked round 1 for another task") {
		return Result{}, fmt.Errorf("an agent declines a second task for another reason: %s", reason)
	}
	return repelled("with other weights, version or plan for the others the sum is noise, and with check: norm it is refused by rule check; an agent declines a second task for a round"), nil
}

// otherLimits succeeds if a sum is opened although all agents but one received limits of nearly 0,
// or a larger size of the fleet, which makes their numbers smaller.
func otherLimits(ctx context.Context, f *Fleet) (Result, error) {
	cs := f.callers(ctx)
	changes := map[string]func(*v1.Task){
		"coordinate": func(x *v1.Task) { x.Limits.Coordinate = 1e-30 },
		"norm":       func(x *v1.Task) { x.Limits.Norm = 1e-30 },
		"examples":   func(x *v1.Task) { x.Limits.Examples += 1000 },
		"fleet":      func(x *v1.Task) { x.Fleet *= 100 },
		"day":        func(x *v1.Task) { x.Privacy.Day++ },
	}
	if broken, err := lieToOthers(ctx, cs, changes); broken != nil || err != nil {
		return orSucceeded(broken), err
	}
	return repelled("with other limits, fleet or day for the others the sum is noise, and with check: norm it is refused by rule check"), nil
}
