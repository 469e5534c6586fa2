package sim

import (
	"strings"
	"testing"

	"loadstar/fed/serve"
	"loadstar/lab/run"
)

// TestFitUnasked checks that clients that no round asked have personal layers in the run's
// folder, that these layers are better than the initial ones, and that a run without such
// clients fits nothing.
func TestFitUnasked(t *testing.T) {
	d, b := seasons(t, 5), newRunner(t)
	s := settings{
		"name": "day", "algorithm": "fedavg", "model.name": "dense", "model.targets": 24, "rounds": 1, "schedule.cohort": 2,
		"evaluate.every": 0, "evaluate.fine_tune.steps": 0,
	}
	fitted := func(s settings) (all int, c Config) {
		var notes []string
		c = Config{Plan: s.plan(t), Dataset: d, Dir: b.folder(), Kernel: kernels(t), Workers: 2, Memory: 1 << 20}
		c.Note = func(text string) { notes = append(notes, text) }
		c.Progress = func(p Progress) { all = max(all, p.Fitted) }
		if _, err := Run(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if said := strings.Contains(strings.Join(notes, " "), "that no round asked"); said != (all > 0) {
			t.Errorf("%d clients are fitted, and the notes are %q", all, notes)
		}
		return all, c
	}
	if n, _ := fitted(s.with(settings{"schedule.cohort": 5})); n != 0 {
		t.Errorf("%d clients are fitted, although all trained", n)
	}
	n, c := fitted(s)
	if n != 3 {
		t.Errorf("%d clients are fitted, want 3", n)
	}
	folder, err := serve.Open(c.Dir, nil, c.Kernel)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	rows, err := run.Read[run.Client](c.Dir, "clients")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if _, err := folder.Client(r.Client); err != nil {
			t.Errorf("client %s: %v", r.Client, err)
		}
	}
}
