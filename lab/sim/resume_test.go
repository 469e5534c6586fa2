package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"loadstar/nn/safetensors"
)

// resumable returns plans with different kinds of state to restore.
func resumable() map[string]settings {
	pace := settings{"simulate.step_time": "1s", "simulate.speed_spread": 1, "simulate.latency": "100ms"}
	evaluated := settings{"rounds": 6, "evaluate.every": 2}
	plan := func(algorithm string, more ...settings) settings {
		s := small(algorithm).with(evaluated)
		for _, m := range more {
			s = s.with(m)
		}
		return s
	}
	return map[string]settings{
		"fedadam, head personal": plan("fedadam", pace, settings{"partition": "head", "schedule.cohort": 4}),
		"dropouts and deadlines": plan("fedavgm", pace, settings{
			"partition": "head", "schedule.cohort": 4, "schedule.over_selection": 0.5, "schedule.deadline": "4s",
			"schedule.quorum": 0.7, "simulate.dropout": 0.2,
		}),
		"moments kept": plan("fedavg", settings{
			"partition": "head", "schedule.cohort": 4, "client.moments": "kept", "client.lr_end": 1e-5, "client.warmup": 5,
			"client.weight_decay.all": 0.5, "evaluate.fine_tune.steps": 3,
		}),
		"best weights": plan("fedavg", settings{
			"partition": "head", "schedule.cohort": 4, "evaluate.keep": "best", "evaluate.fine_tune.steps": 3,
			"evaluate.fine_tune.choose": "validation", "client.moments": "kept", "evaluate.clients": 2,
		}),
		"best weights, returned later": plan("fedbuff", pace, settings{
			"partition": "head", "schedule.cohort": 4, "rounds": 10, "evaluate.keep": "best", "evaluate.fine_tune.choose": "validation",
		}),
		"best weights, pooled": plan("pooled", settings{"evaluate.keep": "best", "evaluate.fine_tune.choose": "validation"}),
		"dense": plan("fedavg", settings{
			"model.name": "dense", "model.lookback": 168, "model.targets": 2, "partition": "correction", "schedule.cohort": 4,
			"evaluate.fine_tune.steps": 3,
		}),
		"moments averaged": plan("fedprox", settings{
			"partition": "head", "schedule.cohort": 4, "client.moments": "averaged", "evaluate.fine_tune.steps": 3,
		}),
		"own weights": plan("fedprox", settings{
			"partition": "head", "schedule.cohort": 4, "client.begin": "own", "client.moments": "kept", "evaluate.weights": "own",
		}),
		"own weights, best and fine-tuned": plan("fedadam", settings{
			"partition": "head", "schedule.cohort": 4, "client.begin": "own", "evaluate.weights": "own", "evaluate.keep": "best",
			"evaluate.fine_tune.steps": 3,
		}),
		"scaffold":       plan("scaffold", settings{"partition": "head", "schedule.cohort": 4}),
		"fedavgadaptive": plan("fedavgadaptive", settings{"schedule.cohort": 4}),
		"fedavgadaptive, states of clients": plan("fedavgadaptive", settings{
			"partition": "head", "schedule.cohort": 4, "server.states": "client", "evaluate.keep": "best",
		}),
		"fedsim, with server data, holdout and fine-tuning": plan("fedsim", settings{
			"partition": "head", "schedule.cohort": 3, "evaluate.holdout": 0.2, "evaluate.fine_tune.steps": 3,
		}),
		"fednorm, delayed":                 plan("fednorm", settings{"schedule.cohort": 5, "simulate.delayed": 0.6, "partition": "head"}),
		"fednorm, loss of trained weights": plan("fednorm", settings{"schedule.cohort": 5, "server.loss": "trained"}),
		"perfedavg, divided examples":      plan("perfedavg", settings{"schedule.cohort": 4, "client.query": 0.2, "evaluate.fine_tune.steps": 2}),
		"start on server data": plan("fedprox", settings{
			"partition": "head", "schedule.cohort": 3, "start": "server-data", "server.start_steps": 4, "server.clients": 0.2, "client.moments": "averaged",
		}),
		"fedbuff": plan("fedbuff", pace, settings{
			"partition": "head", "schedule.cohort": 4, "server.optimizer": "fedyogi", "simulate.dropout": 0.2, "rounds": 10,
		}),
		"fedasync": plan("fedasync", pace, settings{"schedule.cohort": 3, "rounds": 12}),
		"pfedme":   plan("pfedme", settings{"schedule.cohort": 3, "evaluate.fine_tune.steps": 2}),
		"ended early, held-out clients evaluated": plan("fedavg", settings{
			"schedule.cohort": 3, "rounds": 30, "evaluate.patience": 4, "evaluate.holdout": 0.2, "evaluate.sample": "holdout", "evaluate.fine_tune.steps": 2,
			"client.lr": 0.1, "server.decay": "linear",
		}),
		"local":  plan("local"),
		"pooled": plan("pooled"),
	}
}

// countdown is a context that is cancelled after a given number of calls to Err. It
// interrupts a run at a point that does not depend on time.
type countdown struct {
	context.Context
	left atomic.Int64
}

func newCountdown(n int64) *countdown {
	f := &countdown{Context: context.Background()}
	f.left.Store(n)
	return f
}

func (f *countdown) Err() error {
	if f.left.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

// TestResume repeatedly interrupts and resumes runs at various points of training, evaluation
// and scoring. It checks that the files are identical to those of an uninterrupted run.
func TestResume(t *testing.T) {
	d := dataset(t, houses(t, meters)...)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	tries := 3
	if testing.Short() {
		tries = 1
	}
	for name, s := range resumable() {
		t.Run(name, func(t *testing.T) {
			b := newRunner(t)
			base := Config{Plan: s.plan(t), Dataset: d, Kernel: kernels(t), Memory: 1 << 20, Workers: 2}
			c := base
			c.Dir = b.folder()
			const plenty = 1 << 40
			whole := newCountdown(plenty)
			if _, err := Run(whole, c); err != nil {
				t.Fatal(err)
			}
			points := plenty - whole.left.Load()
			want := comparable(t, c.Dir)
			if len(want) < 8 {
				t.Fatalf("only %d files", len(want))
			}
			for range tries {
				c := base
				c.Dir, c.Workers = b.folder(), 1+rng.IntN(3)
				if rng.IntN(4) == 0 {
					c.Save = time.Hour // save only at the end
				}
				c.Memory = []int64{0, 40 << 10, 1 << 20}[rng.IntN(3)]
				stops := 0
				for attempt := range 8 {
					countdown := newCountdown(1 + rng.Int64N(points*2/3))
					if attempt == 7 {
						countdown = newCountdown(plenty)
					}
					_, err := Run(countdown, c)
					if err == nil {
						break
					}
					if !errors.Is(err, context.Canceled) {
						t.Fatal(err)
					}
					stops++
					c.Resume = true
				}
				if names := different(want, comparable(t, c.Dir)); len(names) > 0 {
					t.Fatalf("after %d interruptions these files differ: %v", stops, names)
				}
				// Resuming a finished run does not change its files.
				if _, err := Run(ctx, with(c)); err != nil {
					t.Fatal(err)
				}
				if names := different(want, comparable(t, c.Dir)); len(names) > 0 {
					t.Fatalf("resumed after its end, these files differ: %v", names)
				}
				t.Logf("%d interruptions at %d points", stops, points)
			}
		})
	}
}

func with(c Config) Config {
	c.Resume = true
	return c
}

// The error of an interrupted run names the round from which it will continue. Resuming a
// run with a different plan, with different data or from a damaged checkpoint is an error.
func TestInterruption(t *testing.T) {
	b := newRunner(t)
	s := small("fedavg").with(settings{"rounds": 50})
	c := Config{Plan: s.plan(t), Dataset: dataset(t, houses(t, 4)...), Dir: b.folder(), Kernel: kernels(t), Workers: 1}
	inner, cancel := context.WithCancel(ctx)
	c.Progress = func(p Progress) {
		if p.Round == 7 {
			cancel()
		}
	}
	_, err := Run(inner, c)
	// A checkpoint after round 7 was saved before the run stopped.
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "stopped in round 7 of 50; continue from round 8 with --resume") {
		t.Error(err)
	}
	for _, spoil := range []struct {
		want  string
		spoil func(*Config)
	}{
		{"different plan", func(c *Config) { c.Plan = s.with(settings{"seed": 9}).plan(t) }},
		{"started with different data", func(c *Config) { c.Dataset = dataset(t, houses(t, 5)[:4]...); c.Dataset.Name = "others" }},
		{"no run to resume", func(c *Config) { c.Dir = b.folder() }},
	} {
		c := with(c)
		c.Progress = nil
		spoil.spoil(&c)
		if _, err := Run(ctx, c); err == nil || !strings.Contains(err.Error(), spoil.want) {
			t.Errorf("%v, want %q", err, spoil.want)
		}
	}
	c.Progress = nil
	checkpoint := filepath.Join(c.Dir, "checkpoint")
	whole, err := os.ReadFile(checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(checkpoint, whole[:len(whole)/2], 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(ctx, with(c)); err == nil || !strings.Contains(err.Error(), "checkpoint: damaged: it has ") {
		t.Errorf("truncated checkpoint: %v", err)
	}
	if err := os.WriteFile(checkpoint, whole, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(ctx, with(c)); err != nil {
		t.Error(err)
	}
}

// The file of shared weights contains only shared layers, and a client's file contains only the
// client's personal layers.
func TestWeightFiles(t *testing.T) {
	b := newRunner(t)
	c := Config{
		Plan:    small("fedavg").with(settings{"partition": "head", "schedule.cohort": 2, "rounds": 1}).plan(t),
		Dataset: dataset(t, houses(t, 4)...), Dir: b.folder(), Kernel: kernels(t), Workers: 1,
	}
	if _, err := Run(ctx, c); err != nil {
		t.Fatal(err)
	}
	files := 0
	for name := range comparable(t, c.Dir) {
		if !strings.HasSuffix(name, ".safetensors") || name == "scaling.safetensors" {
			continue
		}
		files++
		f, err := os.Open(c.Dir + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		tensors, _, err := safetensors.Read(f, 1<<24)
		if err != nil || len(tensors) == 0 {
			t.Fatal(name, err)
		}
		for _, x := range tensors {
			if strings.HasPrefix(x.Name, "lstm.") != (name == "shared.safetensors") {
				t.Errorf("%s contains %s", name, x.Name)
			}
		}
	}
	if files != 5 { // two clients trained, and two were fitted afterwards
		t.Errorf("%d files with weights, want 5", files)
	}
}
