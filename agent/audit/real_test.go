package audit

import (
	"slices"
	"testing"

	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/recipe"
	"loadstar/fed/setup"
	"loadstar/internal/testkit"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/read"
)

// TestRealHomes audits real homes in a run of plans/hour-ahead.yaml with ten homes.
// docs/privacy.md contains its figures.
func TestRealHomes(t *testing.T) {
	if !testkit.Long() {
		t.Skip("takes minutes; set LOADSTAR_TEST_LONG")
	}
	path, root := testkit.Dataset(t, "sgsc-core19")
	described, err := read.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	d, err := read.Open(described, root)
	if err != nil {
		t.Fatal(err)
	}
	p, err := recipe.Read([]byte("name: hour-ahead\nalgorithm: fedavg\nmodel: {name: dense, targets: 1h}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if p, err = recipe.Resolve(p, d.Interval); err != nil {
		t.Fatal(err)
	}
	q, err := recipe.Frame(p, d)
	if err != nil {
		t.Fatal(err)
	}
	s, err := setup.New(p, q, 10)
	if err == nil {
		s, err = s.OfAgent([32]byte{1})
	}
	if err != nil {
		t.Fatal(err)
	}
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	const homes, rounds = 10, 40
	w := s.NewWorker(k)
	shared, _ := s.InitialWeights()
	var kept [homes][]float32
	var data [homes]series.Examples
	for i := range kept {
		kept[i], data[i] = s.InitialKept(w), q.Examples(d.Meter(i), q.Framer.Ranges(d.Meter(i)))
	}
	var tasks []fed.Task // newest first
	for r := range rounds {
		task := fed.Task{Run: "run", Round: r, Version: r, Shared: slices.Clone(shared)}
		tasks = slices.Insert(tasks, 0, task)
		for i := range homes {
			var u fed.Update
			c := client.Client{ID: fed.ClientID(d.Meter(i).ID), Data: data[i : i+1], Kept: kept[i], First: r == 0}
			if err := w.Train(t.Context(), &c, task, &u); err != nil {
				t.Fatal(err)
			}
			for j, v := range u.Delta {
				shared[j] += v / homes
			}
		}
	}
	q.LimitCache(0)
	for i := range 4 {
		m := d.Meter(i)
		t.Logf("home %s, %d examples", m.ID, data[i].Len(series.Train))
		scaling := q.Scaling(m, q.Framer.Ranges(m))
		found := run(t, Subject{
			Setup: s, Kernel: k, Meter: m, Kept: kept[i], Tasks: tasks[:10], Progress: func(int, int) {},
			Examples: func(m series.Meter) series.Examples { return q.Frozen(m, scaling) },
		})
		if a := found[Readings]; a.Guess.Correlation > a.Empty.Correlation+0.2 || a.Known.Correlation < 0.4 {
			t.Errorf("readings: %.3f, %.3f without the updates, %.3f with known draws", a.Guess.Correlation, a.Empty.Correlation, a.Known.Correlation)
		}
		if a := found[Profile]; a.Guess.Correlation < 0.6 {
			t.Errorf("the profile is not found: %.3f", a.Guess.Correlation)
		}
	}
}
