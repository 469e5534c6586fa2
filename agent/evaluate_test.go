package agent

import (
	"bytes"
	"math"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"

	"loadstar/agent/state"
	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/policy"
	"loadstar/fed/recipe"
	"loadstar/fed/serve"
	"loadstar/fed/setup"
	"loadstar/forecast"
	loadstarv1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
)

// relative returns a client's relative MAE with the weights of version 0 in round 0 of the
// run "run", as an agent reports it.
func relative(t *testing.T, q *setup.Setup, m series.Meter, data series.Examples) int64 {
	t.Helper()
	s := forecast.NewScorer(q.Problem.Model, kernels(t), q.Problem.Loss)
	s.Reference, s.Stride = forecast.Reference(q.Plan.Evaluate.Reference), q.Plan.Evaluate.Stride.Steps()
	shared, personal := q.InitialWeights()
	w := make([]float32, q.Problem.Model.Net().Weights())
	q.Problem.Partition.Join(w, q.Problem.SharedWeights(shared), personal)
	s.Leave = (&session{Setup: q}).leaveOut(&fed.Task{Run: "run", Shared: shared}, fed.ClientID(m.ID), data, series.Validation)
	score, _, err := s.Score(w, m, data, series.Validation, q.Plan.Evaluate.Windows, nil)
	if err != nil {
		t.Fatal(err)
	}
	return reported(score.Overall.RelativeMAE())
}

// setupOf returns the setup of a plan with its data.
func setupOf(t *testing.T, text []byte, d *series.Dataset) *setup.Setup {
	t.Helper()
	p, err := recipe.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	q, err := recipe.Frame(p, d)
	if err != nil {
		t.Fatal(err)
	}
	s, err := setup.New(p, q, 5)
	if err == nil {
		s, err = s.OfAgent(testSecret)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestEvaluation checks that results contain the sum of the validation errors of the weights
// that their clients received, and that evaluating does not change the trained weights.
func TestEvaluation(t *testing.T) {
	for name, plan := range map[string]settings{
		"windows": small("fedavg", settings{"partition": "head", "evaluate.windows": 20}),
		"rows":    dense(settings{"evaluate.windows": 20}),
	} {
		t.Run(name, func(t *testing.T) {
			d := meters(t, 5)
			plan["evaluate.every"] = 2
			q := setupOf(t, plan.text(t), d)
			var sum int64
			for i := range d.Len() {
				m := d.Meter(i)
				sum += relative(t, q, m, q.Problem.Examples(m, q.Problem.Framer.Ranges(m)))
			}
			if sum < 100_000 {
				t.Fatalf("the relative MAE of 5 clients is %d millionths", sum)
			}
			pushes := map[bool]map[int64]*loadstarv1.Result{}
			for _, share := range []bool{true, false} {
				s := newStub(t)
				c := config(t, "a", s.http.URL, t.TempDir(), d)
				c.Chunk, c.Workers, c.Policy = 1<<20, 2, &policy.Policy{ShareLosses: share}
				start(t, c)
				pushes[share] = map[int64]*loadstarv1.Result{}
				for r := range int64(4) {
					task := s.task(t, "run", r, plan, d.Len(), namesOf(d)...)
					task.Fold = true
					s.give(task)
					pushes[share][r] = s.pushed(t, "run", r)
				}
			}
			for r := range int64(4) {
				with, without := pushes[true][r], pushes[false][r]
				if with.Checksum != without.Checksum {
					t.Errorf("round %d: the weights differ", r)
				}
				if without.Evaluation != nil || (with.Evaluation != nil) != (r != 1) {
					t.Errorf("round %d: %v, and %v without evaluation", r, with.Evaluation, without.Evaluation)
				}
			}
			if e := pushes[true][0].Evaluation; e.GetClients() != 5 || e.GetRelativeMae() != sum {
				t.Errorf("%v, want a sum of %d", e, sum)
			}
		})
	}
}

// TestNotEvaluated checks that clients are left out if they have no validation examples or
// their forecasts are not finite.
func TestNotEvaluated(t *testing.T) {
	d := meters(t, 2)
	s, err := newSessionOf(t, d, small("fedavg", settings{"evaluate.every": 1}))
	if err != nil {
		t.Fatal(err)
	}
	m := d.Meter(0)
	shared, _ := s.InitialWeights()
	task := fed.Task{Shared: shared}
	if e := s.evaluate(task, m, s.Problem.Examples(m, s.Problem.Framer.Ranges(m)), s.initial, true); e.GetClients() != 1 || e.GetRelativeMae() < 1 {
		t.Errorf("%v", e)
	}
	short := m
	short.Load = slices.Clone(m.Load)
	for i := len(short.Load) / 2; i < len(short.Load); i++ {
		short.Load[i] = float32(math.NaN())
	}
	if e := s.evaluate(task, short, s.Problem.Examples(short, s.Problem.Framer.Ranges(short)), s.initial, true); e != nil {
		t.Errorf("without validation examples: %v", e)
	}
	huge := slices.Repeat([]float32{math.MaxFloat32}, len(shared))
	if e := s.evaluate(fed.Task{Shared: huge}, m, s.Problem.Examples(m, s.Problem.Framer.Ranges(m)), s.initial, true); e.GetRelativeMae() > 100e6 {
		t.Errorf("huge weights: %v", e)
	}
	if e := s.evaluate(fed.Task{Shared: huge[:3]}, m, nil, s.initial, true); e != nil {
		t.Errorf("too few weights: %v", e)
	}
	// A plan that would not fit into memory with scoring is trained without it.
	p, q := s.Plan, s.Problem
	need := footprint(p, q, 1)
	for extra, want := range map[int64]bool{scoringBytes(p, q): true, scoringBytes(p, q) - 1: false} {
		s, err := newSession(small("fedavg", settings{"evaluate.every": 1}).text(t), 9, d, kernels(t), 1, need+extra, &anyPlan, testSecret)
		if err != nil || (s.scoring != nil) != want {
			t.Errorf("with %d bytes more than training needs: %v", extra, err)
		}
	}
}

// TestGrowingReadings checks that a run uses the readings that exist when it begins or resumes,
// with the scaling of the first counted result.
func TestGrowingReadings(t *testing.T) {
	for name, plan := range map[string]settings{"windows": small("fedavg", settings{"partition": "head"}), "rows": dense(nil)} {
		t.Run(name, func(t *testing.T) {
			whole := meters(t, 3)
			var short []series.Meter
			for i := range whole.Len() {
				m := whole.Meter(i)
				m.Load = m.Load[:len(m.Load)*3/4]
				short = append(short, m)
			}
			early := dataset(t, *whole, short...)
			var grown atomic.Bool
			var open, opened atomic.Int64
			s := newStub(t)
			c := config(t, "a", s.http.URL, t.TempDir(), nil)
			c.Chunk = 1 << 20
			c.Source = func() (*series.Dataset, func(), error) {
				open.Add(1)
				opened.Add(1)
				d := early
				if grown.Load() {
					d = whole
				}
				return d, func() { open.Add(-1) }, nil
			}
			train := func(run string, r int64) *loadstarv1.Result {
				s.give(s.task(t, run, r, plan, 5, "meter-00"))
				push := s.pushed(t, run, r)
				s.mu.Lock()
				n := len(s.checkIns)
				s.mu.Unlock()
				s.wait(t, "an agent that knows the verdict", func() bool {
					last := s.checkIns[len(s.checkIns)-1]
					return len(s.checkIns) > n+1 && len(last.Training)+len(last.Pushed) == 0
				})
				return push
			}
			stop := start(t, c)
			first := train("run", 0)
			grown.Store(true)
			second := train("run", 1) // the session is the same
			another := train("another run", 0)
			back := train("run", 2)
			stop()
			stop = start(t, c)
			later := train("run", 3)
			stop()
			if open.Load() != 0 || opened.Load() != 6 { // an agent also reads its data at its start
				t.Errorf("%d of %d snapshots are open", open.Load(), opened.Load())
			}

			// Repeat all turns of the run without an agent.
			old, now := setupOf(t, plan.text(t), early), setupOf(t, plan.text(t), whole)
			m := early.Meter(0)
			scaling := old.Problem.Scaling(m, old.Problem.Framer.Ranges(m))
			k := kernels(t)
			w := old.NewWorker(k)
			x := client.Client{ID: "meter-00", Kept: old.InitialKept(w), First: true}
			shared, _ := old.InitialWeights()
			for r, step := range []struct {
				q    *setup.Setup
				m    series.Meter
				push *loadstarv1.Result
			}{{old, m, first}, {old, m, second}, {now, whole.Meter(0), back}, {now, whole.Meter(0), later}} {
				x.Data = []series.Examples{step.q.Problem.Frozen(step.m, scaling)}
				var u fed.Update
				if err := w.Train(t.Context(), &x, fed.Task{Run: "run", Round: r, Shared: shared}, &u); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(step.push.Chunk, old.Rules.AppendUpdate(nil, &u)) {
					t.Errorf("round %d differs", r)
				}
			}
			store, err := state.Open(c.Dir)
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			b, err := store.Scaling("run", "meter-00")
			if err != nil {
				t.Fatal(err)
			}
			if got, err := serve.DecodeScaling(b); err != nil || !reflect.DeepEqual(got, scaling) {
				t.Errorf("the stored scaling differs: %v", err)
			}
			// A run that begins later has the scaling of the readings at that time.
			m = whole.Meter(0)
			if b, err := store.Scaling("another run", "meter-00"); err != nil || !bytes.Equal(b, serve.EncodeScaling(now.Problem.Scaling(m, now.Problem.Framer.Ranges(m)))) {
				t.Errorf("the other run has another scaling: %v", err)
			}
			if bytes.Equal(another.Chunk, first.Chunk) {
				t.Error("the other run has the same update")
			}
		})
	}
}
