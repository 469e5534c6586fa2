package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"loadstar/agent"
	"loadstar/fed/policy"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/fed/setup"
	"loadstar/internal/protocol"
	"loadstar/metric"
	"loadstar/nn/kernel"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
)

// traps lists the attacks of a server that sends false weights. They run an agent of this
// tree in this process, because the server under attack does not lie.
func traps() []Attack {
	return []Attack{{ID: "S3", Name: "a lying server's weights read a home's profile out of one update", Run: setTrap}}
}

// liar is a server that sends one task and records the answer.
type liar struct {
	v1.UnimplementedAgentServiceHandler
	blobs map[string][]byte

	mu     sync.Mutex
	task   *v1.Task // nil once it is answered
	pushed []byte
	reason string
	done   chan struct{}
}

func (l *liar) put(data []byte) string {
	sum := sha256.Sum256(data)
	hash := hex.EncodeToString(sum[:])
	l.blobs[hash] = data
	return hash
}

func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if hash, ok := strings.CutPrefix(r.URL.Path, "/v1/blobs/"); ok {
		_, _ = w.Write(l.blobs[hash]) // the agent has disconnected and needs no answer
		return
	}
	_, h := v1.NewAgentServiceHandler(l, connect.WithInterceptors(protocol.Server()))
	h.ServeHTTP(w, r)
}

// Announce accepts all clients.
func (l *liar) Announce(context.Context, *v1.AnnounceRequest) (*v1.AnnounceResponse, error) {
	return &v1.AnnounceResponse{}, nil
}

// Exchange returns the task until it is answered, and accepts an update or a reason to decline.
func (l *liar) Exchange(_ context.Context, r *v1.ExchangeRequest) (*v1.ExchangeResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := &v1.ExchangeResponse{NextContactMs: 20}
	for _, d := range r.Declines {
		l.answered(nil, d.Reason)
	}
	if u := r.Result; u != nil {
		if int64(len(u.Chunk)) < u.Size {
			return nil, errors.New("the update has several parts")
		}
		l.answered(u.Chunk, "")
		a.Received = &v1.Received{Outcome: v1.Outcome_OUTCOME_COUNTED}
	}
	if l.task != nil && len(r.Training)+len(r.Pushed) == 0 {
		a.Tasks = []*v1.Task{l.task}
	}
	return a, nil
}

func (l *liar) answered(update []byte, reason string) {
	if l.task != nil {
		l.task, l.pushed, l.reason = nil, update, reason
		close(l.done)
	}
}

// bait is a plan that a liar sends, with trapped weights as the given version.
type bait struct {
	plan    string
	version int64
}

// offer sends weights to an agent with a policy. It returns the update, or the reason why the
// agent declines.
func offer(ctx context.Context, d *series.Dataset, allow policy.Policy, s *setup.Setup, b bait) (update []float32, reason string) {
	k := must(kernel.Default())
	dir := must(os.MkdirTemp("", "trap"))
	defer func() { _ = os.RemoveAll(dir) }() // at worst, a temporary folder remains
	l := &liar{blobs: map[string][]byte{}, done: make(chan struct{})}
	l.task = &v1.Task{
		Run: "trap", Version: b.version, Round: b.version, Clients: []string{d.Meter(0).ID}, Plan: l.put([]byte(b.plan)),
		Weights: l.put(round.AppendFloats(nil, trapped(s))), LeaseMs: time.Hour.Milliseconds(), Fleet: int64(s.Fleet),
	}
	server := httptest.NewServer(l)
	defer server.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- agent.Run(ctx, agent.Config{Dir: dir, Server: server.URL, Client: server.Client(), Dataset: d, Kernel: k, Policy: &allow, Chunk: 4 << 20})
	}()
	select {
	case <-l.done:
	case err := <-ended:
		check(fmt.Errorf("the agent has ended: %w", errors.Join(err, ctx.Err())))
	}
	cancel()
	check(<-ended)
	return round.ReadFloats(nil, l.pushed), l.reason
}

// trapHome returns a home whose mean load by hour has no pattern that an attacker could guess,
// together with these means.
func trapHome() (*series.Dataset, []float64) {
	const days = 300
	r := rand.New(rand.NewPCG(5, 6))
	means := make([]float64, 24)
	for h := range means {
		means[h] = 0.5 + 2*r.Float64()
	}
	m := series.Meter{ID: "home", Start: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC).Unix()}
	for range days {
		for h := range 24 {
			m.Load = append(m.Load, float32(means[h]*math.Exp(0.5*r.NormFloat64())))
		}
	}
	return must(series.NewDataset(series.Dataset{Name: "home", Interval: time.Hour, Clock: time.UTC}, []series.Meter{m})), means
}

const trapModel = "model: {name: dense, interval: 1h, inputs: [recent, lags, day, profiles, quartiles, level, ranks, calendar]}\n"

// trapSetup reads a plan as the attacker does, without any readings of the home.
func trapSetup(plan string, d *series.Dataset) *setup.Setup {
	p := must(recipe.Read([]byte(plan)))
	p = must(recipe.Resolve(p, d.Interval))
	q := must(recipe.Frame(p, d))
	return must(setup.New(p, q, 40))
}

// tensorAt returns the position of a tensor among the shared weights.
func tensorAt(s *setup.Setup, name string) (at int, shape []int) {
	for _, l := range s.Problem.Partition.Shared() {
		for _, x := range l.Tensors {
			if x.Name == name {
				return at + x.Offset - l.Offset(), x.Shape
			}
		}
		at += l.Len()
	}
	check(fmt.Errorf("the model has no %s", name))
	return 0, nil
}

// trapped returns weights with which unit h of the first layer passes on only the examples of
// hour h. All forecasts are far too low, so that the loss has the same slope everywhere.
func trapped(s *setup.Setup) []float32 {
	const sharp, weight, low = 2, 8, -3000
	shared, _ := s.InitialWeights()
	clear(shared) // also clears slopes, so units are inactive outside of their hour
	names := s.Problem.InputNames()
	first, shape := tensorAt(s, "trunk.0.weight")
	bias, _ := tensorAt(s, "trunk.0.bias")
	head, outputs := tensorAt(s, "head.weight")
	lowest, _ := tensorAt(s, "head.bias")
	for u := range shape[0] {
		shared[bias+u] = -1
		if u < 24 {
			at := slices.Index(names, fmt.Sprint("hour.", u))
			if at < 0 {
				check(errors.New("the model has no input for hours"))
			}
			shared[first+u*shape[1]+at] = sharp
			shared[head+outputs[1]+u] = weight
		}
	}
	for o := range outputs[0] {
		shared[lowest+o] = low
	}
	return shared
}

// profile derives the mean load by hour from an update of trapped weights. The change of a row
// is the sum of its examples, and the change of the bias is their number.
func profile(s *setup.Setup, update []float32) []float64 {
	first, shape := tensorAt(s, "trunk.0.weight")
	bias, _ := tensorAt(s, "trunk.0.bias")
	names := s.Problem.InputNames()
	var all []float64
	for h := range 24 {
		n, sum := float64(update[bias+h]), 0.0
		for _, name := range []string{"profile.target", "level.mean"} {
			at := slices.Index(names, name)
			if at < 0 {
				check(fmt.Errorf("the model has no input %s", name))
			}
			sum += float64(update[first+h*shape[1]+at])
		}
		n = cmp.Or(n, 1)
		all = append(all, sum/n)
	}
	return all
}

// setTrap sends weights of a lying server to an agent. Without a policy, one update must reveal
// the home's mean load by hour. Otherwise the attack proves nothing. The attack is repelled if
// an agent with the default policy declines both this plan and the weights with a plan that the
// policy accepts. The agent must decline the weights as version 0, as the next version, and as
// a version of a run that it enters late. If only the check of weights is off, the agent must
// train the same weights.
func setTrap(ctx context.Context, _ *Fleet) (Result, error) {
	const solved = 0.9
	d, means := trapHome()
	b := bait{plan: "name: trap\nalgorithm: fedsgd\n" + trapModel}
	s := trapSetup(b.plan, d)
	update, reason := offer(ctx, d, policy.None(), s, b)
	if reason != "" {
		return Result{}, fmt.Errorf("without a policy the agent does not train: %s", reason)
	}
	before := metric.Correlation(profile(s, update), means)
	if !(before > solved) {
		return Result{}, fmt.Errorf("without a policy the correlation is %.3f, so this attack proves nothing", before)
	}
	if _, reason = offer(ctx, d, policy.Default(), s, b); reason == "" {
		return succeeded("correlation %.3f, and the default policy accepts the plan", before), nil
	}
	b.plan = "name: trap\nalgorithm: fedavg\n" + trapModel
	s = trapSetup(b.plan, d)
	unchecked := policy.Default()
	unchecked.MostStep = 0
	if _, reason = offer(ctx, d, unchecked, s, b); reason != "" {
		return Result{}, fmt.Errorf("without the check of weights the agent does not train: %s", reason)
	}
	for _, b.version = range []int64{0, 1, 300} {
		if _, reason = offer(ctx, d, policy.Default(), s, b); !strings.Contains(reason, "policy.most_step") {
			return succeeded("correlation %.3f without a policy; as version %d the weights are trained, or declined for another reason: %q", before, b.version, reason), nil
		}
	}
	return repelled("correlation %.3f without a policy; with all defaults the plan is declined, and the weights as version 0, 1 and 300", before), nil
}
