package sim

import (
	"flag"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/series"
)

// check is like rapid.Check with fewer cases, because each case simulates several runs. Use
// -rapid.checks for more.
func check(t *testing.T, n int, law func(*rapid.T)) {
	t.Helper()
	const usual = "100"
	if f := flag.Lookup("rapid.checks"); f.Value.String() == usual {
		if testing.Short() {
			n *= 2 // rapid divides by five
		}
		if err := f.Value.Set(fmt.Sprint(n)); err != nil {
			t.Fatal(err)
		}
		defer f.Value.Set(usual)
	}
	rapid.Check(t, law)
}

// meters is the number of meters in most tests.
const meters = 7

// anyOptimizer lists the algorithms that work with any client optimizer.
var anyOptimizer = []string{"fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "fedavgadaptive", "fedbuff", "fednorm", "reptile"}

// draw returns a random plan of the given algorithm that is quick to simulate.
func draw(t *rapid.T, algorithm string) settings {
	s := small(algorithm).with(settings{
		"seed":          rapid.IntRange(1, 1000).Draw(t, "seed"),
		"rounds":        rapid.IntRange(2, 4).Draw(t, "rounds"),
		"client.batch":  rapid.IntRange(8, 16).Draw(t, "batch"),
		"model.scaling": rapid.SampledFrom([]string{"client", "fleet"}).Draw(t, "scaling"),
		"model.loss":    rapid.SampledFrom([]string{"mse", "mae", "pinball"}).Draw(t, "loss"),
	})
	if s["model.loss"] == "pinball" {
		s["model.quantiles"] = []float64{0.2, 0.5, 0.9}
	}
	partitions := []string{"none", "head", "lstm_l0"}
	if rapid.IntRange(0, 3).Draw(t, "model") == 0 {
		s["model.name"], s["model.lookback"] = "bose2023", 2
		partitions = []string{"none", "head", "head+top", "lstm_l0", "lstm_l1, fc.2"}
	}
	if algorithm != "local" && algorithm != "pooled" {
		s["partition"] = rapid.SampledFrom(partitions).Draw(t, "partition")
		s["schedule.cohort"] = rapid.IntRange(0, 5).Draw(t, "cohort")
	}
	if algorithm != "fedsgd" {
		s["client.steps"] = rapid.IntRange(1, 3).Draw(t, "steps")
		if rapid.IntRange(0, 9).Draw(t, "work") == 0 {
			delete(s, "client.steps")
			s["client.epochs"] = 1
		} else {
			s["client.resample"] = rapid.SampledFrom([]string{"step", "round"}).Draw(t, "resample")
		}
	}
	if slices.Contains(anyOptimizer, algorithm) {
		s["client.optimizer"] = rapid.SampledFrom([]string{"sgd", "adam", "amsgrad", "prox", "proxadam"}).Draw(t, "optimizer")
	}
	if algorithm != "fedsgd" {
		if rapid.Bool().Draw(t, "cosine") {
			s["client.lr_end"], s["client.warmup"] = 1e-9, rapid.IntRange(0, 4).Draw(t, "warmup")
		}
		if algorithm != "pfedme" {
			s["client.weight_decay.all"] = rapid.SampledFrom([]float64{0, 0.01}).Draw(t, "weight decay")
		}
		switch s["client.optimizer"] {
		case "adam", "amsgrad", "proxadam":
			s["client.moments"] = rapid.SampledFrom([]string{"reset", "kept"}).Draw(t, "moments")
		}
	}
	switch algorithm {
	case "fedavg", "fedprox", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "fedavgadaptive":
		if s["client.begin"] = rapid.SampledFrom([]string{"received", "own"}).Draw(t, "begin"); s["client.begin"] == "own" {
			s["evaluate.weights"] = rapid.SampledFrom([]string{"shared", "own"}).Draw(t, "scored weights")
		}
	}
	switch algorithm {
	case "fedavgadaptive", "fedasync", "fedsim", "local", "pooled":
	default:
		s["server.weighting"] = rapid.SampledFrom([]string{"examples", "uniform"}).Draw(t, "weighting")
	}
	switch algorithm {
	case "fedbuff", "fednorm", "fedsim":
		s["server.optimizer"] = rapid.SampledFrom([]string{"fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi"}).Draw(t, "server optimizer")
	}
	if algorithm == "perfedavg" || algorithm == "fedmeta" {
		s["client.query"] = rapid.SampledFrom([]float64{0, 0.2}).Draw(t, "query")
	}
	if algorithm == "fednorm" {
		s["server.loss"] = rapid.SampledFrom([]string{"received", "trained"}).Draw(t, "loss of")
		s["schedule.kind"] = rapid.SampledFrom([]string{"periodic", "synchronous", "buffered"}).Draw(t, "kind")
		if s["schedule.kind"] == "buffered" {
			s["schedule.buffer"] = 2
		}
	}
	return s
}

// uneven returns random settings with which clients have different speeds.
func uneven(t *rapid.T, label string) settings {
	return settings{
		"simulate.step_time":    fmt.Sprint(time.Duration(rapid.IntRange(0, 2000).Draw(t, label+" step")) * time.Millisecond),
		"simulate.speed_spread": rapid.Float64Range(0, 2).Draw(t, label+" speeds"),
		"simulate.link":         rapid.SampledFrom([]float64{0, 1e3, 1e6}).Draw(t, label+" link"),
		"simulate.link_spread":  rapid.Float64Range(0, 2).Draw(t, label+" links"),
		"simulate.latency":      fmt.Sprint(time.Duration(rapid.IntRange(0, 500).Draw(t, label+" latency")) * time.Millisecond),
	}
}

// identical fails unless the weights of two runs are bit-identical.
func identical(t tester, what string, a, b *outcome) {
	t.Helper()
	if a.Weights != b.Weights {
		t.Fatalf("%s: weights %s and %s", what, a.Weights, b.Weights)
	}
}

// With mu = 0, the optimizer prox gives the same weights as sgd, and proxadam the same as
// adam.
func TestProxWithoutMuEqualsInnerOptimizer(t *testing.T) {
	d, b := dataset(t, houses(t, meters)...), newRunner(t)
	differ := 0
	check(t, 30, func(t *rapid.T) {
		algorithm := rapid.SampledFrom(append(anyOptimizer, "fedasync", "fedprox")).Draw(t, "algorithm")
		pair := rapid.SampledFrom([][2]string{{"prox", "sgd"}, {"proxadam", "adam"}}).Draw(t, "optimizers")
		s := draw(t, algorithm).with(settings{"client.lr": 0.01})
		tied := s.with(settings{"client.optimizer": pair[0], "client.mu": 0})
		plain := s.with(settings{"client.optimizer": pair[1]})
		if algorithm == "fedprox" { // fedprox with mu = 0 equals fedavg
			plain["algorithm"] = "fedavg"
		}
		without := b.run(t, plain, d, 1)
		identical(t, fmt.Sprint(s), b.run(t, tied, d, 1), without)
		tied["client.mu"] = 5
		if b.run(t, tied, d, 1).Weights != without.Weights {
			differ++
		}
	})
	// Mu has no effect in plans in which no client trains again or takes a second step.
	if differ == 0 {
		t.Error("mu has no effect in any plan")
	}
}

// A buffer with the cohort's size and without stale updates gives the same weights as a
// synchronous round, in which discounts have no effect. The weights are bit-identical only if
// both plans use the same scale of the sums. The scale depends on the largest number of
// updates, which is the cohort in one plan and the fleet in the other. The test therefore sets
// a max_examples at which this number does not limit the scale.
func TestFullBufferEqualsSynchronous(t *testing.T) {
	d, b := dataset(t, houses(t, meters)...), newRunner(t)
	check(t, 30, func(t *rapid.T) {
		server := rapid.SampledFrom([]string{"fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi"}).Draw(t, "server optimizer")
		s := draw(t, server)
		delete(s, "client.begin") // fedbuff does not have it
		delete(s, "evaluate.weights")
		cohort := rapid.IntRange(1, meters).Draw(t, "buffer")
		s["schedule.cohort"] = cohort
		if s["server.weighting"] == "examples" && cohort < meters {
			s["server.max_examples"] = 255
		}
		buffered := s.with(settings{
			"algorithm": "fedbuff", "server.optimizer": server, "schedule.buffer": cohort,
			"server.discount": rapid.SampledFrom([]string{"constant", "polynomial", "hinge"}).Draw(t, "discount"),
		})
		if buffered["server.discount"] != "constant" {
			buffered["server.exponent"] = 3
		}
		if buffered["server.discount"] == "hinge" {
			buffered["server.hinge"] = rapid.IntRange(0, 2).Draw(t, "hinge")
		}
		x, y := b.run(t, s, d, 1), b.run(t, buffered, d, 2)
		identical(t, fmt.Sprint(buffered), x, y)
		if x.files["rounds.csv"] != y.files["rounds.csv"] || x.files["clients.csv"] != y.files["clients.csv"] {
			t.Fatalf("%v: the tables differ:\n%s\n%s", buffered, x.files["rounds.csv"], y.files["rounds.csv"])
		}
	})
}

// If all layers are personal, a client's training does not depend on other clients. Only
// algorithm local allows this partition.
func TestAllPersonalEqualsLocal(t *testing.T) {
	all, b := houses(t, meters), newRunner(t)
	d := dataset(t, all...)
	check(t, 10, func(t *rapid.T) {
		s := draw(t, "local")
		s["model.scaling"] = "client" // ranges of the whole fleet would depend on all clients
		together := b.run(t, s, d, 2)
		if len(together.personal) != meters {
			t.Fatalf("%d clients have weights, want all", len(together.personal))
		}
		for _, i := range rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6}).Draw(t, "who")[:2] {
			m := all[i]
			alone := b.run(t, s, dataset(t, m), 1)
			if !same(alone.personal[m.ID], together.personal[m.ID]) {
				t.Fatalf("%v: %s alone ends with different weights", s, m.ID)
			}
			s := s.plan(t)
			direct := newDirect(t, s, dataset(t, m))
			for r := range s.Rounds {
				direct.train(t, r)
			}
			if !same(direct.weights(), alone.personal[m.ID]) {
				t.Fatalf("%v: %s trained directly ends with different weights", s, m.ID)
			}
		}
	})
	for _, p := range []string{"all", "lstm_l0, fc"} {
		s := small("fedavg").with(settings{"partition": p})
		if err := refused(t, s); err == nil || !strings.Contains(err.Error(), "shares no layers") {
			t.Errorf("partition %s: %v", p, err)
		}
	}
}

// refused returns the error of reading a plan, or nil.
func refused(t *testing.T, s settings) error {
	_, err := s.read(t)
	return err
}

func same(a, b []float32) bool {
	return len(a) > 0 && slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// direct trains one client with package fed/client alone, without a round machine, server
// or sums.
type direct struct {
	worker *client.Worker
	client client.Client
	shared []float32
	update fed.Update
}

func newDirect(t tester, p *fed.Plan, d *series.Dataset) *direct {
	t.Helper()
	s, err := newSimulation(Config{Plan: p, Dataset: d, Kernel: kernels(t), Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	x := &direct{worker: s.setup.NewWorker(s.Kernel), shared: s.server.Shared()}
	x.client = client.Client{ID: s.trainees[0].id, Data: s.trainees[0].data, Kept: s.setup.InitialKept(x.worker), First: true}
	return x
}

// train trains the client for round r, starting from the weights after the previous round.
func (x *direct) train(t tester, r int) {
	t.Helper()
	if err := x.worker.Train(ctx, &x.client, fed.Task{Round: r, Shared: x.shared}, &x.update); err != nil {
		t.Fatal(err)
	}
	if len(x.shared) > 0 { // otherwise all layers are personal
		x.shared = slices.Clone(x.worker.Weights())
	}
}

func (x *direct) weights() []float32 { return x.worker.Weights() }

// The order in which clients return does not change the result of a synchronous round that
// waits for all of them.
func TestArrivalOrderDoesNotMatter(t *testing.T) {
	d, b := dataset(t, houses(t, meters)...), newRunner(t)
	synchronous := slices.DeleteFunc(recipe.Names(), func(a string) bool {
		return slices.Contains([]string{"fedasync", "fedbuff", "local", "pooled"}, a)
	})
	check(t, 30, func(t *rapid.T) {
		s := draw(t, rapid.SampledFrom(synchronous).Draw(t, "algorithm"))
		s["schedule.kind"] = "synchronous"
		delete(s, "schedule.buffer")
		at := b.run(t, s, d, 1)
		for _, label := range []string{"a", "b"} {
			identical(t, fmt.Sprint(s), at, b.run(t, s.with(uneven(t, label)), d, 2))
		}
	})
}

// The number of workers does not change any result.
func TestWorkerCountDoesNotMatter(t *testing.T) {
	d, b := dataset(t, houses(t, meters)...), newRunner(t)
	for _, algorithm := range recipe.Names() {
		t.Run(algorithm, func(t *testing.T) {
			check(t, 3, func(t *rapid.T) {
				s := draw(t, algorithm)
				if algorithm != "local" && algorithm != "pooled" && (algorithm != "fednorm" || s["schedule.kind"] != "periodic") {
					s = s.with(uneven(t, "pace"))
					s["simulate.dropout"] = rapid.SampledFrom([]float64{0, 0.2}).Draw(t, "dropout")
				}
				s["evaluate.every"] = 2
				s["evaluate.fine_tune.steps"] = 1
				s["evaluate.fine_tune.lr"] = 0.01
				one := b.run(t, s, d, 1)
				for _, workers := range []int{2, 5} {
					if names := different(one.files, b.run(t, s, d, workers).files); len(names) > 0 {
						t.Fatalf("%v: with %d workers these files differ: %v", s, workers, names)
					}
				}
			})
		})
	}
}

// With a fleet of one client and a server that adopts the client's weights, the results
// equal those of direct training. They are not bit-identical, because updates are rounded
// to float32 and to the scale of the sums.
func TestSingleClientEqualsDirectTraining(t *testing.T) {
	all, b := houses(t, meters), newRunner(t)
	check(t, 20, func(t *rapid.T) {
		m := rapid.SampledFrom(all).Draw(t, "meter")
		algorithm := rapid.SampledFrom([]string{"fedavg", "pooled"}).Draw(t, "algorithm")
		s := draw(t, algorithm)
		s["partition"], s["client.optimizer"] = "none", "sgd" // adam amplifies rounding errors
		if algorithm == "fedavg" {
			s["schedule.cohort"], s["server.lr"] = 1, 1
			s["server.clip"] = 0 // direct training has no limits
		}
		p := s.plan(t)
		x := newDirect(t, p, dataset(t, m))
		for r := range p.Rounds {
			x.train(t, r)
		}
		got := b.run(t, s, dataset(t, m), 1)
		for i, want := range x.weights() {
			if math.Abs(float64(got.shared[i])-float64(want)) > 1e-6*max(math.Abs(float64(want)), 0.1) {
				t.Fatalf("%v: weight %d is %v, trained alone %v", s, i, got.shared[i], want)
			}
		}
	})
}

// An update with n examples has exactly the same effect as the same update from n clients
// with one example each.
func TestExampleWeightEqualsManyClients(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := small("fedavg").plan(t)
		parts, err := recipe.Compose(p, 100)
		if err != nil {
			t.Fatal(err)
		}
		rules := round.Rules{Scale: parts.Scale, Weight: parts.Weight}
		weighty, many := round.NewFold(rules), round.NewFold(rules)
		from := rapid.SliceOfN(rapid.Float32Range(-1, 1), 5, 5).Draw(t, "shared")
		servers := make([]*round.Server, 2)
		for i := range servers {
			parts, err := recipe.Compose(p, 100)
			if err != nil {
				t.Fatal(err)
			}
			servers[i] = round.NewServer(parts.NewAggregator(), parts.NewOptimizer(), 100, slices.Clone(from))
		}
		for c := range rapid.IntRange(1, 6).Draw(t, "clients") {
			u := fed.Update{
				Client: fed.ClientID(fmt.Sprint(c)), Examples: rapid.IntRange(1, 12).Draw(t, "examples"),
				Delta: rapid.SliceOfN(rapid.Float32Range(-16, 16), 5, 5).Draw(t, "delta"),
			}
			if err := weighty.Add(&u, from); err != nil {
				t.Fatal(err)
			}
			n := u.Examples
			for i := range n {
				u.Client, u.Examples = fed.ClientID(fmt.Sprint(c, " ", i)), 1
				if err := many.Add(&u, from); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i, f := range []*round.Fold{weighty, many} {
			if err := servers[i].Merge(0, f, nil); err != nil {
				t.Fatal(err)
			}
		}
		if !same(servers[0].Shared(), servers[1].Shared()) {
			t.Fatalf("%v and %v", servers[0].Shared(), servers[1].Shared())
		}
	})
}

// In a whole run, a client with twice the weight has the same effect as two copies of the
// client. The test uses fedsgd, which needs no random numbers, because random numbers depend on
// the client's name. The settings give both runs the same scale of the sums. The numbers of
// examples are powers of two, which cause no rounding. Limits are off, because they bound a
// client's weight.
func TestWeightEqualsClientCopies(t *testing.T) {
	b := newRunner(t)
	all := houses(t, 3)
	s := small("fedsgd").with(settings{"server.bound": 1, "server.clip": 0, "client.batch": 16})
	// A fleet with two copies of every client gives the same weights as the fleet itself.
	examples := s.with(settings{"server.max_examples": 1023})
	once := b.run(t, examples, dataset(t, all...), 2)
	twice := b.run(t, examples, dataset(t,
		all[0], all[1], all[2], copyAs(all[0], "x"), copyAs(all[1], "y"), copyAs(all[2], "z")), 2)
	identical(t, "twice the fleet", once, twice)

	// Two copies of a client give the same weights as one client with twice the weight.
	big, little := withExamples(t, s, all[0], 128), withExamples(t, s, all[1], 64)
	weighted := b.run(t, s.with(settings{"server.max_examples": 128}), dataset(t, big, little), 2)
	uniform := b.run(t, s.with(settings{"server.weighting": "uniform"}), dataset(t, big, copyAs(big, "x"), little), 2)
	identical(t, "two for one", weighted, uniform)
	if alike := b.run(t, s.with(settings{"server.weighting": "uniform"}), dataset(t, big, little), 2); alike.Weights == weighted.Weights {
		t.Error("the weights have no effect")
	}
}

// withExamples returns the meter, shortened so that it has the required number of training
// examples.
func withExamples(t *testing.T, s settings, m series.Meter, want int) series.Meter {
	t.Helper()
	whole := m.Load
	for n := want; n <= len(whole); n++ {
		m.Load = whole[:n]
		d := dataset(t, m)
		p := s.plan(t)
		problem, err := recipe.Frame(p, d)
		if err != nil {
			t.Fatal(err)
		}
		f, err := newFleet(p, problem, d, true, 1)
		if err == nil && f.trainees(false)[0].examples == want {
			return m
		}
	}
	t.Fatalf("%s never has %d examples", m.ID, want)
	return m
}

// FedNorm divides by a standard deviation. A standard deviation of 0 or huge losses must not
// cause NaNs in the results. A run that cannot continue must return an error.
func TestFedNormWithoutNaN(t *testing.T) {
	all, b := houses(t, meters), newRunner(t)
	var finished, stopped int
	check(t, 60, func(t *rapid.T) {
		s := draw(t, "fednorm")
		s["server.peak"] = rapid.SampledFrom([]string{"1", "max-lambda"}).Draw(t, "peak")
		s["schedule.cohort"] = rapid.IntRange(1, 4).Draw(t, "cohort")
		s["client.lr"] = math.Pow(10, rapid.Float64Range(-12, 60).Draw(t, "rate"))
		delete(s, "client.lr_end") // must not be above the rate
		s["client.weight_decay.all"] = 0
		s["server.bound"] = rapid.SampledFrom([]float64{1, 16, 1 << 20}).Draw(t, "bound")
		s["server.max_examples"] = 1024
		if s["server.weighting"] == "uniform" {
			delete(s, "server.max_examples")
		}
		fleet := all
		switch rapid.IntRange(0, 2).Draw(t, "fleet") {
		case 0:
			fleet = all[:4]
		case 1: // equal losses
			fleet = []series.Meter{all[0], copyAs(all[0], "b"), copyAs(all[0], "c"), copyAs(all[0], "d")}
		}
		o, err := b.try(t, Config{Plan: s.plan(t), Dataset: dataset(t, fleet...), Memory: 1 << 20})
		if err != nil {
			stopped++
			for _, reason := range []string{"learning rate", "is not a number", "not finite"} {
				if strings.Contains(err.Error(), reason) {
					return
				}
			}
			t.Fatalf("%v: %v does not mention the learning rate", s, err)
		}
		finished++ // try has checked that all weights are finite
		for name, text := range o.files {
			if strings.HasSuffix(name, ".csv") && (strings.Contains(text, "NaN") || strings.Contains(text, "Inf")) {
				t.Fatalf("%v: %s has a NaN:\n%s", s, name, text)
			}
		}
		for _, row := range o.rounds {
			if n := number(t, row, "counted"); n > 0 && (row["train_loss"] == "" || row["mean_staleness"] == "") {
				t.Fatalf("%v: %d clients without a loss: %v", s, n, row)
			}
		}
		for _, row := range rows(t, o.files["clients.csv"]) {
			if row["loss"] == "" || row["mae"] == "" {
				t.Fatalf("%v: %v", s, row)
			}
		}
	})
	t.Logf("%d runs finished, %d stopped", finished, stopped)
	if !testing.Short() && min(finished, stopped) == 0 {
		t.Error("the learning rates do not cover both outcomes")
	}
}
