package sim

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"loadstar/fed/exact"
	"loadstar/fed/recipe"
	"loadstar/lab/run"
)

// unreliable returns a synchronous plan in which some clients are late or lost.
func unreliable(t *rapid.T) settings {
	s := draw(t, rapid.SampledFrom([]string{"fedavg", "fedadam", "scaffold", "fedavgadaptive", "fednorm", "fedsim"}).Draw(t, "algorithm"))
	s["schedule.kind"], s["simulate.step_time"], s["simulate.speed_spread"] = "synchronous", "1s", 1
	delete(s, "schedule.buffer")
	s["rounds"] = rapid.IntRange(4, 8).Draw(t, "rounds of trouble")
	s["schedule.cohort"] = rapid.IntRange(1, 5).Draw(t, "wanted")
	s["schedule.over_selection"] = rapid.SampledFrom([]float64{0, 0.3, 1}).Draw(t, "over")
	s["simulate.dropout"] = rapid.SampledFrom([]float64{0, 0.3, 0.6}).Draw(t, "dropout")
	if rapid.IntRange(0, 3).Draw(t, "patience") > 0 {
		s["schedule.deadline"] = rapid.SampledFrom([]string{"10ms", "1s", "2s", "3s", "6s"}).Draw(t, "deadline")
		s["schedule.quorum"] = rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "quorum")
	}
	return s
}

// Every selected client is either counted, late or lost. An abandoned round does not change the
// server's weights.
func TestUnreliableClients(t *testing.T) {
	d, b := dataset(t, houses(t, meters)...), newRunner(t)
	var merged, abandoned, inVain, late, lost int
	check(t, 80, func(t *rapid.T) {
		s := unreliable(t)
		p := s.plan(t)
		c := Config{Plan: p, Dataset: d, Dir: b.folder(), Kernel: kernels(t), Workers: 2, Save: time.Hour}
		var sim *simulation
		var before []float32
		version := 0
		c.Progress = func(at Progress) {
			now := slices.Clone(sim.server.Shared())
			if at.Round > 0 {
				moved := !slices.Equal(before, now)
				if grew := sim.server.Version() - version; grew != 0 && grew != 1 || grew == 0 && moved {
					t.Fatalf("%v: round %d: version %d after %d, moved: %v", s, at.Round, sim.server.Version(), version, moved)
				}
			}
			before, version = now, sim.server.Version()
		}
		sim = started(t, c)
		defer sim.close()
		if err := sim.train(ctx); err != nil {
			t.Fatal(err)
		}
		if err := sim.saving.wait(); err != nil { // files must not change while they are read
			t.Fatal(err)
		}
		if _, err := sim.folder.Flush(); err != nil {
			t.Fatal(err)
		}
		asked := 0
		version = 0
		for i, row := range rows(t, comparable(t, c.Dir)["rounds.csv"]) {
			n := func(column string) int { return number(t, row, column) }
			if n("counted")+n("late")+n("lost") != n("asked") || n("asked") == 0 || n("round") != i {
				t.Fatalf("%v: %v", s, row)
			}
			switch row["outcome"] {
			case "merged":
				merged++
				version++
			case "abandoned":
				abandoned++
				if n("counted") > 0 {
					inVain++
				}
				if n("counted") >= p.Schedule.Cohort {
					t.Fatalf("%v: the round was abandoned with a complete cohort: %v", s, row)
				}
			default:
				t.Fatal(row)
			}
			if n("version") != version {
				t.Fatalf("%v: version %d after %v", s, version, row)
			}
			asked += n("asked")
			late += n("late")
			lost += n("lost")
		}
		if want := p.Rounds * min(int(math.Ceil(float64(p.Schedule.Cohort)*(1+p.Schedule.Over)-1e-9)), len(sim.trainees)); asked != want {
			t.Fatalf("%v: asked %d clients, want %d", s, asked, want)
		}
	})
	t.Logf("%d rounds merged, %d abandoned, of these %d with updates; %d late, %d lost", merged, abandoned, inVain, late, lost)
	if !testing.Short() && min(merged, abandoned, inVain, late, lost) == 0 {
		t.Error("the plans do not cover all outcomes")
	}
}

// If all rounds are abandoned, a run ends with the weights with which it started.
func TestNothingMerged(t *testing.T) {
	d, b := dataset(t, houses(t, meters)...), newRunner(t)
	s := small("fedadam").with(settings{"simulate.step_time": "1h", "schedule.deadline": "1s", "rounds": 5})
	o := b.run(t, s, d, 1)
	x := newDirect(t, s.plan(t), d)
	if !same(o.shared, x.shared) {
		t.Error("the weights have changed")
	}
	for _, row := range o.rounds {
		if row["outcome"] != "abandoned" || row["late"] != fmt.Sprint(meters) || row["train_loss"] != "" {
			t.Error(row)
		}
	}
}

// started returns a simulation that is ready to train.
func started(t tester, c Config) *simulation {
	t.Helper()
	plan, err := recipe.Write(c.Plan)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSimulation(c)
	if err != nil {
		t.Fatal(err)
	}
	if s.folder, err = run.Create(c.Dir, plan); err == nil {
		err = s.begin(ctx)
	}
	if err != nil {
		s.close()
		t.Fatal(err)
	}
	return s
}

// An update that is out of bounds stops a simulation. The error names the client and the
// setting.
func TestUpdateBeyondBound(t *testing.T) {
	b := newRunner(t)
	s := small("fedavg").with(settings{"client.optimizer": "sgd", "client.lr": 1, "server.bound": 1e-3})
	_, err := b.try(t, Config{Plan: s.plan(t), Dataset: dataset(t, houses(t, 3)...)})
	if !errors.Is(err, exact.ErrBound) || !strings.Contains(err.Error(), "client house-") || !strings.Contains(err.Error(), "server.bound is too small") {
		t.Error(err)
	}
}

// A lost client is not asked again in the same round, because it would be lost again. A
// buffer that can no longer be filled is merged early.
func TestBufferThatCannotBeFilled(t *testing.T) {
	d, b := dataset(t, houses(t, meters)...), newRunner(t)
	s := small("fedbuff").with(settings{
		"schedule.cohort": 0, "schedule.buffer": meters, "simulate.dropout": 0.4, "rounds": 12,
	})
	o := b.run(t, s, d, 2)
	short := 0
	for i, row := range o.rounds {
		counted, lost := number(t, row, "counted"), number(t, row, "lost")
		if counted+lost != meters || number(t, row, "asked") != meters || number(t, row, "round") != i {
			t.Error(row)
		}
		if lost > 0 {
			short++
		}
	}
	if len(o.rounds) != 12 || short == 0 {
		t.Errorf("%d rounds, %d of them with a lost client", len(o.rounds), short)
	}
}
