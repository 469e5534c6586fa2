package agent

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/policy"
	"loadstar/fed/recipe"
	"loadstar/fed/setup"
	"loadstar/forecast"
	"loadstar/internal/leak"
	"loadstar/metric"
	"loadstar/series"
)

// These tests attack a client as a server can that chooses the plan and the weights. Each
// attack must succeed without the defence, so that the test can fail, and must learn nothing
// with it: a correlation of at most 0.2 with the true values.
const learned, nothing = 0.9, 0.2

// home returns a dataset of one meter with random hourly loads. The lowest and the highest one
// are at the start, so that the scaling does not depend on where training data ends.
func home(t testing.TB, days int) *series.Dataset {
	t.Helper()
	r := rand.New(rand.NewPCG(11, 12))
	m := series.Meter{ID: "home", Start: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC).Unix()}
	for range 24 * days {
		m.Load = append(m.Load, float32(min(math.Exp(0.8*r.NormFloat64()), 9)))
	}
	m.Load[0], m.Load[1] = 0, 10
	return dataset(t, series.Dataset{Name: "home", Interval: time.Hour, Clock: time.UTC}, m)
}

// still is a plan whose weights do not move.
func still(algorithm string, more settings) settings {
	s := small(algorithm, settings{
		"model.lookback": 1, "model.targets": 1, "model.inputs": []string{"hour", "day_of_week"}, "model.loss": "mse", "seed": 3,
		"client.optimizer": "sgd", "client.lr": 1e-12, "client.batch": 32, "client.steps": 2, "server.clip": 0,
	})
	if algorithm == "fedsgd" {
		delete(s, "client.steps")
		delete(s, "client.lr")
	}
	for k, v := range more {
		s[k] = v
	}
	return s
}

// plain returns the setup of a plan without what protects an agent's clients.
func plain(t testing.TB, plan settings, d *series.Dataset) *setup.Setup {
	t.Helper()
	p, err := recipe.Read(plan.text(t))
	if err != nil {
		t.Fatal(err)
	}
	q, err := recipe.Frame(p, d)
	if err != nil {
		t.Fatal(err)
	}
	s, err := setup.New(p, q, 9)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ofAgent returns the setup that an agent uses for the same plan.
func ofAgent(t testing.TB, s *setup.Setup) *setup.Setup {
	t.Helper()
	s, err := s.OfAgent(testSecret)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// losses returns the training losses that the client reports in a number of rounds.
func losses(t testing.TB, s *setup.Setup, d *series.Dataset, rounds int) (all []float64, n int) {
	t.Helper()
	m := d.Meter(0)
	w := s.NewWorker(kernels(t))
	data := s.Problem.Examples(m, s.Problem.Framer.Ranges(m))
	c := client.Client{ID: "home", Data: []series.Examples{data}, Kept: s.InitialKept(w), First: true}
	shared, _ := s.InitialWeights()
	for r := range rounds {
		var u fed.Update
		if err := w.Train(t.Context(), &c, fed.Task{Run: "run", Round: r, Version: r, Shared: shared}, &u); err != nil {
			t.Fatal(err)
		}
		all = append(all, u.TrainLoss)
	}
	return all, data.Len(series.Train)
}

// judge checks the correlations of what an attack learned without and with the defence.
func judge(t *testing.T, without, with float64) {
	t.Helper()
	t.Logf("correlation with the truth: %.3f without the defence, %.3f with it", without, with)
	if without < learned {
		t.Errorf("without the defence the correlation is %.3f, so this attack shows nothing", without)
	}
	if math.Abs(with) > nothing {
		t.Errorf("with the defence the correlation is %.3f, at most %g is allowed", with, nothing)
	}
}

// TestLeakOfBatches solves the losses of known batches for the loss of each hour.
func TestLeakOfBatches(t *testing.T) {
	d := home(t, 16)
	public := plain(t, still("fedavg", nil), d)
	truth := leak.Errors(leak.Examples(public, d.Meter(0), kernels(t)))
	attack := func(s *setup.Setup) float64 {
		b, n := losses(t, s, d, 330)
		var a []leak.Entry
		for r := range b {
			for _, k := range leak.PublicBatches(s.Plan.Seed, r, "home", n, 32, 2) {
				a = append(a, leak.Entry{Row: r, Column: k, Value: 1.0 / 64})
			}
		}
		return metric.Correlation(leak.LeastSquares(a, n, b, 3000), truth)
	}
	judge(t, attack(public), attack(ofAgent(t, public)))
}

// TestLeakOfFullPasses compares the losses of full passes over data that ends an hour later
// each time. A host may allow such passes; the digits of the losses and the blocks of training
// data remain.
func TestLeakOfFullPasses(t *testing.T) {
	d := home(t, 100)
	const first, hours = 1200, 120
	attack := func(change func(*setup.Setup) *setup.Setup, blocks bool) float64 {
		var got, truth []float64
		sum := 0.0
		for h := range hours + 1 {
			s := plain(t, still("fedsgd", settings{"model.split.train": (first + float64(h) + 0.5) / 2400, "model.split.validation": 0.1}), d)
			if blocks {
				s.Problem.EndAtBlocks()
				if err := s.Problem.Open(d); err != nil {
					t.Fatal(err)
				}
			}
			loss, n := losses(t, change(s), d, 1)
			if h > 0 {
				got = append(got, loss[0]*float64(n)-sum)
			}
			sum = loss[0] * float64(n)
			if h == hours && !blocks {
				truth = leak.Errors(leak.Examples(s, d.Meter(0), kernels(t)))
			}
		}
		if blocks {
			s := plain(t, still("fedsgd", settings{"model.split.train": (first + hours + 0.5) / 2400, "model.split.validation": 0.1}), d)
			truth = leak.Errors(leak.Examples(s, d.Meter(0), kernels(t)))
		}
		return metric.Correlation(got, truth[len(truth)-hours:])
	}
	same := func(s *setup.Setup) *setup.Setup { return s }
	judge(t, attack(same, false), attack(func(s *setup.Setup) *setup.Setup { return ofAgent(t, s) }, false))
	judge(t, attack(same, false), attack(same, true))
}

// scores returns the relative MAE of a constant forecast, without a defence, and as the agent
// reports it: NaN if it reports none.
func scores(t testing.TB, s *session, d *series.Dataset, value float32) (exact, told float64) {
	t.Helper()
	m := d.Meter(0)
	data := s.Problem.Examples(m, s.Problem.Framer.Ranges(m))
	scorer := forecast.NewScorer(s.Problem.Model, kernels(t), s.Problem.Loss)
	scorer.Reference, scorer.Stride = forecast.Reference(s.Plan.Evaluate.Reference), s.Plan.Evaluate.Stride.Steps()
	shared := leak.Constant(s.Setup, value)
	w := make([]float32, s.Problem.Model.Net().Weights())
	s.Problem.Partition.Join(w, shared, s.initial[:s.Problem.Partition.PersonalLen()])
	score, _, err := scorer.Score(w, m, data, series.Validation, s.Plan.Evaluate.Windows, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := s.evaluate(fed.Task{Run: "run", Shared: shared}, m, data, s.initial, true)
	if e == nil {
		return score.Overall.RelativeMAE(), math.NaN()
	}
	return score.Overall.RelativeMAE(), float64(e.RelativeMae) / 1e6
}

// scored opens a session of an agent whose policy demands the given number of windows.
func scored(t testing.TB, d *series.Dataset, least int, more settings) *session {
	t.Helper()
	plan := still("fedavg", settings{"evaluate.every": 1, "evaluate.windows": 100_000, "evaluate.reference": "last-week"})
	for k, v := range more {
		plan[k] = v
	}
	allow := policy.None()
	allow.LeastExamples = least
	s, err := newSession(plan.text(t), 9, d, kernels(t), 1, 1<<30, &allow, testSecret)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestLeakOfStride scores one window with a stride that fits no other.
func TestLeakOfStride(t *testing.T) {
	d := home(t, 100)
	m := d.Meter(0)
	var got, truth []float64
	for hour := range 24 {
		s := scored(t, d, 64, nil)
		s.Plan.Evaluate.Stride, s.scoring.scorer.Stride = fed.Steps(1750+hour), 1750+hour // a setting of the model dense
		below, told := scores(t, s, d, -1)
		above, _ := scores(t, s, d, 2)
		if !math.IsNaN(told) {
			t.Fatalf("stride %d: an error of one window was reported: %g", 1750+hour, told)
		}
		got, truth = append(got, leak.MeanOf(-1, 2, below, above)), append(truth, float64(m.Load[1750+hour]))
	}
	judge(t, metric.Correlation(got, truth), 0)
}

// TestLeakOfScores compares scores of validation data that ends an hour later each time.
func TestLeakOfScores(t *testing.T) {
	d := home(t, 100)
	m := d.Meter(0)
	var exact, told, truth []float64
	var sum, toldSum float64
	const train, first, hours = 1200, 300, 300
	for h := range hours + 1 {
		n := float64(first + h)
		s := scored(t, d, 64, settings{"model.split.train": (train + 0.25) / 2400.0, "model.split.validation": n / 2400})
		below, toldBelow := scores(t, s, d, -1)
		above, toldAbove := scores(t, s, d, 2)
		if h > 0 {
			exact, told = append(exact, leak.MeanOf(-1, 2, below, above)*n-sum), append(told, leak.MeanOf(-1, 2, toldBelow, toldAbove)*n-toldSum)
			truth = append(truth, float64(m.Load[train+first+h-1]))
		}
		sum, toldSum = leak.MeanOf(-1, 2, below, above)*n, leak.MeanOf(-1, 2, toldBelow, toldAbove)*n
	}
	judge(t, metric.Correlation(exact, truth), metric.Correlation(told, truth))
}

// TestWholeBlocks checks that a session has the training data that the simulator has with
// blocks, and less than without them.
func TestWholeBlocks(t *testing.T) {
	d := home(t, 100)
	m, plan := d.Meter(0), still("fedavg", nil)
	length := func(p *recipe.Problem) int { return p.Examples(m, p.Framer.Ranges(m)).Len(series.Train) }
	allow := policy.None()
	allow.WholeBlocks = true
	s, err := newSession(plan.text(t), 9, d, kernels(t), 1, 1<<30, &allow, testSecret)
	if err != nil {
		t.Fatal(err)
	}
	simulated := plain(t, plan, d)
	whole := length(simulated.Problem)
	simulated.Problem.EndAtBlocks()
	if err := simulated.Problem.Open(d); err != nil {
		t.Fatal(err)
	}
	if got, want := length(s.Problem), length(simulated.Problem); got != want || got >= whole || got < whole-28*24 {
		t.Errorf("%d examples, the simulator has %d; %d without blocks", got, want, whole)
	}
}
