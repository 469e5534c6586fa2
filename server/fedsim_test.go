package server_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"loadstar/fed/recipe"
	"loadstar/internal/testkit"
	"loadstar/lab/sim"
	"loadstar/nn/kernel"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
	"loadstar/server"
	"loadstar/server/terms"
)

// manyMeters returns a dataset of the given number of meters with names that begin with
// prefix.
func manyMeters(t *testing.T, prefix string, n int) *series.Dataset {
	t.Helper()
	few := generated(t, 20)
	var all []series.Meter
	for i := range n {
		m := few.Meter(i % 20)
		load := make([]float32, len(m.Load))
		for k, v := range m.Load {
			load[k] = v * float32(1+i/20)
		}
		m.ID, m.Load = fmt.Sprintf("%s-%03d", prefix, i), load
		all = append(all, m)
	}
	d, err := few.With(all)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestFedSIM trains plans with data on the server in a fleet of 20 agents, with and without
// personal layers, and restarts the server during a run. The weights are byte-identical to the
// simulator's.
func TestFedSIM(t *testing.T) {
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	agents := 20
	if testing.Short() {
		agents = 4
	}
	d, own := manyMeters(t, "meter", 2*agents), manyMeters(t, "own", 3)
	rounds := testkit.Pick(6, 20)
	for name, plan := range map[string]string{
		"shared":   "{algorithm: fedsim, rounds: %d, client: {steps: 2, batch: 8}, server: {batch: 16}, schedule: {cohort: 6}, evaluate: {every: 0}, model: {name: fekri2023, lookback: 6, targets: 2}}",
		"personal": "{algorithm: fedsim, partition: head, rounds: %d, client: {steps: 2, batch: 8, optimizer: proxadam, moments: kept}, server: {batch: 16}, schedule: {cohort: 6}, evaluate: {every: 0}, model: {name: fekri2023, lookback: 6, targets: 2}}",
		"start":    "{algorithm: fedsim, start: server-data, rounds: %d, client: {steps: 2, batch: 16}, server: {batch: 16, start_steps: 30}, schedule: {cohort: 6}, evaluate: {every: 0}, model: {name: fekri2023, lookback: 6, targets: 2}}",
	} {
		t.Run(name, func(t *testing.T) {
			plan := fmt.Sprintf(plan, rounds)
			s := &site{t: t, dir: t.TempDir()}
			with := func(d *terms.OwnData) func(c *server.Config) {
				return func(c *server.Config) { c.Data = d }
			}
			hub, at := s.serve("hub", "127.0.0.1:0", with(terms.NewOwnData(own, k)))
			operator := s.operator("hub", at)
			for i := range agents {
				part, err := d.Part(i+1, agents)
				if err != nil {
					t.Fatal(err)
				}
				id := fmt.Sprintf("agent%d", i)
				s.host(id, s.join(id, at, operator), part, k)
			}
			run, err := operator.StartRun(t.Context(), &v1.StartRunRequest{Plan: plan, Clients: int64(d.Len())})
			if err != nil {
				t.Fatal(err)
			}
			s.reached(operator, run.Run, 2)
			hub.stop()
			// With other data, the run waits and reports the reason.
			hub, _ = s.serve("hub", at, with(terms.NewOwnData(manyMeters(t, "own", 4), k)))
			s.reason(operator, run.Run, "waits: the server's data has changed since the run began: 3 meters every 1h0m0s")
			hub.stop()
			hub, _ = s.serve("hub", at, nil)
			s.reason(operator, run.Run, "waits: algorithm fedsim needs readings on the server, which has none")
			if _, err := operator.StartRun(t.Context(), &v1.StartRunRequest{Plan: plan}); err == nil || !strings.Contains(err.Error(), "start every coordinator with rounds.data in server.yaml") {
				t.Errorf("without data, starting a run: %v", err)
			}
			hub.stop()
			s.serve("hub", at, with(terms.NewOwnData(own, k)))
			got := s.finished(operator, run.Run)
			if len(got.Rounds) != rounds || got.Run.Reason != "" {
				t.Errorf("%d rounds, reason %q", len(got.Rounds), got.Run.Reason)
			}
			want := simulatedWith(t, run.Run, plan, d, own, k)
			if !bytes.Equal(s.weights("hub", at, got), want) {
				t.Error("the weights differ from the simulator's")
			}
			if bytes.Equal(want, simulatedWith(t, run.Run, plan, d, manyMeters(t, "own", 4), k)) {
				t.Error("the server's data has no effect")
			}
		})
	}
}

// reached waits until a run has reached a version.
func (s *site) reached(o v1.OperatorServiceClient, run string, version int64) {
	s.t.Helper()
	s.until(o, run, func(r *v1.Run) bool { return r.Version >= version })
}

// reason waits until a run has a reason that begins with the given string.
func (s *site) reason(o v1.OperatorServiceClient, run, want string) {
	s.t.Helper()
	s.until(o, run, func(r *v1.Run) bool { return strings.HasPrefix(r.Reason, want) && r.State == "running" })
}

func (s *site) until(o v1.OperatorServiceClient, run string, ok func(*v1.Run) bool) {
	s.t.Helper()
	var last *v1.Run
	for end := time.Now().Add(patient); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		r, err := o.GetRun(s.t.Context(), &v1.GetRunRequest{Run: run})
		if err != nil {
			continue
		}
		if last = r.Run; ok(last) {
			return
		}
	}
	s.t.Fatalf("timed out; the run is %v", last)
}

// simulatedWith returns the final shared weights of the simulator's repetition of a run with
// data on the server.
func simulatedWith(t *testing.T, run, plan string, d, own *series.Dataset, k *kernel.Set) []byte {
	t.Helper()
	return simulatedAs(t, plan, d, own, &sim.Replay{Run: run, Secret: fleetSecret}, k)
}

// simulatedAs is like simulatedWith, but takes any sim.Replay. If the replay is nil, the plan's
// seed selects the examples.
func simulatedAs(t *testing.T, plan string, d, own *series.Dataset, of *sim.Replay, k *kernel.Set) []byte {
	t.Helper()
	p, err := recipe.Read([]byte(strings.TrimSpace(plan)))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "run")
	if _, err := sim.Run(t.Context(), sim.Config{Plan: p, Dataset: d, ServerData: own, Replay: of, Dir: dir, Kernel: k, Workers: 2, Memory: 64 << 20, Save: time.Hour}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "shared.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
