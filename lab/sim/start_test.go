package sim

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A run can start from the shared weights of another run. It resumes with its own copy of these
// weights, and personal layers start as usual.
func TestStart(t *testing.T) {
	b, d := newRunner(t), dataset(t, houses(t, 4)...)
	plan := small("fedavg").with(settings{"partition": "head", "rounds": 2})
	config := func(s settings) Config {
		return Config{Plan: s.plan(t), Dataset: d, Dir: b.folder(), Kernel: kernels(t), Workers: 1}
	}
	first := config(plan)
	trained, err := newSimulation(first)
	if err != nil {
		t.Fatal(err)
	}
	random := slices.Clone(trained.server.Shared())
	trained.close()
	if _, err := Run(ctx, first); err != nil {
		t.Fatal(err)
	}
	shared := filepath.Join(first.Dir, "shared.safetensors")
	var sums []string
	for _, path := range []string{first.Dir, shared} {
		for _, moments := range []string{"reset", "averaged"} {
			c := config(plan.with(settings{"start": path, "client.moments": moments}))
			s, err := newSimulation(c)
			if err != nil {
				t.Fatal(err)
			}
			got := s.sharedWeights()
			if slices.Equal(got, random[:len(got)]) || !slices.Equal(s.personal, trained.personal) {
				t.Errorf("%s: the run does not start from the given shared and the usual personal weights", path)
			}
			s.close()
			done, err := Run(ctx, c)
			if err != nil {
				t.Fatal(err)
			}
			if len(done.Start) != 64 || done.Weights == "" {
				t.Errorf("the weights at the start have the hash %q", done.Start)
			}
			if moments == "reset" {
				sums = append(sums, done.Weights)
			}
		}
	}
	if sums[0] != sums[1] {
		t.Error("the folder of a run and its file of shared weights give different runs")
	}

	// An interrupted run no longer needs the original.
	content, err := os.ReadFile(shared)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "given.safetensors")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	c := config(plan.with(settings{"start": path}))
	if _, err := Run(newCountdown(3), c); err == nil {
		t.Fatal("not interrupted")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	c.Resume = true
	if done, err := Run(ctx, c); err != nil || done.Weights != sums[0] {
		t.Errorf("resumed without the original: %v", err)
	}

	for name, s := range map[string]settings{
		"does not have the shared layers": plan.with(settings{"start": shared, "partition": "none"}),
		"no such file":                    plan.with(settings{"start": path}),
	} {
		c := config(s)
		if _, err := Run(ctx, c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %s", err, name)
		}
		if _, err := os.Stat(c.Dir); err == nil {
			t.Errorf("%s: the run has a folder", name)
		}
	}
}
