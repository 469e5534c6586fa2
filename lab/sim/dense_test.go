package sim

import (
	"context"
	"errors"
	"testing"
	"time"

	"loadstar/series"
	"loadstar/series/synth"
)

// seasons returns meters with weather and a country. Their readings span a change of the
// clocks.
func seasons(t testing.TB, n int) *series.Dataset {
	t.Helper()
	zone, err := time.LoadLocation("America/Chicago")
	if err != nil {
		t.Fatal(err)
	}
	g, err := synth.New(synth.Config{Seed: 5, Meters: n, Start: time.Date(2018, 2, 10, 0, 0, 0, 0, zone), Days: 50, Zone: "America/Chicago", Faults: synth.Faults{Gap: 0.01}})
	if err != nil {
		t.Fatal(err)
	}
	all := houses(t, n)
	for i := range all {
		load := make([]float32, g.Len())
		g.Building(i, load)
		all[i].Start, all[i].Load = g.Time(24*i).Unix(), load[24*i:]
	}
	d, err := series.NewDataset(series.Dataset{
		Name: "seasons", Generated: true, Interval: time.Hour, Clock: zone, Country: synth.Country,
		Weather: series.Weather{Start: g.Time(0).Unix(), Names: []string{"temperature", "wind"}, Columns: [][]float32{g.Weather().Temperature, g.Weather().Wind}},
	}, all)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDenseWorkers checks that plans of dense write the same files with 1, 2 and 3 workers,
// with enough and too little memory, and after interruptions. It uses the default settings of
// training, fine-tuning and the choice of final weights.
func TestDenseWorkers(t *testing.T) {
	d, b := seasons(t, 5), newRunner(t)
	short := settings{
		"name": "short", "algorithm": "fedavg", "model.name": "dense", "rounds": 6, "client.warmup": 5, "schedule.cohort": 4,
		"evaluate.every": 2, "evaluate.windows": 20, "evaluate.keep": "best", "evaluate.fine_tune.steps": 4, "evaluate.fine_tune.choose": "validation",
	}
	for name, s := range map[string]settings{
		"an hour":  short,
		"a day":    short.with(settings{"model.targets": 24}),
		"averaged": short.with(settings{"model.targets": 24, "client.moments": "averaged"}),
	} {
		t.Run(name, func(t *testing.T) {
			one := b.run(t, s, d, 1)
			for _, file := range []string{"clients.csv", "errors.csv", "rounds.csv", "forecasts.csv", "shared.safetensors", "personal/house-0.safetensors", "tuned/house-0.safetensors", "scaling.safetensors"} {
				if one.files[file] == "" {
					t.Fatalf("no %s among %d files", file, len(one.files))
				}
			}
			if (one.files["states.bin"] == "") != (name == "an hour") {
				t.Errorf("states.bin has %d bytes", len(one.files["states.bin"]))
			}
			for workers := 2; workers <= 3; workers++ {
				c := Config{Plan: s.plan(t), Dataset: d, Workers: workers, Memory: int64(3-workers) << 30}
				o, err := b.try(t, c)
				if err != nil {
					t.Fatal(err)
				}
				if names := different(one.files, o.files); len(names) > 0 {
					t.Errorf("with %d workers these files differ: %v", workers, names)
				}
			}
			c := Config{Plan: s.plan(t), Dataset: d, Dir: b.folder(), Kernel: kernels(t), Workers: 2, Memory: 1 << 20}
			stops := 0
			for left := int64(30); ; left += 30 { // each attempt gets further than the previous one
				if _, err := Run(newCountdown(left), c); err == nil {
					break
				} else if !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				stops++
				c.Resume = true
			}
			if names := different(one.files, comparable(t, c.Dir)); len(names) > 0 || stops < 3 {
				t.Errorf("after %d interruptions these files differ: %v", stops, names)
			}
			t.Logf("%d files, %d interruptions", len(one.files), stops)
		})
	}
}
