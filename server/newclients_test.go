package server_test

import (
	"bytes"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"loadstar/fed/recipe"
	"loadstar/lab/sim"
	"loadstar/nn/kernel"
	v1 "loadstar/proto/loadstar/v1"
)

// TestNewClients checks clients that a run holds out. They do not train, but after the run,
// they adapt its weights and report their errors as sums. The weights equal the simulator's,
// and the errors are close to the simulator's.
func TestNewClients(t *testing.T) {
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	const agents, meters = 4, 16
	d := manyMeters(t, "meter", meters)
	for name, plan := range map[string]string{
		"shared":   "{algorithm: fedavg, rounds: 3, client: {steps: 2, batch: 8}, schedule: {cohort: 6}, evaluate: {every: 0, holdout: 0.3, fine_tune: {steps: 5}}, model: {name: fekri2023, lookback: 6, targets: 2}}",
		"personal": "{algorithm: fedadam, partition: head, rounds: 3, client: {steps: 2, batch: 8}, schedule: {cohort: 6}, evaluate: {every: 0, holdout: 0.3, fine_tune: {epochs: 1, choose: validation}}, model: {name: fekri2023, lookback: 6, targets: 2, split: {train: 0.6, validation: 0.2}}}",
	} {
		t.Run(name, func(t *testing.T) {
			s := &site{t: t, dir: t.TempDir()}
			_, at := s.serve("hub", "127.0.0.1:0", nil)
			operator := s.operator("hub", at)
			for i := range agents {
				part, err := d.Part(i+1, agents)
				if err != nil {
					t.Fatal(err)
				}
				id := fmt.Sprintf("agent%d", i)
				s.host(id, s.join(id, at, operator), part, k)
			}
			run, err := operator.StartRun(t.Context(), &v1.StartRunRequest{Plan: plan, Clients: meters})
			if err != nil {
				t.Fatal(err)
			}
			got := s.finished(operator, run.Run)
			p, err := recipe.Read([]byte(strings.TrimSpace(plan)))
			if err != nil {
				t.Fatal(err)
			}
			out := recipe.Dealt(p.Evaluate.Holdout, meters)
			if got.Run.Clients != int64(meters-out) {
				t.Errorf("%d clients train, want %d", got.Run.Clients, meters-out)
			}
			for end := time.Now().Add(patient); got.NewClients.GetAnswered() < int64(out); time.Sleep(20 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("the held-out clients do not answer: %v", got.NewClients)
				}
				if got, err = operator.GetRun(t.Context(), &v1.GetRunRequest{Run: run.Run, Rounds: 10}); err != nil {
					t.Fatal(err)
				}
			}
			if n := got.NewClients; n.HeldOut != int64(out) || n.Answered != n.HeldOut || n.Scored != n.HeldOut {
				t.Errorf("%v, want %d of each", n, out)
			}
			if !bytes.Equal(s.weights("hub", at, got), simulatedWith(t, run.Run, plan, d, nil, k)) {
				t.Error("the weights differ from the simulator's")
			}
			summary, err := sim.Run(t.Context(), sim.Config{Plan: p, Dataset: d, Replay: &sim.Replay{Run: run.Run, Secret: fleetSecret}, Dir: filepath.Join(t.TempDir(), "run"), Kernel: k, Workers: 2, Memory: 64 << 20, Save: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			// Agents omit an eighth of the windows and round errors to 0.01.
			if want := float64(summary.RelativeMAE.Mean); math.Abs(got.NewClients.RelativeMae-want) > 0.1*want {
				t.Errorf("relative MAE %.7f, the simulator has %.7f", got.NewClients.RelativeMae, want)
			}
		})
	}
}
