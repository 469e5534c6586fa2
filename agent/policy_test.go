package agent

import (
	"math"
	"strings"
	"testing"
	"time"

	"loadstar/agent/state"
	"loadstar/fed"
	"loadstar/fed/policy"
	"loadstar/nn"
	loadstarv1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
)

// anyPlan is the policy for tests whose plans are small so that they train fast.
var anyPlan = policy.None()

// spy is a plan whose update contains a single example: it has one step with a batch of
// one, and one reading in each example.
func spy(more settings) settings {
	s := small("fedavg", settings{
		"model.name": "bose2023", "model.lookback": 1, "model.targets": 1, "model.inputs": []string{"load", "time_of_day", "day_of_week", "temperature"},
		"client.optimizer": "sgd", "client.lr": 1, "client.batch": 1, "client.steps": 1, "schedule.cohort": 1, "rounds": 1,
	})
	for k, v := range more {
		s[k] = v
	}
	return s
}

// spiedOut computes the example from an update. Each row of the gradient of weight_ih is the
// example times the gradient of bias_ih. It returns the example, and the difference between
// the rows.
func spiedOut(t *testing.T, s *session, delta []float32) (example []float64, spread float64) {
	t.Helper()
	var weight, bias nn.Tensor
	for _, x := range s.Problem.Model.Net().Layers()[0].Tensors {
		switch {
		case strings.Contains(x.Name, "weight_ih"):
			weight = x
		case strings.Contains(x.Name, "bias_ih"):
			bias = x
		}
	}
	rows, columns := weight.Shape[0], weight.Shape[1]
	largest := 0.0
	for r := range rows {
		largest = max(largest, math.Abs(float64(delta[bias.Offset+r])))
	}
	example = make([]float64, columns)
	low, high, sum := math.Inf(1), math.Inf(-1), 0.0
	for r := range rows {
		db := float64(delta[bias.Offset+r])
		if math.Abs(db) < largest/10 {
			continue // small gradients have large rounding errors
		}
		for c := range columns {
			example[c] += float64(delta[weight.Offset+r*columns+c]) / db
		}
		x := float64(delta[weight.Offset+r*columns]) / db
		low, high, sum = min(low, x), max(high, x), sum+1
	}
	for c := range example {
		example[c] /= sum
	}
	return example, high - low
}

// nearest returns the largest difference between x and the nearest training example of a
// client.
func nearest(s *session, m series.Meter, x []float64) float64 {
	data := s.Problem.Examples(m, s.Problem.Framer.Ranges(m))
	row, best := make([]float32, len(x)), math.Inf(1)
	for k := range data.Len(series.Train) {
		data.Gather(row, nil, []series.Example{{Last: data.At(series.Train, k)}})
		most := 0.0
		for i := range x {
			most = max(most, math.Abs(x[i]-float64(row[i])))
		}
		best = min(best, most)
	}
	return best
}

// TestSpy reconstructs an example of a client from its update, and checks that an agent
// with the default policy does not train such a plan. For an update with the smallest batch and
// the fewest steps that the policy accepts, it checks that the same computation gives only a
// mean of examples.
func TestSpy(t *testing.T) {
	d := meters(t, 2)
	s := newStub(t)
	c := config(t, "a", s.http.URL, t.TempDir(), d)
	c.Chunk = 1 << 20
	stop := start(t, c)
	read := func(run string, plan settings) (spread, distance float64) {
		t.Helper()
		s.give(s.task(t, run, 0, plan, 9, "meter-00"))
		r := s.pushed(t, run, 0)
		x, err := newSessionOf(t, d, plan)
		if err != nil {
			t.Fatal(err)
		}
		var u fed.Update
		if err := x.Rules.ReadUpdate(&u, r.Chunk, x.shared()); err != nil {
			t.Fatal(err)
		}
		example, spread := spiedOut(t, x, u.Delta)
		return spread, nearest(x, d.Meter(0), example)
	}
	spread, distance := read("spy", spy(nil))
	t.Logf("batch 1: the rows agree to %.1g, and the example is one of the client's to %.1g", spread, distance)
	if !(spread < 1e-3 && distance < 1e-4) {
		t.Errorf("the example cannot be read: rows differ by %g, the nearest example is %g away", spread, distance)
	}
	spread, distance = read("many", spy(settings{"client.batch": 32, "client.steps": 2, "client.lr": 0.01}))
	t.Logf("batch 32, 2 steps: the rows differ by %.1g, the nearest example is %.1g away", spread, distance)
	if !(spread > 0.01 && distance > 0.01) {
		t.Errorf("an example can be read from many: rows differ by %g, the nearest example is %g away", spread, distance)
	}
	stop()

	usual := policy.Default()
	c.Dir, c.Policy = t.TempDir(), &usual
	stop = start(t, c)
	s.give(s.task(t, "declined", 0, spy(nil), 9, "meter-00"))
	reason := s.declined(t, "declined")
	for _, want := range []string{
		"client.batch is 1, the minimum is 32 (policy.least_batch)", "client.steps is 1, the minimum is 2 (policy.least_steps)",
		"the number of examples in an update is 1, the minimum is 64 (policy.least_examples)", "model.lookback is 1, the minimum is 4 (policy.least_lookback)",
		"the smallest number of clients in a round is 1, the minimum is 10 (policy.least_cohort)",
	} {
		if !strings.Contains(reason, want) {
			t.Errorf("declined because %q, want %q", reason, want)
		}
	}
	s.mu.Lock()
	code := s.declines[len(s.declines)-1].Code
	s.mu.Unlock()
	if code != codePolicy {
		t.Errorf("code %q", code)
	}
	stop()
}

// TestPolicyOfClients checks the policy's rules on clients, losses and rounds.
func TestPolicyOfClients(t *testing.T) {
	d := meters(t, 4)
	short := d.Meter(3)
	short.Load = short.Load[:48]
	d = dataset(t, *d, d.Meter(0), d.Meter(1), short)
	s := newStub(t)
	c := config(t, "a", s.http.URL, t.TempDir(), d)
	c.Policy = &policy.Policy{LeastExamples: 40, RoundsPerDay: 3, FullPasses: true}
	stop := start(t, c)
	plan := small("fedavg", settings{"client.batch": 16, "evaluate.every": 1, "evaluate.windows": 1})
	s.give(s.task(t, "short", 0, plan, 9, "meter-03"))
	if reason := s.declined(t, "short"); !strings.Contains(reason, "training examples, the minimum is 40 (policy.least_examples)") {
		t.Errorf("declined because %q", reason)
	}
	s.give(s.task(t, "silent", 0, plan, 9, "meter-00"))
	if r := s.pushed(t, "silent", 0); r.Shares[0].TrainLoss != 0 || r.Shares[0].Loss != 0 || r.Evaluation != nil || r.Shares[0].Examples == 0 {
		t.Errorf("losses leave the agent: %v", r)
	}
	s.give(s.task(t, "loss", 0, small("fednorm", settings{"client.batch": 16}), 9, "meter-00"))
	if reason := s.declined(t, "loss"); !strings.Contains(reason, "needs the clients' losses") {
		t.Errorf("declined because %q", reason)
	}
	// A restart does not reset the day's count.
	stop()
	stop = start(t, c)
	s.give(s.task(t, "fourth", 0, plan, 9, "meter-00"))
	if reason := s.declined(t, "fourth"); !strings.Contains(reason, "has trained 3 rounds today, the most is 3 (policy.rounds_per_day)") {
		t.Errorf("declined because %q", reason)
	}
	// Held-out clients are reported without a score.
	s.mu.Lock()
	heldOut := true
	var answers []*loadstarv1.Adapted
	s.checkIn = func(r *loadstarv1.ExchangeRequest, a *loadstarv1.ExchangeResponse) error {
		if answers = append(answers, r.Adapted...); heldOut {
			heldOut = false
			a.Adapt = []*loadstarv1.Task{{Run: "silent", Clients: []string{"meter-01"}, Round: 4, Fleet: 9}}
		}
		return nil
	}
	s.mu.Unlock()
	s.wait(t, "an answer", func() bool { return len(answers) > 0 })
	if answers[0].Evaluation != nil || len(answers[0].Clients) != 1 {
		t.Errorf("answered %v", answers[0])
	}
	stop()
}

func TestFewWindows(t *testing.T) {
	d := meters(t, 1)
	plan := small("fedavg", settings{"evaluate.every": 1})
	for _, least := range []int{1, 10_000} {
		p := policy.Policy{LeastExamples: least, ShareLosses: true}
		s, err := newSession(small("fedavg", settings{"evaluate.every": 1, "evaluate.windows": 10_000, "client.batch": 10_000}).text(t), 9, d, kernels(t), 1, 1<<30, &p, testSecret)
		if err != nil {
			t.Fatal(err)
		}
		_, _, server := compose(t, plan.text(t), 9)
		m := d.Meter(0)
		got := s.evaluate(server.Task(0), m, s.Problem.Examples(m, s.Problem.Framer.Ranges(m)), s.initial, true)
		if (got != nil) != (least == 1) {
			t.Errorf("at least %d windows: %v", least, got)
		}
	}
}

// TestPlansOfAWeek checks that plans are counted across restarts, and that plans in use are
// kept.
func TestPlansOfAWeek(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2026, 11, 16, 23, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	for i, x := range []struct {
		plan  string
		after time.Duration
		want  int
	}{
		{"a", 0, 1}, {"a", 0, 1}, {"b", 0, 2}, {"c", 0, 3}, {"b", 3 * day, 2}, {"c", 6 * day, 3}, {"c", 7 * day, 2}, {"a", 8 * day, 3}, {"c", 10 * day, 1},
	} {
		s, err := state.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := s.CountPlan(x.plan, 2, now.Add(x.after)); err != nil || n != x.want {
			t.Errorf("call %d: %d, %v; want %d", i, n, err, x.want)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRoundsOfADay(t *testing.T) {
	dir := t.TempDir()
	s, err := state.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 16, 23, 0, 0, 0, time.UTC)
	for i, x := range []struct {
		task  string
		after time.Duration
		want  int
	}{
		{"a", 0, 1}, {"a", 0, 1}, {"b", 0, 2}, {"a", 0, 2}, {"c", 0, 3}, {"d", 0, 3}, {"b", 0, 2}, {"b", time.Hour, 1},
	} {
		if n, err := s.CountRound(x.task, 2, now.Add(x.after)); err != nil || n != x.want {
			t.Errorf("call %d: %d, %v; want %d", i, n, err, x.want)
		}
	}
	id := func(change func(t *loadstarv1.Task)) string {
		task := &loadstarv1.Task{Run: "run", Round: 3, Version: 3, Clients: []string{"a"}, Plan: "p", Weights: "w", LeaseMs: 1000, Fold: true, Fleet: 9}
		change(task)
		id, err := taskID(task)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	first := id(func(*loadstarv1.Task) {})
	if id(func(t *loadstarv1.Task) { t.Clients, t.LeaseMs, t.Fold = []string{"b"}, 2, false }) != first {
		t.Error("another client of the same round has another identifier")
	}
	for name, change := range map[string]func(t *loadstarv1.Task){
		"weights": func(t *loadstarv1.Task) { t.Weights = "x" }, "plan": func(t *loadstarv1.Task) { t.Plan = "x" },
		"version": func(t *loadstarv1.Task) { t.Version = 2 }, "control": func(t *loadstarv1.Task) { t.Control = "x" },
		"limits": func(t *loadstarv1.Task) { t.Limits = &loadstarv1.Limits{Norm: 1} },
	} {
		if id(change) == first {
			t.Errorf("the same round with other %s is not counted", name)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
