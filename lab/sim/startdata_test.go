package sim

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"loadstar/fed/recipe"
	"loadstar/series"
)

// weightsIn returns the shared weights in a file.
func weightsIn(t *testing.T, c Config, path string) []float32 {
	t.Helper()
	q, err := recipe.Frame(c.Plan, c.Dataset)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	w := make([]float32, q.Model.Net().Weights())
	if _, err := q.Model.ReadWeights(bytes.NewReader(text), w, q.Partition.Shared()); err != nil {
		t.Fatal(err)
	}
	return w
}

// TestStartOnServerData checks the weights that are trained on the server's data before the
// first round. They must equal the weights of pooled training on the same clients. The run must
// equal a run with the other clients that starts from the file of these weights. A resumed run
// must not train them again.
func TestStartOnServerData(t *testing.T) {
	houses := houses(t, 7)
	b, d := newRunner(t), dataset(t, houses...)
	// A batch that contains all examples makes the steps independent of the sampling.
	const steps = 5
	plan := small("fedavg").with(settings{
		"start": "server-data", "server.start_steps": steps, "server.clients": 0.3, "client.optimizer": "sgd", "client.batch": 8192, "rounds": 2,
	})
	config := func(s settings, d *series.Dataset) Config {
		return Config{Plan: s.plan(t), Dataset: d, Dir: b.folder(), Kernel: kernels(t), Workers: 2}
	}
	c := config(plan, d)
	s, err := newSimulation(c)
	if err != nil {
		t.Fatal(err)
	}
	var own, others []series.Meter
	for _, h := range houses {
		if slices.ContainsFunc(s.fleet.own, func(m member) bool { return string(m.id) == h.ID }) {
			own = append(own, h)
		} else {
			others = append(others, h)
		}
	}
	s.close()
	done, err := Run(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if len(own) != 2 || done.Clients != 5 || len(done.Start) != 64 {
		t.Fatalf("%d of the clients are the server's, %d train, the start has the hash %q", len(own), done.Clients, done.Start)
	}
	start := filepath.Join(c.Dir, copyOfStart)
	got := weightsIn(t, c, start)

	pooled := config(small("pooled").with(settings{
		"client.optimizer": "sgd", "client.batch": 8192, "client.steps": steps, "rounds": 1,
	}), dataset(t, own...))
	if _, err := Run(ctx, pooled); err != nil {
		t.Fatal(err)
	}
	q, err := recipe.Frame(c.Plan, d)
	if err != nil {
		t.Fatal(err)
	}
	random, moved := q.Model.InitialWeights(c.Plan.Seed), 0.0
	for i, want := range weightsIn(t, pooled, filepath.Join(pooled.Dir, "shared.safetensors")) {
		if math.Abs(float64(got[i])-float64(want)) > 1e-6 {
			t.Fatalf("weight %d at the start is %v, pooled training gives %v", i, got[i], want)
		}
		moved = max(moved, math.Abs(float64(got[i])-float64(random[i])))
	}
	if moved < 1e-3 {
		t.Errorf("training on the server's data moves weights by at most %v", moved)
	}

	plain := small("fedavg").with(settings{"client.optimizer": "sgd", "client.batch": 8192, "rounds": 2})
	from, err := Run(ctx, config(plain.with(settings{"start": start}), dataset(t, others...)))
	if err != nil || from.Weights != done.Weights {
		t.Errorf("a run from the file of the start differs: %v", err)
	}

	// The initial weights are trained again only if their file does not exist yet.
	other := config(plain.with(settings{"seed": 9, "rounds": 1}), dataset(t, others...))
	if _, err := Run(ctx, other); err != nil {
		t.Fatal(err)
	}
	for _, after := range []int64{2, steps + 2} {
		c := config(plan, d)
		if _, err := Run(newCountdown(after), c); err == nil {
			t.Fatal("not interrupted")
		}
		file := filepath.Join(c.Dir, copyOfStart)
		_, err := os.Stat(file)
		if (err == nil) != (after > steps) {
			t.Fatalf("interrupted after %d checks, the file of the start: %v", after, err)
		}
		want := done.Weights
		if after > steps {
			text, err := os.ReadFile(filepath.Join(other.Dir, "shared.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, text, 0o600); err != nil {
				t.Fatal(err)
			}
			want = ""
		}
		c.Resume = true
		resumed, err := Run(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		if want != "" && resumed.Weights != want || want == "" && (resumed.Weights == done.Weights || resumed.Start == done.Start) {
			t.Errorf("interrupted after %d checks: weights %s from %s", after, resumed.Weights, resumed.Start)
		}
	}
}
