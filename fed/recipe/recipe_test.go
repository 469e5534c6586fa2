package recipe

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/fed"
	"loadstar/fed/aggregate"
	"loadstar/fed/clientopt"
	"loadstar/fed/localtrain"
	"loadstar/fed/serveropt"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// Every field of a plan is a setting of some algorithm, every setting is a field, and entries
// that share a setting describe it in the same way.
func TestEverySettingIsKnown(t *testing.T) {
	seen := map[string]setting{}
	for _, a := range algorithms {
		for _, s := range a.allSettings() {
			if position(s.path) < 0 {
				t.Fatalf("%s: %s is not a field of a plan", a.name, s.path)
			}
			if s.about == "" {
				t.Errorf("%s has no description", s.path)
			}
			if v := field(&fed.Plan{}, s.path); s.initial != nil && (reflect.TypeOf(s.initial).Kind() == reflect.String) != (v.Kind() == reflect.String) {
				t.Errorf("%s: the default %v does not fit a field of type %s", s.path, s.initial, v.Type())
			}
			if v := field(&fed.Plan{}, s.path); (s.choices != nil) && v.Kind() != reflect.String {
				t.Errorf("%s has choices, but the type of its field is %s", s.path, v.Type())
			}
			other, ok := seen[s.path]
			if ok && (other.about != s.about || other.must.say != s.must.say || other.initial != s.initial) {
				t.Errorf("%s has two descriptions: %+v and %+v", s.path, other, s)
			}
			seen[s.path] = s
		}
	}
	used := map[string]bool{}
	for _, p := range somePlans(t) {
		for _, path := range find(p.Algorithm).pathsOf(p) {
			used[path] = true
		}
	}
	for _, path := range paths {
		if !used[path] {
			t.Errorf("no algorithm has %s", path)
		}
	}
}

// choicesOf returns the permitted values of a setting, or nil if it is not a choice between
// names.
func choicesOf(a *algorithm, path string) []string {
	for _, s := range a.allSettings() {
		if s.path == path {
			return s.choices
		}
	}
	return nil
}

// private makes a plan private, and few makes a plan for a small fleet private.
const (
	private = "privacy: {mode: private, keepers: [auditor]}\n"
	few     = "privacy: {mode: private, keepers: [auditor], least: 2}\n"
)

// somePlans returns plans of all algorithms with all their choices.
func somePlans(t *testing.T) []*fed.Plan {
	var all []*fed.Plan
	read := func(text string) {
		p, err := Read([]byte(text))
		if err != nil {
			t.Fatalf("%s\n%v", text, err)
		}
		all = append(all, p)
	}
	for _, a := range algorithms {
		base := "algorithm: " + a.name + "\n"
		read(base)
		for _, s := range a.settingsOf(all[len(all)-1]) {
			section, key, _ := strings.Cut(s.path, ".")
			for _, c := range s.choices {
				text := fmt.Sprintf("%s%s: {%s: %q}\n", base, section, key, c)
				switch {
				case c == "pinball":
					text = base + "model: {loss: pinball, quantiles: [0.1, 0.5]}\n"
				case s.path == "evaluate.fine_tune.choose":
					text = fmt.Sprintf("%smodel: {split: {train: .7, validation: .1}}\nevaluate: {fine_tune: {steps: 2, choose: %s}}\n", base, c)
				case s.path == "evaluate.keep" && c == "best":
					text = base + "model: {split: {train: .7, validation: .1}}\nevaluate: {every: 10, keep: best}\n"
				case s.path == "evaluate.weights":
					text = fmt.Sprintf("%sclient: {begin: own}\nevaluate: {weights: %s}\n", base, c)
				case s.path == "client.resample":
					text = fmt.Sprintf("%sclient: {steps: 2, resample: %s}\n", base, c)
				case s.path == "privacy.mode" && c == "private":
					text = base + few
				case s.path == "server.robust" && c == "nearest":
					text = base + few + "server: {robust: nearest}\n"
				case s.path == "simulate.delay" && c != "":
					if !slices.Contains(a.schedules, "periodic") {
						continue
					}
					text += "schedule: {kind: periodic}\n"
				}
				read(text)
			}
		}
		if a.partition != "all" {
			read(base + "start: server-data\nserver: {start_steps: 10, clients: 0.1}\n")
		}
		if !a.noServer {
			read(base + "evaluate: {holdout: 0.2, sample: holdout, fine_tune: {steps: 2}}\n")
		}
		if !a.fullPass {
			read(base + "client: {steps: 2, resample: round}\n")
		}
		read(base + "model: {name: dense, targets: 24}\n")
		read(base + "model: {name: dense, targets: 24h}\n")
		read(base + "model: {name: dense}\nevaluate: {every: 0, fine_tune: {steps: 0}}\n")
	}
	return all
}

func TestWriteIsReadBack(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	changed := 0
	for _, p := range somePlans(t) {
		a := find(p.Algorithm)
		for range 3 {
			q := *p
			for _, path := range a.pathsOf(p) {
				scramble(rng, &q, path)
			}
			if len(validate(a, &q)) > 0 {
				q = *p
			} else {
				changed++
			}
			text, err := Write(&q)
			if err != nil {
				t.Fatal(err)
			}
			back, err := Read(text)
			if err != nil {
				t.Fatalf("%s\n%v", text, err)
			}
			if !reflect.DeepEqual(back, &q) {
				t.Fatalf("%s\nwas read back as\n%+v\nwant\n%+v", text, *back, q)
			}
		}
	}
	if changed < 90 {
		t.Errorf("only %d plans with other values", changed)
	}
}

// scramble randomly changes about a third of a plan's numbers and names, some of them to
// zero.
func scramble(rng *rand.Rand, p *fed.Plan, path string) {
	if rng.IntN(3) > 0 || choicesOf(find(p.Algorithm), path) != nil || path == "partition" || path == "algorithm" {
		return
	}
	if path == "start" && StartsOnServerData(p) || path == "privacy.mode" || path == "privacy.keepers" {
		return // other settings depend on this one
	}
	v := field(p, path)
	switch x := v.Addr().Interface().(type) {
	case *string:
		*x = []string{"a b", "1", "null", "x-1.2_3+4", "true", "0x1"}[rng.IntN(6)]
	case *bool:
		*x = !*x
	case *int:
		if strings.HasSuffix(path, "steps") || strings.HasSuffix(path, "epochs") {
			return // one of steps and epochs is 0
		}
		*x = rng.IntN(4)
	case *uint64:
		*x = rng.Uint64()
	case *float64:
		*x = []float64{0, 1, 0.1, 1e-9, 1.0 / 3, 0.05}[rng.IntN(6)]
	case *fed.Timespan:
		*x = []fed.Timespan{fed.Steps(rng.IntN(4)), fed.Lasting(time.Duration(1+rng.IntN(4)) * time.Hour)}[rng.IntN(2)]
	case *fed.Duration:
		if path == "model.interval" {
			*x = fed.Duration([]time.Duration{0, 15 * time.Minute, time.Hour}[rng.IntN(3)])
			return
		}
		*x = fed.Duration(rng.Int64N(int64(time.Hour)))
	case *[]string:
		*x = []string{"load", "load@target-24h", "hour@target"}
	}
}

func TestDefaults(t *testing.T) {
	p, err := Read([]byte("algorithm: fedavg"))
	if err != nil {
		t.Fatal(err)
	}
	want := &fed.Plan{
		Name: "fedavg", Seed: 1, Partition: "none", Algorithm: "fedavg", Rounds: 2000,
		Model: fed.Model{
			Name: "bose2023", Lookback: fed.Steps(12), Horizon: fed.Steps(1), Targets: fed.Steps(1), Scaling: "client", Loss: "mse",
			Split: fed.Split{Train: 0.8, Validation: 0.1},
		},
		Client: fed.Client{
			Optimizer: "adam", Rate: 0.001, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8,
			Batch: 64, Steps: 4, Resample: "step", Decay: fed.Decay{Factor: 1}, Moments: "reset", Begin: "received",
		},
		Server:   fed.Server{Optimizer: "fedavg", Rate: 1, Decay: "constant", Weighting: "examples", Clip: 1.5, Coordinate: 1.5, Robust: "none", Bound: 16, MaxExamples: 65536},
		Privacy:  fed.Privacy{Mode: "none"},
		Schedule: fed.Schedule{Kind: "synchronous"},
		Evaluate: fed.Evaluate{Every: 100, Clients: 100, Windows: 256, Forecasts: 4, Keep: "last", FineTune: fed.FineTune{Choose: "last"}, Reference: "auto"},
	}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("got %+v\nwant %+v", p, want)
	}
	for _, c := range []struct {
		text string
		got  func(p *fed.Plan) any
		want any
	}{
		{"algorithm: fedavg\nclient: {epochs: 2}", func(p *fed.Plan) any { return p.Client.Steps }, 0},
		{"algorithm: fedavg\nclient: {epochs: 2}", func(p *fed.Plan) any { return p.Client.Resample }, ""},
		{"algorithm: fednorm\nclient: {steps: 2}", func(p *fed.Plan) any { return p.Client.Epochs }, 0},
		{"algorithm: fedavg\nclient: {optimizer: sgd}", func(p *fed.Plan) any { return p.Client.Rate }, 0.1},
		{"algorithm: fedprox\nclient: {mu: 0}", func(p *fed.Plan) any { return p.Client.Mu }, 0.0},
		{"algorithm: fedavgm", func(p *fed.Plan) any { return p.Server.Dampening }, 0.99},
		{"algorithm: fedavgm\nserver: {beta1: 0.9}", func(p *fed.Plan) any { return p.Server.Dampening }, 0.9},
		{"algorithm: fedavgm\nserver: {beta1: 0.9, dampening: 0}", func(p *fed.Plan) any { return p.Server.Dampening }, 0.0},
		{"algorithm: fedadam", func(p *fed.Plan) any { return p.Server.Beta1 }, 0.99},
		{"algorithm: fedbuff\nserver: {optimizer: fedadam}", func(p *fed.Plan) any { return p.Server.Beta2 }, 0.999},
		{"algorithm: fedbuff\nserver: {optimizer: fedadam}", func(p *fed.Plan) any { return p.Server.Rate }, 0.01},
		{"algorithm: reptile", func(p *fed.Plan) any { return p.Server.Rate }, 0.25},
		{"algorithm: fedsim\nserver: {variant: no-prox}", func(p *fed.Plan) any { return p.Client.Mu }, 0.0},
		{"algorithm: fedsim", func(p *fed.Plan) any { return p.Client.Mu }, 1.0},
		{"algorithm: fednorm", func(p *fed.Plan) any { return p.Model.Targets.Steps() }, 8},
		{"algorithm: fednorm", func(p *fed.Plan) any { return p.Evaluate.Every }, 0},
		{"algorithm: fednorm\nmodel: {name: bose2024}", func(p *fed.Plan) any { return p.Model.Horizon.Steps() }, 4},
		{"algorithm: fednorm\nmodel: {split: {validation: 0.1}}", func(p *fed.Plan) any { return p.Evaluate.Every }, 1},
		{"algorithm: fednorm\nschedule: {kind: synchronous}", func(p *fed.Plan) any { return p.Simulate.Delay }, ""},
		{"algorithm: pfedme\nclient: {optimizer: adam}", func(p *fed.Plan) any { return p.Client.Rate }, 0.001},
		{"algorithm: fedasync\nserver: {discount: hinge}", func(p *fed.Plan) any { return p.Server.Exponent }, 10.0},
		{"algorithm: local", func(p *fed.Plan) any { return p.Partition }, "all"},
		{"algorithm: pooled", func(p *fed.Plan) any { return p.Rounds * p.Client.Steps }, 8000},
		{"algorithm: fedasync", func(p *fed.Plan) any { return p.Schedule.Buffer }, 1},
	} {
		p, err := Read([]byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
		} else if got := c.got(p); got != c.want {
			t.Errorf("%s: %v, want %v", c.text, got, c.want)
		}
	}
}

func TestRejected(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "algorithm is missing; it must be one of fedavg, fedprox, "},
		{"algorithm: fedagv", `line 1: algorithm "fedagv" is not known; did you mean fedavg?`},
		{"algorithm: fedavg\nserver: {tau: 1}", "line 2: server.tau is not a setting of fedavg; it has lr, decay, weighting, clip, coordinate, robust, bound, max_examples"},
		{"algorithm: fedavg\nclient: {mu: 1}", "line 2: client.mu is not a setting of fedavg with client.optimizer adam; it has optimizer, lr, beta1, "},
		{"algorithm: fedavg\nclient: {optimizer: sgd, beta1: .9}", "client.beta1 is not a setting of fedavg with client.optimizer sgd; it has optimizer, lr, batch, steps, "},
		{"algorithm: fedavg\nclient: {optimizer: adm, beta1: .9}", `client.optimizer is "adm"; with fedavg it must be adam, sgd, amsgrad, prox or proxadam`},
		{"algorithm: fedavg\nclient: {epochs: 1, resample: round}", "client.resample is not a setting of fedavg with epochs; it has"},
		{"algorithm: fedavg\nclient: {lr_end: 1e-4, decay: {factor: .5, every: 3}}", "client.lr_end is 0.0001 and client.decay.every is 3; the learning rate falls either along a cosine or in steps"},
		{"algorithm: fedavg\nclient: {lr_end: 1}", "client.lr_end is 1, but client.lr is 0.001"},
		{"algorithm: fedavg\nclient: {weight_decay: {all: 1000}}", "client.weight_decay times the learning rate is up to 1; it must be below 1"},
		{"algorithm: fedavg\nclient: {weight_decay: {correction: 1}}", "client.weight_decay.correction is 1, but model bose2023 has no correction layers"},
		{"algorithm: pfedme\nclient: {weight_decay: {all: 1}}", "client.weight_decay.all is not a setting of pfedme"},
		{"algorithm: fedavg\nclient: {optimizer: sgd, moments: kept}", "client.moments is not a setting of fedavg with client.optimizer sgd"},
		{"algorithm: fedadam\nclient: {moments: averaged}", `client.moments is "averaged"; with fedadam it must be reset or kept`},
		{"algorithm: fedavg\nclient: {moments: averaged}\nserver: {lr: .5}", "client.moments averaged needs server.lr 1, not 0.5"},
		{"algorithm: fedavg\nclient: {optimizer: amsgrad, moments: averaged}", "client.moments averaged works with adam and proxadam, but not with amsgrad"},
		{"algorithm: fedavg\nstart: server-data\nserver: {clients: 0}", "server.clients is 0, but start server-data needs data on the server"},
		{"algorithm: fedavg\nstart: server-data\nserver: {start_steps: 0}", "server.start_steps is 0; it must be from 1 to 10000000"},
		{"algorithm: fedavg\nserver: {clients: .1}", "server.clients is not a setting of fedavg without start server-data; it has lr, "},
		{"algorithm: fedavg\nserver: {start_steps: 5}", "server.start_steps is not a setting of fedavg without start server-data"},
		{"algorithm: local\nstart: server-data", "start has shared weights, but partition all shares no layers"},
		{"algorithm: fedavgadaptive\nclient: {begin: own}\nserver: {states: client}", "client.begin is own, but with server.states client a turn begins with the client's copy"},
		{"algorithm: fedavg\nclient: {begin: own, moments: averaged}", "client.begin own does not work with client.moments averaged"},
		{"algorithm: fedavg\nevaluate: {weights: own}", "evaluate.weights is not a setting of fedavg with client.begin received; it has every, "},
		{"algorithm: fednorm\nclient: {begin: own}", "client.begin is not a setting of fednorm with client.optimizer adam"},
		{"algorithm: fedavg\nevaluate: {fine_tune: {choose: validation}}", "evaluate.fine_tune.choose is validation, but there is nothing to choose from"},
		{"algorithm: fedavg\nmodel: {split: {validation: 0}}\nevaluate: {fine_tune: {steps: 1, choose: validation}}", "evaluate.fine_tune.choose is validation, but model.split has no validation split"},
		{"algorithm: fedavg\nevaluate: {keep: best, fine_tune: {choose: last}}", "evaluate.keep best needs evaluate.fine_tune.choose validation"},
		{"algorithm: fedavg\nmodel: {split: {validation: 0}}\nevaluate: {keep: best}", "evaluate.keep best needs a validation split, but model.split has none"},
		{"algorithm: fedavg\nevaluate: {every: 0, keep: best}", "evaluate.keep best needs evaluate.every"},
		{"algorithm: local\nstart: x.safetensors", "start has shared weights, but partition all shares no layers"},
		{"algorithm: fedavg\nmodel: {gaps: .5}", "model.gaps is not a setting of model bose2023 with model.loss mse"},
		{"algorithm: fedavg\nmodel: {name: dense, lookback: 24}", "model.lookback is 24; with model dense it must be 168h"},
		{"algorithm: fedavg\nmodel: {name: dense, inputs: [load]}", "model.inputs: the input groups [load] are not different groups out of recent, lags,"},
		{"algorithm: fedavg\nmodel: {name: dense, scaling: fleet}", "model.scaling is fleet; with model dense it must be client"},
		{"algorithm: fedavg\nmodel: {name: dense, interval: 7h}", "model.interval is 7h; a day must be a multiple of it"},
		{"algorithm: fedavg\nclient: {epochs: 1, steps: 1}", "client.steps is 1 and client.epochs is 1; set only one of them"},
		{"algorithm: fedavg\nclient: {steps: 0}", "client.steps and client.epochs are both 0"},
		{"algorithm: fedavg\nclient: {lr: 0}", "client.lr is 0; it must be above 0"},
		{"algorithm: fedavg\nclient: {beta2: 1}", "client.beta2 is 1; it must be at least 0 and below 1"},
		{"algorithm: fedavg\nschedule: {buffer: 3}", "schedule.buffer is not a setting of fedavg with a synchronous schedule; it has kind, cohort, over_selection, quorum, deadline"},
		{"algorithm: fedavg\nschedule: {kind: buffered}", `schedule.kind is "buffered"; with fedavg it must be synchronous`},
		{"algorithm: fedavg\nschedule: {quorum: 0.5}", "schedule.quorum needs a schedule.deadline"},
		{"algorithm: fedavg\nschedule: {over_selection: 0.5}", "schedule.over_selection needs a schedule.cohort"},
		{"algorithm: fedavg\nschedule: {deadline: soon}", `schedule.deadline: "soon" is not a duration; write one such as 90s or 1h30m`},
		{"algorithm: fedavg\npartition: all", "partition all shares no layers, which fedavg needs; to train every client alone, use algorithm local"},
		{"algorithm: fednorm\npartition: all", "partition all shares no layers, which fednorm needs"},
		{"algorithm: fedavg\npartition: feet", `partition "feet": bose2023 has no layer "feet"`},
		{"algorithm: local\npartition: head", `partition is "head"; with local it must be all`},
		{"algorithm: local\nschedule: {cohort: 2}", "schedule.cohort is not a setting of local; it has no settings in schedule"},
		{"algorithm: local\nevaluate: {holdout: 0.2}", "evaluate.holdout is not a setting of local; it has every, patience, clients, windows"},
		{"algorithm: pooled\npartition: head", `partition is "head"; with pooled it must be none`},
		{"algorithm: fedavg\nmodel: {loss: pinball}", "model.loss pinball needs model.quantiles"},
		{"algorithm: fedavg\nmodel: {quantiles: [0.5]}", "model.quantiles is not a setting of model bose2023 with model.loss mse; it has name"},
		{"algorithm: fedavg\nmodel: {loss: pinball, quantiles: [0.5, 0.1]}", "model.quantiles: "},
		{"algorithm: fedavg\nmodel: {inputs: [load, load]}", "model.inputs: load is listed twice"},
		{"algorithm: fedavg\nmodel: {inputs: [load@target]}", "is the value to forecast"},
		{"algorithm: fedavg\nmodel: {split: {train: 0.9}}", "model.split: 0.9 and 0.1 leave nothing for testing"},
		{"algorithm: fedavg\nmodel: {split: {validation: 0}}\nevaluate: {every: 5}", "evaluate.every is 5, but model.split has no validation split"},
		{"algorithm: fedavg\nmodel: {name: bose2025}", `model.name is "bose2025"; with fedavg it must be bose2023, bose2024, fekri2023 or dense`},
		{"algorithm: fedavg\nname: ../x", `name is "../x"; it must start with a letter`},
		{"algorithm: fedsim\nserver: {clients: 0}", "server.clients is 0, but fedsim needs data on the server"},
		{"algorithm: fedsim\nserver: {variant: no-prox}\nclient: {mu: 1}", "client.mu is 1; with server.variant no-prox it must be 0"},
		{"algorithm: fedbuff\nserver: {tau: 1}", "server.tau is not a setting of fedbuff with server.optimizer fedavg; it has optimizer, lr, decay, weighting, discount, exponent, clip, coordinate, bound, max_examples"},
		{"algorithm: fedbuff\nserver: {exponent: -1}", "server.exponent is -1; it must be at least 0"},
		{"algorithm: fedbuff\nserver: {hinge: 1}", "server.hinge is not a setting of fedbuff"},
		{"algorithm: fednorm\nschedule: {kind: buffered}\nsimulate: {delay: fekri2023}", "simulate.delay fekri2023 needs a periodic schedule"},
		{"algorithm: fedavg\nserver: {weighting: uniform, max_examples: 3}", "server.max_examples is not a setting of fedavg with server.weighting uniform"},
		{"algorithm: scaffold\nserver: {robust: trim}", "server.robust is not a setting of scaffold"},
		{"algorithm: fedbuff\nserver: {robust: trim}", "server.robust is not a setting of fedbuff"},
		{"algorithm: fedavg\nserver: {robust: median}", `server.robust is "median"; with fedavg it must be none, trim or nearest`},
		{"algorithm: fedavg\nserver: {robust: trim, weighting: examples}", "server.robust is trim, but server.weighting is examples"},
		{"algorithm: fedavg\nserver: {robust: trim}\nclient: {moments: averaged}", "server.robust is trim, but client.moments is averaged"},
		{"algorithm: fedavg\nclient: {optimizer: sgd}\nserver: {coordinate: 1}", "server.coordinate is not a setting of fedavg"},
		{"algorithm: fedavg\nserver: {coordinate: -1}", "server.coordinate is -1; it must be at least 0"},
		{"algorithm: fedavg\nserver: {bound: 1e9}\nschedule: {cohort: 100000}", "server.bound is 1e+09: 100000 updates of weight 65536"},
		{"algorithm: fedavg\nevaluate: {fine_tune: {steps: 1, epochs: 1}}", "evaluate.fine_tune has both steps and epochs"},
		{"algorithm: fedavg\nevaluate: {fine_tune: {lr: 1}}", "evaluate.fine_tune.lr is 1, but there are no steps or epochs"},
		{"algorithm: fedavg\npartition: head\nevaluate: {holdout: 0.2}", "evaluate.holdout needs evaluate.fine_tune"},
		{"algorithm: fedavg\nlr: 3", "line 2: lr is not known; "},
		{"algorithm: fedavg\nschedule: {period: 0s}", "schedule.period is not a setting"},
		{"algorithm: fednorm\nschedule: {period: 0s}", "schedule.period is 0s; it must be above 0"},
	} {
		_, err := Read([]byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\n got %v\nwant %s", c.text, err, c.want)
		} else if n := strings.Count(err.Error(), "\n"); n > 0 {
			t.Errorf("%s: one mistake is reported %d times: %v", c.text, n+1, err)
		}
	}
	// All mistakes are reported at once, in the order of lines.
	_, err := Read([]byte("rounds: 0\nclient: {lrr: 1}\nalgorithm: fedavg\nserver:\n  tau: 1\n  lr: x\nschedule: {quorum: 2}\n"))
	want := `line 1: rounds is 0; it must be at least 1
line 2: client.lrr is not known; did you mean lr?
line 5: server.tau is not a setting of fedavg; it has lr, decay, weighting, clip, coordinate, robust, bound, max_examples
line 6: server.lr must be a number, not "x"
line 7: schedule.quorum is 2; it must be at least 0 and at most 1
line 7: schedule.quorum needs a schedule.deadline: without one, a round waits for all clients`
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

func TestCompose(t *testing.T) {
	k := kernel.Available()[0]
	compose := func(text string, fleet int) *Composition {
		t.Helper()
		p, err := Read([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		c, err := Compose(p, fleet)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, p := range somePlans(t) {
		c, err := Compose(p, 42)
		if err != nil {
			t.Fatalf("%s: %v", p.Algorithm, err)
		}
		c.NewTrainer(k)
		if c.NewTuner != nil {
			c.NewTuner(k)
		}
		if w := c.Weight(100000); w != 1 && w != 65536 {
			t.Errorf("%s: weight %d", p.Algorithm, w)
		}
	}

	c := compose("algorithm: fedavg\nschedule: {cohort: 10, over_selection: 0.3, quorum: 0.75, deadline: 1m}", 42)
	if want := (Synchronous{Cohort: 10, Asked: 13, Quorum: 8, Deadline: time.Minute}); c.Scheduler != want {
		t.Errorf("%+v", c.Scheduler)
	}
	if c.NewAggregator() != (aggregate.Mean{}) || c.NewOptimizer() != (serveropt.Descent{Rate: 1}) {
		t.Errorf("%+v", c)
	}
	if f := c.Scale.Fraction(); f != 62-5-17-4 { // 16 < 2^5, 65536 < 2^17, 13 < 2^4
		t.Errorf("%d bits", f)
	}
	c = compose("algorithm: fedasync\nclient: {mu: 0.5}\nserver: {discount: hinge}", 42)
	if want := (Buffered{Running: 42, Buffer: 1}); c.Scheduler != want || !c.Needs.EachUpdate {
		t.Errorf("%+v", c)
	}
	prox := c.NewTrainer(k).(*localtrain.Descent).Optimizer.(*clientopt.Prox)
	if _, adam := prox.Inner.(*clientopt.Adam); !adam || prox.Mu != 0.5 {
		t.Errorf("%+v", prox)
	}
	c = compose("algorithm: fedsim", 38)
	if !c.Needs.ServerData || c.NewAggregator().(aggregate.FedSIM).Rounds != 100 {
		t.Errorf("%+v", c.NewAggregator())
	}
	if _, adam := c.NewTuner(k).(*localtrain.Descent).Optimizer.(*clientopt.Adam); !adam {
		t.Error("fine-tuning has a proximal term")
	}
	c = compose("algorithm: fedbuff\nserver: {optimizer: fedyogi}", 42)
	if o := c.NewOptimizer().(*serveropt.Adaptive); o.Beta2 != 0.99 || o.Rule(4, 1, 0.5) != 3.5 {
		t.Errorf("%+v", o)
	}

	p, err := Read([]byte("algorithm: fedavg\nschedule: {cohort: 50}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Compose(p, 42); err == nil || !strings.Contains(err.Error(), "schedule.cohort is 50, but only 42 clients train") {
		t.Error(err)
	}
	if _, err := Compose(p, 0); err == nil {
		t.Error("no error for an empty fleet")
	}
}

func TestFrame(t *testing.T) {
	load := make([]float32, 200)
	for i := range load {
		load[i] = float32(i % 24)
	}
	d, err := series.NewDataset(series.Dataset{
		Name: "d", Interval: time.Hour, Clock: time.UTC, StaticNames: []string{"floor_area"},
		Weather: series.Weather{Names: []string{"wind"}, Columns: [][]float32{make([]float32, 200)}},
	}, []series.Meter{{ID: "a", Load: load, Static: []float32{1}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text            string
		inputs          string
		outputs, shared int
		missing         int
	}{
		{"algorithm: fedavg\npartition: head", "[load time_of_day day_of_week wind floor_area]", 1, 4*20*(5+20+2) + 3360, 3},
		{"algorithm: fednorm", "[load day_of_year day_of_month week_of_year day_of_week hour]", 8, 5384, 0},
		{"algorithm: fedavg\nmodel: {name: fekri2023, inputs: [load, hour@target], loss: pinball, quantiles: [.1, .5, .9]}\npartition: head", "[load hour@target]", 24, 4 * 32 * (2 + 32 + 2), 0},
	} {
		p, err := Read([]byte(c.text))
		if err != nil {
			t.Fatal(err)
		}
		q, err := Frame(p, d)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(q.Framer.Layout().Inputs); got != c.inputs {
			t.Errorf("inputs %s, want %s", got, c.inputs)
		}
		if q.Outputs != c.outputs || q.Model.Net().Outputs() != c.outputs || q.Partition.SharedLen() != c.shared || len(q.Missing) != c.missing {
			t.Errorf("%s: %d outputs, %d shared, missing %v", c.text, q.Outputs, q.Partition.SharedLen(), q.Missing)
		}
	}
	p, err := Read([]byte("algorithm: fedavg\nmodel: {inputs: [load, rain]}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Frame(p, d); err == nil || !strings.Contains(err.Error(), "dataset d has no rain") {
		t.Error(err)
	}
}

func FuzzRead(f *testing.F) {
	for _, name := range Names() {
		text, err := Template(name, "dense", fed.Steps(0))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Read(data)
		if err != nil {
			return
		}
		text, err := Write(p)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Read(text)
		if err != nil || !reflect.DeepEqual(p, back) {
			t.Fatalf("%v\n%s", err, text)
		}
	})
}
