package sim

import (
	"reflect"
	"testing"
	"time"

	"loadstar/fed/recipe"
	"loadstar/fed/serve"
	"loadstar/forecast"
	"loadstar/forecast/issue"
	"loadstar/lab/run"
	"loadstar/series"
)

// TestFolderServes checks that a run's folder contains everything that forecasts need: the
// scaling of the run, the weights with which clients were scored, and their states at the end
// of their readings.
func TestFolderServes(t *testing.T) {
	d, b := seasons(t, 5), newRunner(t)
	day := settings{
		"name": "day", "algorithm": "fedavg", "model.name": "dense", "model.targets": 24, "rounds": 4, "schedule.cohort": 4,
		"evaluate.every": 0, "evaluate.fine_tune.steps": 0,
	}
	for name, s := range map[string]settings{
		"personal":   day,
		"fine-tuned": day.with(settings{"evaluate.fine_tune.steps": 3}),
		"held out":   day.with(settings{"evaluate.fine_tune.steps": 3, "evaluate.holdout": 0.2}),
		"own":        day.with(settings{"client.begin": "own", "evaluate.weights": "own"}),
		"shared":     day.with(settings{"partition": "none"}),
		"local":      {"name": "day", "algorithm": "local", "model.name": "dense", "model.targets": 24, "rounds": 4},
		"windows":    small("fedavg").with(settings{"partition": "head", "model.targets": 24, "model.scaling": "fleet"}),
	} {
		t.Run(name, func(t *testing.T) {
			c := Config{Plan: s.plan(t), Dataset: d, Dir: b.folder(), Kernel: kernels(t), Workers: 2, Memory: 1 << 20}
			if _, err := Run(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			folder, err := serve.Open(c.Dir, nil, c.Kernel)
			if err != nil {
				t.Fatal(err)
			}
			defer folder.Close()
			q, err := recipe.Frame(c.Plan, d)
			if err != nil {
				t.Fatal(err)
			}
			fleet, err := newFleet(c.Plan, q, d, true, 1)
			if err != nil {
				t.Fatal(err)
			}
			rows, err := run.Read[run.Client](c.Dir, "clients")
			if err != nil || len(rows) == 0 {
				t.Fatalf("%d clients, %v", len(rows), err)
			}
			scored := fleet.clients
			if len(fleet.holdout) > 0 {
				scored = fleet.holdout
			}
			scorer := forecast.NewScorer(q.Model, c.Kernel, q.Loss)
			scorer.Reference, scorer.Correct, scorer.Stride = forecast.Reference(c.Plan.Evaluate.Reference), c.Plan.Evaluate.Correct, c.Plan.Evaluate.Stride.Steps()
			for i, row := range rows {
				m := scored[i]
				client, err := folder.Client(row.Client)
				if err != nil || string(m.id) != row.Client {
					t.Fatalf("client %s: %v", row.Client, err)
				}
				if want := q.Scaling(m.meter, fleet.rangesOf(q.Framer, m.meter)); !reflect.DeepEqual(client.Scaling, want) {
					t.Errorf("client %s has the scaling %+v, want %+v", row.Client, client.Scaling, want)
				}
				// The test forecasts of the run can be repeated from the folder.
				score, _, err := scorer.Serve(client.Weights, m.meter, q.Frozen(m.meter, client.Scaling), nil)
				if err != nil || score.Overall.MAE() != row.MAE {
					t.Errorf("client %s: MAE %v from the folder, %v in the run, %v", row.Client, score.Overall.MAE(), row.MAE, err)
				}
				encoded, err := folder.State(row.Client, nil)
				if err != nil {
					t.Fatal(err)
				}
				state, err := issue.NewState(issue.Config{Step: time.Hour, Clock: d.Clock, H: 24})
				if err != nil {
					t.Fatal(err)
				}
				if err := state.UnmarshalBinary(encoded); err != nil {
					t.Fatalf("client %s: %v", row.Client, err)
				}
				end := len(m.meter.Load)
				for series.Missing(m.meter.Load[end-1]) {
					end--
				}
				if want := m.meter.Start + int64(end)*3600; state.Next() != want {
					t.Errorf("client %s: the state knows readings up to %d, want %d", row.Client, state.Next(), want)
				}
			}
		})
	}
}
