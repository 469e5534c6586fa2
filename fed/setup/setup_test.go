package setup

import (
	"slices"
	"strings"
	"testing"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/nn/kernel"
)

func setupOf(t *testing.T, text string) (*Setup, error) {
	t.Helper()
	p, err := recipe.Read([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return of(t, p)
}

func of(t *testing.T, p *fed.Plan) (*Setup, error) {
	t.Helper()
	problem, err := recipe.Frame(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	return New(p, problem, 12)
}

// Every algorithm starts from the model's initial weights. The server starts with the shared
// part of these weights, and each client with the personal part.
func TestEveryAlgorithmStarts(t *testing.T) {
	k := kernel.Available()[0]
	for _, a := range recipe.Algorithms() {
		for _, partition := range []string{"none", "head", "all"} {
			p, err := recipe.Read([]byte("algorithm: " + a.Name + "\nseed: 7\npartition: " + partition))
			if err != nil {
				continue // the algorithm shares nothing or fixes the partition
			}
			s, err := of(t, p)
			if err != nil {
				t.Fatalf("%s: %v", a.Name, err)
			}
			worker, server := s.NewWorker(k), s.NewServer()
			kept := s.InitialKept(worker)
			if len(kept) != worker.Kept() {
				t.Errorf("%s: a client stores %d numbers, want %d", a.Name, len(kept), worker.Kept())
			}
			personal := s.Problem.Partition.PersonalLen()
			whole := make([]float32, s.Problem.Model.Net().Weights())
			s.Problem.Partition.Join(whole, server.Shared(), kept[:personal])
			if !slices.Equal(whole, s.Problem.Model.InitialWeights(7)) {
				t.Errorf("%s, partition %s: shared and personal weights are not the model's", a.Name, partition)
			}
			if slices.ContainsFunc(kept[personal:], func(x float32) bool { return x != 0 }) {
				t.Errorf("%s: the trainer's initial state is not zero", a.Name)
			}
			if server.Version() != 0 || s.NewMachine().Round() != 0 {
				t.Errorf("%s: the server starts at version %d, want 0", a.Name, server.Version())
			}
			if travels := s.Traffic() != (recipe.Traffic{}); travels == a.Alone {
				t.Errorf("%s: traffic %+v", a.Name, s.Traffic())
			}
			f := p.Evaluate.FineTune
			if tunes := f.Steps+f.Epochs > 0; (s.NewTuner(k) != nil) != tunes {
				t.Errorf("%s: fine-tunes: %v", a.Name, !tunes)
			}
		}
	}
}

// Two servers of the same setup do not share memory.
func TestServersAreSeparate(t *testing.T) {
	s, err := setupOf(t, "algorithm: scaffold")
	if err != nil {
		t.Fatal(err)
	}
	a, b := s.NewServer().Task(0), s.NewServer().Task(0)
	if &a.Shared[0] == &b.Shared[0] || &a.Control[0] == &b.Control[0] {
		t.Error("two servers share state")
	}
}

func TestServerData(t *testing.T) {
	s, err := setupOf(t, "algorithm: fedavg")
	if err != nil {
		t.Fatal(err)
	}
	if own, err := s.NewServerData(kernel.Available()[0], nil); own != nil || err != nil {
		t.Errorf("fedavg needs no data on the server, but got %v, %v", own, err)
	}
}

func TestRejected(t *testing.T) {
	p, err := recipe.Read([]byte("algorithm: fedavg"))
	if err != nil {
		t.Fatal(err)
	}
	p.Partition = "all"
	if _, err := of(t, p); err == nil || !strings.Contains(err.Error(), "partition all shares no layers") {
		t.Error(err)
	}
	if _, err := setupOf(t, "algorithm: fedavg\nschedule: {cohort: 50}"); err == nil || !strings.Contains(err.Error(), "only 12 clients train") {
		t.Error(err)
	}
}
