package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"loadstar/agent/state"
	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/fed/policy"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/fed/setup"
	"loadstar/keeper"
	loadstarv1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
)

// privateFleet is the number of clients in private runs.
const privateFleet = 9

// newKeeper returns a keeper whose members may take part in sums immediately.
func newKeeper(t testing.TB, least int64, now func() time.Time) *keeper.Keeper {
	t.Helper()
	return newKeeperOfAge(t, least, 0, now)
}

// newKeeperOfAge returns a keeper whose members may take part in sums after some seconds.
func newKeeperOfAge(t testing.TB, least, age int64, now func() time.Time) *keeper.Keeper {
	t.Helper()
	dir := t.TempDir()
	if _, err := keeper.Create(dir); err != nil {
		t.Fatal(err)
	}
	return openKeeper(t, dir, &loadstarv1.KeeperRules{Least: least, Quorum: 700, Cell: 100, Age: age, Invited: true}, now)
}

func openKeeper(t testing.TB, dir string, rules *loadstarv1.KeeperRules, now func() time.Time) *keeper.Keeper {
	t.Helper()
	k, err := keeper.Open(dir, keeper.Options{Fleet: "homes", Rules: rules, Now: now, Daily: 100})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k
}

// signed returns a keeper's statement as an agent receives it.
func signed(t testing.TB, k *keeper.Keeper) []byte {
	t.Helper()
	r, err := k.State(&loadstarv1.KeeperStateRequest{Fleet: "homes"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := proto.Marshal(r.Statement)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// party is an agent with its own server, which forwards enrolments to real keepers.
type party struct {
	*stub
	config Config
	data   *series.Dataset
	stop   func()
	seals  atomic.Int64
}

// private returns agents that trust the keepers. Each has some of the meters.
func private(t testing.TB, d *series.Dataset, n int, least int64, now func() time.Time, keepers ...*keeper.Keeper) []*party {
	t.Helper()
	var all []*party
	var invitations string
	allow := policy.None()
	allow.LeastMembers = int(least)
	for _, k := range keepers {
		code, err := k.Invite(int64(n), now().Add(time.Hour), "")
		if err != nil {
			t.Fatal(err)
		}
		allow.Keepers = append(allow.Keepers, k.Pin().String())
		invitations += fmt.Sprintf("# of a keeper\n%s %s\n", k.Pin(), code)
	}
	file := filepath.Join(t.TempDir(), "invitations")
	if err := os.WriteFile(file, []byte(invitations), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		p := &party{stub: newStub(t), data: part(t, d, i, n)}
		for _, k := range keepers {
			p.keepers = append(p.keepers, signed(t, k))
		}
		name := fmt.Sprintf("agent-%d", i)
		p.checkIn = func(r *loadstarv1.ExchangeRequest, a *loadstarv1.ExchangeResponse) error {
			for _, e := range r.Enrolments {
				p.seals.Add(1)
				for _, k := range keepers {
					if pin := k.Pin(); !bytes.Equal(pin[:], e.Keeper) {
						continue
					}
					answer, err := k.Enrol(&loadstarv1.KeeperEnrolRequest{Fleet: "homes", Enrolments: []*loadstarv1.KeeperEnrolment{{Agent: name, Sealed: e.Sealed}}})
					if err != nil {
						return err
					}
					a.Receipts = append(a.Receipts, answer.Receipts...)
				}
			}
			return nil
		}
		p.config = config(t, name, p.http.URL, t.TempDir(), p.data)
		p.config.Name, p.config.Invitations, p.config.Policy, p.config.Clock = name, file, &allow, now
		p.stop = start(t, p.config)
		t.Cleanup(func() { p.stop() })
		all = append(all, p)
	}
	return all
}

// enrolled waits until an agent has sent an enrolment and stored the response on disk. It has
// certainly done both when its next call begins.
func (p *party) enrolled(t testing.TB) {
	t.Helper()
	var calls int
	p.wait(t, "an enrolment", func() bool { calls = len(p.checkIns); return p.seals.Load() >= int64(len(p.keepers)) })
	p.wait(t, "the next call", func() bool { return len(p.checkIns) > calls })
}

// hidden is a private plan that uses the keepers.
func hidden(more settings) settings {
	s := small("fedavg", settings{
		"schedule.cohort": 0, "schedule.deadline": "12h", "schedule.quorum": 0.7, "privacy.mode": "private", "privacy.least": 2, "privacy.check": "none",
		"privacy.keepers": []string{"auditor"},
	})
	for k, v := range more {
		s[k] = v
	}
	return s
}

// privately returns a party's task for a private plan.
func (p *party) privately(t testing.TB, run string, number int64, plan settings, fleet int, day int64) *loadstarv1.Task {
	t.Helper()
	x := p.task(t, run, number, plan, fleet, namesOf(p.data)...)
	s, _ := vectorOf(t, plan, p.data)
	l := s.NewServer().Limits()
	x.Limits = &loadstarv1.Limits{Norm: l.Norm, Control: l.Control, Examples: l.Examples, Loss: l.Loss, Coordinate: l.Coordinate}
	x.Privacy, x.Fold = &loadstarv1.Privacy{Statements: p.keepers, Day: day}, true
	return x
}

// vectorOf returns the layout of a plan's vectors.
func vectorOf(t testing.TB, plan settings, d *series.Dataset) (*setup.Setup, round.Vector) {
	t.Helper()
	p, err := recipe.Read(plan.text(t))
	if err != nil {
		t.Fatal(err)
	}
	q, err := recipe.Frame(p, d)
	if err != nil {
		t.Fatal(err)
	}
	s, err := setup.New(p, q, privateFleet)
	if err != nil {
		t.Fatal(err)
	}
	if s, err = s.OfAgent(testSecret); err != nil {
		t.Fatal(err)
	}
	return s, s.Rules.Vector(q.SharedLen())
}

// numbers returns all numbers of a masked result, which may have been sent in chunks.
func (p *party) numbers(t testing.TB, run string, number int64) (r *loadstarv1.Result, b []byte) {
	t.Helper()
	r = p.pushed(t, run, number)
	p.mu.Lock()
	defer p.mu.Unlock()
	b = make([]byte, r.Size)
	for _, x := range p.pushes {
		if x.Run == run && x.Round == number {
			copy(b[x.Offset:], x.Chunk)
		}
	}
	return r, b
}

// unmask adds up the agents' results of a round and subtracts the masks that the keepers
// release.
func unmask(t testing.TB, task *loadstarv1.Task, plan settings, d *series.Dataset, all []*party, keepers ...*keeper.Keeper) (*round.Fold, *round.Sizes) {
	t.Helper()
	s, v := vectorOf(t, plan, d)
	sum := make([]uint64, v.Len())
	var pins []member.Pin
	for _, k := range keepers {
		pins = append(pins, k.Pin())
	}
	q := &loadstarv1.KeeperReleaseRequest{Round: &loadstarv1.MaskedRound{
		Fleet: "homes", Run: task.Run, Round: task.Round, Version: task.Version, Plan: task.Plan, Weights: task.Weights, Control: task.Control,
		Length: int64(v.Len()), Day: task.Privacy.Day, Homes: task.Fleet, Clip: task.Limits, Terms: member.PlanTerms(s.Plan, pins), Limits: member.Limits(v.Blocks(taskOf(task).Limits)),
	}}
	clients := int64(0)
	for _, p := range all {
		r, numbers := p.numbers(t, task.Run, task.Round)
		if r.Form != loadstarv1.Form_FORM_MASKED || r.Evaluation != nil || len(r.Nonce) != 16 {
			t.Fatalf("a result of a private plan has form %v, evaluation %v, nonce %x", r.Form, r.Evaluation, r.Nonce)
		}
		for _, x := range r.Shares {
			if !proto.Equal(x, &loadstarv1.Share{Client: x.Client}) {
				t.Errorf("a share says more than a name: %v", x)
			}
		}
		if err := round.AddVector(sum, numbers); err != nil {
			t.Fatal(err)
		}
		clients += int64(len(r.Shares))
		x := &loadstarv1.MaskedResult{Agent: p.config.Name, Part: r.Part, Clients: int64(len(r.Shares)), Nonce: r.Nonce}
		q.Results = append(q.Results, x)
		if s.Plan.Privacy.Check == "norm" {
			judged(t, keepers[0], q.Round, x, v.Blocks(taskOf(task).Limits), numbers)
		}
	}
	if _, _, err := v.Decode(int(task.Version), clients, sum); err == nil {
		t.Error("a sum with its masks can be decoded")
	}
	for _, k := range keepers {
		a, err := k.Release(q)
		if err != nil {
			t.Fatal(err)
		}
		for i := range sum {
			sum[i] -= binary.LittleEndian.Uint64(a.Masks[8*i:])
		}
	}
	f, sizes, err := v.Decode(int(task.Version), clients, sum)
	if err != nil {
		t.Fatal(err)
	}
	return f, sizes
}

// judged asks a keeper whether a result is within the limits, as a server does.
func judged(t testing.TB, k *keeper.Keeper, q *loadstarv1.MaskedRound, x *loadstarv1.MaskedResult, blocks []mask.Block, numbers []byte) {
	t.Helper()
	state, err := k.State(&loadstarv1.KeeperStateRequest{Fleet: q.Fleet, Run: q.Run})
	if err != nil {
		t.Fatal(err)
	}
	y, seed := make([]uint64, len(numbers)/8), mask.Seed(state.Directions)
	if err := round.AddVector(y, numbers); err != nil {
		t.Fatal(err)
	}
	c := &loadstarv1.CheckedResult{Result: x}
	for _, b := range blocks {
		p := seed.Products(y[:b.Length])
		c.Products, y = append(c.Products, p[:]...), y[b.Length:]
	}
	a, err := k.Check(&loadstarv1.KeeperCheckRequest{Round: q, Results: []*loadstarv1.CheckedResult{c}})
	if err != nil || len(a.Accepted) != 1 || !a.Accepted[0] {
		t.Fatalf("an honest result of %s is refused: %v, %v", x.Agent, a, err)
	}
}

// trained returns the fold of all clients' training for a task, computed without agents.
func trained(t testing.TB, task *loadstarv1.Task, plan settings, d *series.Dataset) (*round.Fold, round.Sizes) {
	t.Helper()
	s, _ := vectorOf(t, plan, d)
	server := s.NewServer()
	f, sizes, w := round.NewFold(s.Rules), round.Sizes{}, s.NewWorker(kernels(t))
	for i := range d.Len() {
		m := d.Meter(i)
		c := client.Client{ID: fed.ClientID(m.ID), Data: []series.Examples{s.Problem.Examples(m, s.Problem.Framer.Ranges(m))}, First: true, Kept: s.InitialKept(w)}
		x := server.Task(int(task.Round))
		x.Run = task.Run
		var u fed.Update
		if err := w.Train(t.Context(), &c, x, &u); err != nil {
			t.Fatal(err)
		}
		if err := f.Add(&u, server.Shared()); err != nil {
			t.Fatal(err)
		}
		sizes.Add(&u)
	}
	return f, sizes
}

func encoded(t testing.TB, f *round.Fold) []byte {
	t.Helper()
	b, err := round.AppendSums(nil, &f.Sums()[0])
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestPrivate runs agents with real keepers. They enrol and mask their results, and the sum
// equals that of the same training run without masks. A repeated task, other weights for one
// agent and a restart do not make an agent mask a client twice.
func TestPrivate(t *testing.T) {
	d := meters(t, 5)
	for name, plan := range map[string]settings{
		"norms":    hidden(settings{"privacy.check": "norm", "evaluate.every": 1}),
		"scaffold": hidden(settings{"algorithm": "scaffold", "server.weighting": "examples", "server.clip": 0, "privacy.keepers": []string{"auditor", "union"}}),
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now
			keepers := []*keeper.Keeper{newKeeper(t, 3, now), newKeeper(t, 3, now)}
			if name == "norms" {
				keepers = keepers[:1]
			}
			all, day := private(t, d, 3, 3, now, keepers...), mask.Day(now())
			var first *loadstarv1.Task
			for _, p := range all {
				p.enrolled(t)
				first = p.privately(t, "run", 1, plan, privateFleet, day)
				p.give(first)
			}
			got, sizes := unmask(t, first, plan, d, all, keepers...)
			want, sum := trained(t, first, plan, d)
			if !bytes.Equal(encoded(t, got), encoded(t, want)) || got.Len() != d.Len() {
				t.Error("the sum of the masked results is not that of the training")
			}
			if sum.Evaluated, sum.RelativeMAE = sizes.Evaluated, sizes.RelativeMAE; *sizes != sum || (name == "norms") != (sizes.Evaluated > 0) {
				t.Errorf("sizes %+v, want %+v", *sizes, sum)
			}
			p := all[0]
			other := p.privately(t, "run", 1, plan, privateFleet, day)
			other.Weights = p.put(append([]byte{1, 2, 3, 4}, p.blobs[other.Weights][4:]...))
			p.give(other)
			if reason := p.declined(t, "run"); !strings.Contains(reason, "has masked round 2 for another task") && !strings.Contains(reason, "already counted") {
				t.Errorf("other weights: declined because %q", reason)
			}
			isolated(t, all, plan, day, keepers)
			again(t, p, plan, d, day)
		})
	}
}

// isolated gives all agents but one limits of nearly 0, and then a larger fleet, which makes their
// numbers smaller. If masks did not depend on both, the sum would be the update of the last agent.
// The masks that the keepers release for either task leave only noise.
func isolated(t *testing.T, all []*party, plan settings, day int64, keepers []*keeper.Keeper) {
	t.Helper()
	for run, change := range map[string]func(x *loadstarv1.Task){
		"coordinate": func(x *loadstarv1.Task) { x.Limits.Coordinate = 1e-30 },
		"fleet":      func(x *loadstarv1.Task) { x.Fleet = 100 * privateFleet },
	} {
		s, v := vectorOf(t, plan, all[0].data)
		sum := make([]uint64, v.Len())
		var victim *loadstarv1.Task
		q := &loadstarv1.KeeperReleaseRequest{}
		var pins []member.Pin
		for _, k := range keepers {
			pins = append(pins, k.Pin())
		}
		clients := int64(0)
		for i, p := range all {
			x := p.privately(t, run, 0, plan, privateFleet, day)
			if i > 0 {
				change(x)
			} else {
				victim = x
			}
			p.give(x)
			r, numbers := p.numbers(t, run, 0)
			if err := round.AddVector(sum, numbers); err != nil {
				t.Fatal(err)
			}
			clients += int64(len(r.Shares))
			q.Results = append(q.Results, &loadstarv1.MaskedResult{Agent: p.config.Name, Part: r.Part, Clients: int64(len(r.Shares)), Nonce: r.Nonce})
		}
		q.Round = maskedRound(victim, s.Plan, "homes", pins, v)
		if s.Plan.Privacy.Check == "norm" {
			// Otherwise the keeper would refuse the other agents by name, because their masks do
			// not match.
			q.Round.Terms.Check = "none"
		}
		for _, k := range keepers {
			a, err := k.Release(q)
			if err != nil {
				t.Fatal(err)
			}
			for i := range sum {
				sum[i] -= binary.LittleEndian.Uint64(a.Masks[8*i:])
			}
		}
		if _, _, err := v.Decode(0, clients, sum); err == nil {
			t.Errorf("%s: a sum in which only one agent's numbers are not 0 was opened", run)
		}
	}
}

// TestTaskIsBound checks that the description for which the agent masks includes each field of
// a task that determines the training or the computation of the agent's numbers. A new field
// must be added to that description, or to the list of exceptions, with a reason.
func TestTaskIsBound(t *testing.T) {
	free := map[string]string{
		"clients":            "who trains: the agent puts each client into one result, and the number of clients is bound",
		"lease_ms":           "time only",
		"fold":               "masked results are always sums",
		"heads":              "decide whether the agent accepts the weights, which are bound",
		"privacy.statements": "their rules and keepers are in the terms: TestTermsMatter",
	}
	d := meters(t, 1)
	s, v := vectorOf(t, hidden(nil), d)
	says, _, err := member.NewSealingKey()
	if err != nil {
		t.Fatal(err)
	}
	statement := &loadstarv1.KeeperStatement{Identity: make([]byte, 32), Fleet: "homes", SealingKey: says, Rules: &loadstarv1.KeeperRules{Least: 2, Cell: 100}}
	of := func(x *loadstarv1.Task) string {
		q := maskedRound(x, s.Plan, "homes", []member.Pin{{1}}, v)
		return string(member.Context(statement, q).Append(nil))
	}
	base := func() *loadstarv1.Task {
		return &loadstarv1.Task{Run: "r", Plan: "p", Weights: "w", Fleet: privateFleet, Limits: &loadstarv1.Limits{}, Privacy: &loadstarv1.Privacy{}}
	}
	seen := map[string]string{of(base()): "nothing"}
	var walk func(prefix string, m protoreflect.Message, in func(x *loadstarv1.Task) protoreflect.Message)
	walk = func(prefix string, m protoreflect.Message, in func(x *loadstarv1.Task) protoreflect.Message) {
		fields := m.Descriptor().Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			name := prefix + string(f.Name())
			if free[name] != "" {
				continue
			}
			if f.Kind() == protoreflect.MessageKind && !f.IsList() {
				walk(name+".", m.Get(f).Message(), func(x *loadstarv1.Task) protoreflect.Message { return in(x).Mutable(f).Message() })
				continue
			}
			values := map[protoreflect.Kind]protoreflect.Value{
				protoreflect.StringKind: protoreflect.ValueOfString("other"), protoreflect.Int64Kind: protoreflect.ValueOfInt64(7), protoreflect.DoubleKind: protoreflect.ValueOfFloat64(1e-30),
			}
			value, known := values[f.Kind()]
			if !known || f.IsList() {
				t.Errorf("%s: this test cannot change it", name)
				continue
			}
			x := base()
			in(x).Set(f, value)
			if other, twice := seen[of(x)]; twice {
				t.Errorf("with another %s the agent masks for the same as with another %s", name, other)
			}
			seen[of(x)] = name
		}
	}
	x := base()
	walk("", x.ProtoReflect(), func(x *loadstarv1.Task) protoreflect.Message { return x.ProtoReflect() })
	if len(seen) != 14 {
		t.Errorf("%d contexts, want 14: %v", len(seen), slices.Collect(maps.Values(seen)))
	}
}

// again sends a private task whose result is not acknowledged, restarts the agent, and expects the
// same bytes. Then it deletes the result on the agent's disk, after which the clients are not
// masked again.
func again(t *testing.T, p *party, plan settings, d *series.Dataset, day int64) {
	p.mu.Lock()
	p.push = func(r *loadstarv1.Result) (*loadstarv1.Received, error) {
		if next := r.Offset + int64(len(r.Chunk)); next < r.Size {
			return &loadstarv1.Received{Outcome: loadstarv1.Outcome_OUTCOME_PART, NextOffset: next}, nil
		}
		return &loadstarv1.Received{Outcome: loadstarv1.Outcome_OUTCOME_ACCEPTED}, nil
	}
	p.mu.Unlock()
	task := p.privately(t, "again", 0, plan, privateFleet, day)
	p.give(task)
	before, sent := p.numbers(t, "again", 0)
	p.stop()
	p.mu.Lock()
	p.pushes = nil
	was := p.checkIn
	p.checkIn = func(r *loadstarv1.ExchangeRequest, a *loadstarv1.ExchangeResponse) error {
		for _, x := range r.Pushed {
			a.Verdicts = append(a.Verdicts, &loadstarv1.Verdict{Run: x.Run, Round: x.Round, Clients: x.Clients, Outcome: loadstarv1.Outcome_OUTCOME_UNKNOWN})
		}
		return was(r, a)
	}
	p.mu.Unlock()
	p.stop = start(t, p.config)
	after, resent := p.numbers(t, "again", 0)
	if !bytes.Equal(sent, resent) || !bytes.Equal(before.Nonce, after.Nonce) || before.Part != after.Part {
		t.Error("after a restart the result has other bytes")
	}
	p.stop()
	s, err := state.Open(p.config.Dir)
	if err != nil {
		t.Fatal(err)
	}
	results, err := s.Results()
	if err == nil && len(results) == 1 {
		err = s.Decide(nil, []uint64{results[0].ID})
	}
	if err != nil || len(results) != 1 {
		t.Fatal(len(results), err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.pushes = nil
	p.mu.Unlock()
	p.stop = start(t, p.config)
	p.give(task)
	if reason := p.declined(t, "again"); !strings.Contains(reason, "in an earlier masked result of the round") {
		t.Errorf("a lost result: declined because %q", reason)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.pushes) > 0 {
		t.Error("clients are in two masked results")
	}
}

// TestRunsDoNotCancel checks two runs of one plan, which start from the same weights. The draws
// of the second run are different, so the difference between two sums is not the update of the
// agent that is missing from one of them.
func TestRunsDoNotCancel(t *testing.T) {
	d := meters(t, 4)
	plan := hidden(nil)
	total := func(run string, d *series.Dataset) []float64 {
		f, _ := trained(t, &loadstarv1.Task{Run: run}, plan, d)
		x := make([]float64, f.Sums()[0].Delta.Len())
		f.Sums()[0].Delta.Total(x)
		return x
	}
	most := part(t, d, 0, 2)
	a, b, same := total("a", d), total("b", most), total("a", most)
	missing := total("a", part(t, d, 1, 2))
	distance := func(without []float64) (sum float64) {
		for i := range a {
			x := a[i] - without[i] - missing[i]
			sum += x * x
		}
		return math.Sqrt(sum)
	}
	if got := distance(same); got > 1e-6 {
		t.Errorf("with equal draws the others are off by %g, so this test shows nothing", got)
	}
	if got, norm := distance(b), distance(make([]float64, len(a))); got < 0.1*norm {
		t.Errorf("the others leave %g of %g", got, norm)
	}
}

// TestPrivateDeclined checks that the agent declines the task and masks nothing if the server
// sends false information about keepers.
func TestPrivateDeclined(t *testing.T) {
	var shift atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(shift.Load())) }
	d := meters(t, 4)
	dir, rules := t.TempDir(), &loadstarv1.KeeperRules{Least: 3, Quorum: 700, Cell: 90, Invited: true}
	if _, err := keeper.Create(dir); err != nil {
		t.Fatal(err)
	}
	trusted := openKeeper(t, dir, rules, now)
	older := signed(t, trusted)
	if err := trusted.Close(); err != nil {
		t.Fatal(err)
	}
	rules.Cell = 100 // other rules need a new statement
	trusted = openKeeper(t, dir, rules, now)
	weak, stranger := newKeeper(t, 2, now), newKeeper(t, 3, now)
	p := private(t, d, 1, 3, now, trusted, weak)[0]
	p.mu.Lock()
	statements := [][]byte{p.keepers[0]}
	p.mu.Unlock()
	p.enrolledWith(t, trusted)
	current := statements[0]
	day := mask.Day(now())
	text := "run "
	for i, c := range []struct {
		change func(x *loadstarv1.Task, plan settings)
		want   string
	}{
		{func(x *loadstarv1.Task, _ settings) { x.Privacy = nil }, "disagree on whether the run is private"},
		{func(x *loadstarv1.Task, _ settings) { x.Privacy.Statements = nil }, "the task has 0 statements, and the plan names 1"},
		{func(x *loadstarv1.Task, _ settings) { x.Privacy.Statements = [][]byte{signed(t, stranger)} }, "is not one that this agent trusts (policy.keepers)"},
		{func(x *loadstarv1.Task, _ settings) { x.Privacy.Statements = [][]byte{signed(t, weak)} }, "releases sums of 2 agents, the minimum is 3 (policy.least_members)"},
		{func(x *loadstarv1.Task, _ settings) {
			x.Privacy.Statements = [][]byte{append(slices.Clone(current[:len(current)-1]), current[len(current)-1]^1)}
		}, "signature is wrong"},
		{func(x *loadstarv1.Task, _ settings) { x.Privacy.Day = day + 2 }, "this agent's clock says"},
		{func(x *loadstarv1.Task, _ settings) { x.Privacy.Day = day - 2 }, "this agent's clock says"},
		{func(x *loadstarv1.Task, _ settings) { x.Run = strings.Repeat("r", 2*member.MaxName) }, "cannot be masked"},
		{func(x *loadstarv1.Task, _ settings) {
			x.Plan = p.put(small("fedavg", settings{"schedule.cohort": 0}).text(t))
		}, "disagree on whether the run is private"},
	} {
		plan := hidden(settings{"privacy.check": "norm"})
		run := fmt.Sprint(text, i)
		x := p.privately(t, run, 0, plan, privateFleet, day)
		x.Privacy.Statements = statements
		c.change(x, plan)
		p.give(x)
		if reason := p.declined(t, x.Run); !strings.Contains(reason, c.want) {
			t.Errorf("%s: declined because %q, want %q", run, reason, c.want)
		}
	}
	x := p.privately(t, "tomorrow", 0, hidden(nil), privateFleet, day+1)
	x.Privacy.Statements = statements
	p.give(x)
	p.pushed(t, "tomorrow", 0)
	x = p.privately(t, "older", 0, hidden(nil), privateFleet, day)
	x.Privacy.Statements = [][]byte{older}
	p.give(x)
	if reason := p.declined(t, "older"); !strings.Contains(reason, "is older than its statement") {
		t.Errorf("an older statement: declined because %q", reason)
	}
	// Three days later, today's keys no longer exist, whatever the clock shows then.
	shift.Store(int64(72 * time.Hour))
	x = p.privately(t, "later", 0, hidden(nil), privateFleet, day+3)
	x.Privacy.Statements = statements
	p.give(x)
	p.pushed(t, "later", 0)
	shift.Store(0)
	x = p.privately(t, "back", 0, hidden(nil), privateFleet, day)
	x.Privacy.Statements = statements
	p.give(x)
	if reason := p.declined(t, "back"); !strings.Contains(reason, "this agent has keys from") {
		t.Errorf("a key that was erased: declined because %q", reason)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.pushes {
		if r.Form != loadstarv1.Form_FORM_MASKED || r.Run != "tomorrow" && r.Run != "later" {
			t.Errorf("a result of run %s in form %v", r.Run, r.Form)
		}
	}
}

// TestEnrolsAgain checks a keeper that has lost its keys and announces a new statement. Members
// enrol again by themselves when they start, or when they get a task that contains the
// statement.
func TestEnrolsAgain(t *testing.T) {
	for _, restarts := range []bool{true, false} {
		t.Run(fmt.Sprint("restarts ", restarts), func(t *testing.T) { enrolsAgain(t, restarts) })
	}
}

func enrolsAgain(t *testing.T, restarts bool) {
	t.Helper()
	d, dir := meters(t, 2), t.TempDir()
	if _, err := keeper.Create(dir); err != nil {
		t.Fatal(err)
	}
	open := func() *keeper.Keeper {
		k, err := keeper.Open(dir, keeper.Options{Fleet: "homes", Rules: &loadstarv1.KeeperRules{Least: 3, Cell: 100, Invited: true}, Daily: 100})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = k.Close() })
		return k
	}
	all := []*keeper.Keeper{open()} // the party's server calls the keepers in the slice
	p := private(t, d, 1, 3, time.Now, all...)[0]
	p.enrolled(t)
	if restarts {
		p.stop()
	}
	if err := errors.Join(all[0].Close(), os.Remove(filepath.Join(dir, "keys.db"))); err != nil {
		t.Fatal(err)
	}
	all[0] = open()
	p.mu.Lock()
	p.keepers = [][]byte{signed(t, all[0])}
	p.mu.Unlock()
	before := p.seals.Load()
	if restarts {
		p.stop = start(t, p.config)
	} else {
		p.give(p.privately(t, "first", 0, hidden(nil), privateFleet, mask.Day(time.Now())))
	}
	var calls int
	p.wait(t, "another enrolment", func() bool { calls = len(p.checkIns); return p.seals.Load() > before })
	p.wait(t, "the next call", func() bool { return len(p.checkIns) > calls })
	p.give(p.privately(t, "after", 0, hidden(nil), privateFleet, mask.Day(time.Now())))
	p.pushed(t, "after", 0)
}

// TestSealsForNewStatement checks a keeper that has lost its keys and therefore refuses a seal
// for its previous statement. The agent seals for the new statement as soon as it receives it,
// rather than an hour after the refusal.
func TestSealsForNewStatement(t *testing.T) {
	dir := t.TempDir()
	pin, err := keeper.Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	statement := func() []byte {
		k, err := keeper.Open(dir, keeper.Options{Fleet: "homes", Rules: &loadstarv1.KeeperRules{Least: 3, Cell: 100}})
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		return signed(t, k)
	}
	store, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	trusts := policy.None()
	trusts.Keepers = []string{pin.String()}
	ms := &members{
		Config: &Config{Name: "agent", Policy: &trusts, Log: slog.New(slog.DiscardHandler)}, store: store,
		statements: map[member.Pin]*loadstarv1.KeeperStatement{}, next: map[member.Pin]time.Time{},
	}
	seals := func() int {
		all, err := ms.enrolments()
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	hear := func(s []byte) {
		if err := ms.hearStatements([][]byte{s}); err != nil {
			t.Fatal(err)
		}
	}
	first := statement()
	hear(first)
	if seals() != 1 {
		t.Fatal("no enrolment")
	}
	if err := ms.hearReceipts([]*loadstarv1.Receipt{{Keeper: pin[:], Refused: "the key is sealed for a statement that is not in use"}}); err != nil {
		t.Fatal(err)
	}
	hear(first)
	if seals() != 0 {
		t.Error("the agent repeats a refused enrolment at once")
	}
	if err := os.Remove(filepath.Join(dir, "keys.db")); err != nil {
		t.Fatal(err)
	}
	hear(statement())
	if seals() != 1 {
		t.Error("the agent does not enrol for the new statement")
	}
}

// TestEnrolsLate checks that an agent that joined while the server did not know the keeper
// enrols as soon as the server knows it.
func TestEnrolsLate(t *testing.T) {
	k := newKeeper(t, 3, time.Now)
	p := private(t, meters(t, 2), 1, 3, time.Now)[0]
	p.stop()
	p.config.Policy.Keepers = []string{k.Pin().String()}
	p.stop = start(t, p.config)
	var calls int
	p.wait(t, "a call", func() bool { calls = len(p.checkIns); return calls > 0 })
	p.wait(t, "the next call", func() bool { return len(p.checkIns) > calls })
	p.mu.Lock()
	p.keepers = [][]byte{signed(t, k)}
	p.mu.Unlock()
	p.enrolledWith(t, k)
}

// TestYoungMember checks that a new member declines until it is old enough. The keeper would
// refuse a round with its result, and three refused rounds end the run.
func TestYoungMember(t *testing.T) {
	var shift atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(shift.Load())) }
	d, k := meters(t, 2), newKeeperOfAge(t, 3, 3600, now)
	p := private(t, d, 1, 3, now, k)[0]
	p.enrolled(t)
	p.give(p.privately(t, "young", 0, hidden(nil), privateFleet, mask.Day(now())))
	if reason := p.declined(t, "young"); !strings.Contains(reason, "wants members that are 3600 s old") {
		t.Errorf("declined because %q", reason)
	}
	shift.Store(int64(2 * time.Hour))
	p.give(p.privately(t, "old", 0, hidden(nil), privateFleet, mask.Day(now())))
	p.pushed(t, "old", 0)
}

// enrolledWith waits until a keeper has responded to the agent's enrolment.
func (p *party) enrolledWith(t testing.TB, k *keeper.Keeper) {
	t.Helper()
	pin := k.Pin()
	var calls int
	p.wait(t, "an enrolment", func() bool {
		calls = len(p.checkIns)
		return slices.ContainsFunc(p.checkIns, func(r *loadstarv1.ExchangeRequest) bool {
			return slices.ContainsFunc(r.Enrolments, func(e *loadstarv1.Enrolment) bool { return bytes.Equal(e.Keeper, pin[:]) })
		})
	})
	p.wait(t, "the next call", func() bool { return len(p.checkIns) > calls })
}
