package audit

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/fed/setup"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// subject returns a client with random loads and the given number of days and updates. Its plan
// has only calendar inputs, so the other readings do not help to guess a reading.
func subject(t *testing.T, days, steps, updates int) Subject {
	t.Helper()
	r := rand.New(rand.NewPCG(11, 12))
	m := series.Meter{ID: "home", Start: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC).Unix()}
	for i := range 24 * days {
		evening := 1.0
		if i%24 >= 18 {
			evening = 1.4
		}
		m.Load = append(m.Load, float32(evening*min(math.Exp(0.8*r.NormFloat64()), 5)))
	}
	d, err := series.NewDataset(series.Dataset{Name: "home", Interval: time.Hour, Clock: time.UTC}, []series.Meter{m})
	if err != nil {
		t.Fatal(err)
	}
	p, err := recipe.Read([]byte(`
name: trial
algorithm: fedavg
seed: 3
model: {name: fekri2023, lookback: 1, targets: 1, inputs: [hour, day_of_week], loss: mse, split: {train: 0.7, validation: 0.15}}
client: {optimizer: sgd, lr: 0.001, batch: 64}
server: {clip: 0}
`))
	if err != nil {
		t.Fatal(err)
	}
	p.Client.Steps = steps
	q, err := recipe.Frame(p, d)
	if err != nil {
		t.Fatal(err)
	}
	s := Subject{Kernel: kernel.Available()[0], Meter: d.Meter(0), First: true, Progress: func(int, int) {}}
	if s.Setup, err = setup.New(p, q, 9); err != nil {
		t.Fatal(err)
	}
	ranges := q.Framer.Ranges(s.Meter)
	s.Examples = func(m series.Meter) series.Examples { return q.Examples(m, ranges) }
	s.Kept = s.Setup.InitialKept(s.Setup.NewWorker(s.Kernel))
	shared, _ := s.Setup.InitialWeights()
	for round := range updates {
		s.Tasks = append(s.Tasks, fed.Task{Run: "run", Round: round, Version: round, Shared: shared})
	}
	return s
}

// secret returns the subject of an agent with secret draws.
func secret(t *testing.T, s Subject) Subject {
	t.Helper()
	var err error
	if s.Setup, err = s.Setup.OfAgent([32]byte{1}); err != nil {
		t.Fatal(err)
	}
	return s
}

func run(t *testing.T, s Subject) map[string]Attack {
	t.Helper()
	all, err := Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]Attack{}
	for _, a := range all {
		t.Logf("%s from %d updates: %.3f, %.3f without them, %.3f with known draws: %s", a.Name, a.Updates, a.Guess.Correlation, a.Empty.Correlation, a.Known.Correlation, a.Meaning)
		if n := len(a.Truth); n == 0 || len(a.Labels) != n || len(a.Guess.Load) != n || len(a.Known.Load) != n || len(a.Empty.Load) != n {
			t.Errorf("%s: %d numbers", a.Name, n)
		}
		found[a.Name] = a // later attacks, on all updates, replace earlier ones
	}
	return found
}

// TestSecretDraws checks that the attack finds single readings if the draws are public, and
// does not find them if the draws are secret.
func TestSecretDraws(t *testing.T) {
	s := subject(t, 300, 80, 3)
	public := run(t, s)[Readings]
	if public.Guess.Correlation < 0.9 || !slices.Equal(public.Guess.Load, public.Known.Load) || public.Meaning != "almost exactly" {
		t.Errorf("with public draws the correlation is %.3f, so the attack shows nothing", public.Guess.Correlation)
	}
	hidden := run(t, secret(t, s))
	if a := hidden[Readings]; a.Guess.Correlation > 0.3 || a.Known.Correlation < 0.9 {
		t.Errorf("with secret draws: %.3f, and %.3f if they were known", a.Guess.Correlation, a.Known.Correlation)
	}
	// A mean over many readings does not depend on which of them were drawn.
	if a := hidden[Profile]; a.Guess.Correlation < 0.6 || a.Meaning == "no better than by chance" {
		t.Errorf("the profile: %.3f", a.Guess.Correlation)
	}
}

// TestLittleData checks that an audit reveals what secret draws cannot protect: many passes
// over little data.
func TestLittleData(t *testing.T) {
	if a := run(t, secret(t, subject(t, 12, 20, 5)))[Readings]; a.Guess.Correlation < 0.5 {
		t.Errorf("the correlation is %.3f", a.Guess.Correlation)
	}
}

// TestOneUpdate checks that a single update is attacked only once, and that a subject without
// updates is an error.
func TestOneUpdate(t *testing.T) {
	s := subject(t, 12, 2, 1)
	all, err := Run(t.Context(), s)
	if err != nil || len(all) != 2 || all[0].Name != Profile || all[1].Name != Readings || all[0].Updates != 1 || len(all[0].Truth) != 24 {
		t.Errorf("%+v, %v", all, err)
	}
	many := subject(t, 12, 2, 3)
	many.Time = 1 // a nanosecond
	if all, err = Run(t.Context(), many); err != nil || len(all) != 2 || all[0].Updates != 1 {
		t.Errorf("without time: %+v, %v", all, err)
	}
	s.Tasks = nil
	if _, err := Run(t.Context(), s); err == nil {
		t.Error("no error without updates")
	}
}
