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

// families are plans with something of their own to remember.
func families() map[string]settings {
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
		"scaffold":       plan("scaffold", settings{"partition": "head", "schedule.cohort": 4}),
		"fedavgadaptive": plan("fedavgadaptive", settings{"schedule.cohort": 4}),
		"fedsim, with server data, holdout and fine-tuning": plan("fedsim", settings{
			"partition": "head", "schedule.cohort": 3, "evaluate.holdout": 0.2, "evaluate.fine_tune.steps": 3,
		}),
		"fednorm, delayed": plan("fednorm", settings{"schedule.cohort": 5, "simulate.delayed": 0.6, "partition": "head"}),
		"fedbuff": plan("fedbuff", pace, settings{
			"partition": "head", "schedule.cohort": 4, "server.optimizer": "fedyogi", "simulate.dropout": 0.2, "rounds": 10,
		}),
		"fedasync": plan("fedasync", pace, settings{"schedule.cohort": 3, "rounds": 12}),
		"pfedme":   plan("pfedme", settings{"schedule.cohort": 3, "evaluate.fine_tune.steps": 2}),
		"local":    plan("local"),
		"pooled":   plan("pooled"),
	}
}

// fuse is a context that is cancelled when it was asked so many times: a point in a
// run that does not depend on time.
type fuse struct {
	context.Context
	left atomic.Int64
}

func newFuse(n int64) *fuse {
	f := &fuse{Context: context.Background()}
	f.left.Store(n)
	return f
}

func (f *fuse) Err() error {
	if f.left.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

// TestResume interrupts runs again and again, anywhere in training, evaluation and
// scoring, and goes on: what is in the folder in the end is the same bytes.
func TestResume(t *testing.T) {
	d := dataset(t, houses(t, meters)...)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	tries := 3
	if testing.Short() {
		tries = 1
	}
	for name, s := range families() {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			base := Config{Plan: s.plan(t), Dataset: d, Kernel: kernels(t), Memory: 1 << 20, Workers: 2}
			c := base
			c.Dir = b.folder()
			const plenty = 1 << 40
			whole := newFuse(plenty)
			if _, err := Run(whole, c); err != nil {
				t.Fatal(err)
			}
			points := plenty - whole.left.Load()
			want := comparable(t, c.Dir)
			if len(want) < 8 {
				t.Fatalf("there are only %d files", len(want))
			}
			for range tries {
				c := base
				c.Dir, c.Workers = b.folder(), 1+rng.IntN(3)
				if rng.IntN(4) == 0 {
					c.Save = time.Hour // only in the end
				}
				c.Memory = []int64{0, 40 << 10, 1 << 20}[rng.IntN(3)]
				stops := 0
				for attempt := range 8 {
					fuse := newFuse(1 + rng.Int64N(points*2/3))
					if attempt == 7 {
						fuse = newFuse(plenty)
					}
					_, err := Run(fuse, c)
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
					t.Fatalf("after %d interruptions other %v", stops, names)
				}
				// A run that has ended ends the same again.
				if _, err := Run(ctx, with(c)); err != nil {
					t.Fatal(err)
				}
				if names := different(want, comparable(t, c.Dir)); len(names) > 0 {
					t.Fatalf("resumed after its end: other %v", names)
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

// Whoever is interrupted hears where it goes on.
func TestInterruption(t *testing.T) {
	b := newBench(t)
	s := small("fedavg").with(settings{"rounds": 50})
	c := Config{Plan: s.plan(t), Dataset: dataset(t, houses(t, 4)...), Dir: b.folder(), Kernel: kernels(t), Workers: 1}
	inner, cancel := context.WithCancel(ctx)
	c.Progress = func(p Progress) {
		if p.Round == 7 {
			cancel()
		}
	}
	_, err := Run(inner, c)
	// Round 7 was saved before it was stopped.
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "stopped in round 7 of 50; --resume goes on from round 8") {
		t.Error(err)
	}
	for _, spoil := range []struct {
		want  string
		spoil func(*Config)
	}{
		{"another plan", func(c *Config) { c.Plan = s.with(settings{"seed": 9}).plan(t) }},
		{"begun with other data", func(c *Config) { c.Dataset = dataset(t, houses(t, 5)[:4]...); c.Dataset.Name = "others" }},
		{"no run to go on with", func(c *Config) { c.Dir = b.folder() }},
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
		t.Errorf("half a checkpoint: %v", err)
	}
	if err := os.WriteFile(checkpoint, whole, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(ctx, with(c)); err != nil {
		t.Error(err)
	}
}

// The file of the shared weights has only shared layers in it, and a client's own
// only personal ones.
func TestFilesOfWeights(t *testing.T) {
	b := newBench(t)
	c := Config{
		Plan:    small("fedavg").with(settings{"partition": "head", "schedule.cohort": 2, "rounds": 1}).plan(t),
		Dataset: dataset(t, houses(t, 4)...), Dir: b.folder(), Kernel: kernels(t), Workers: 1,
	}
	if _, err := Run(ctx, c); err != nil {
		t.Fatal(err)
	}
	files := 0
	for name := range comparable(t, c.Dir) {
		if !strings.HasSuffix(name, ".safetensors") {
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
				t.Errorf("%s has %s", name, x.Name)
			}
		}
	}
	if files != 3 { // the two who never trained have none
		t.Errorf("%d files", files)
	}
}
