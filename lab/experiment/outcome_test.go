package experiment

import (
	"math"
	"slices"
	"testing"

	"loadstar/fed"
	"loadstar/lab/run"
	"loadstar/metric"
)

// finished returns a run with one client per error. Their loads are 1, 2, 3 and so on.
func finished(errors ...float64) *outcome {
	o := &outcome{Summary: &run.Summary{Clients: len(errors), Steps: 40, Fleet: metric.Fleet{}}, plan: &fed.Plan{Model: fed.Model{Loss: "mse", Scaling: "client"}}}
	for i, e := range errors {
		o.clients = append(o.clients, run.Client{Client: string(rune('a' + i)), Level: float64(i + 1), Loss: e * e, RMSE: e, MAE: e, MAPE: e, RelativeMAE: e})
	}
	return o
}

func TestOutcome(t *testing.T) {
	o := finished(4, 3, 2, 1, 0)
	for round, loss := range []float64{9, 4, 1.2, 1.3, 1} {
		o.evaluations = append(o.evaluations, run.Evaluation{Round: 10 * round, Loss: loss * loss}, run.Evaluation{Round: 10 * round, Loss: loss * loss})
	}
	got := o.figures()
	for name, want := range map[string]float64{
		"gradients": 8, "clients": 5, "diverged": 0, "relative_mae_iqr": 2, "rmse01": 2, "rmse01_iqr": 2, "rmse01_range": 4,
		"rank_load": -1, "converged_round": 40, "validation_loss": 1,
	} {
		if math.Abs(got[name]-want) > 1e-12 {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	o.evaluations = slices.Insert(o.evaluations, 8, run.Evaluation{Round: 35, Loss: 1.04 * 1.04})
	if got := o.converged(); got != 35 {
		t.Errorf("converged after round %v", got)
	}
	o.plan = &fed.Plan{Algorithm: "pooled", Model: fed.Model{Loss: "mae"}}
	got = o.figures()
	if _, ok := got["rmse01"]; ok || got["gradients"] != 40 {
		t.Errorf("figures of pooled training: %v", got)
	}
	o.Summary = nil
	if got := o.figures(); got["diverged"] != 1 || got["gradients"] != 0 {
		t.Errorf("figures of a run that failed: %v", got)
	}
}

func TestRankCorrelation(t *testing.T) {
	for _, c := range []struct {
		a, b []float64
		want float64
	}{
		{[]float64{1, 2, 30}, []float64{4, 5, 6}, 1},
		{[]float64{1, 2, 3, 4}, []float64{9, 9, 1, 1}, -2 / math.Sqrt(5)},
		{[]float64{1, 1}, []float64{1, 2}, math.NaN()},
		{nil, nil, math.NaN()},
	} {
		if got := rankCorrelation(c.a, c.b); !(math.Abs(got-c.want) < 1e-12) && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("%v and %v: %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

// TestRivals checks that only rivals are compared, that a failed run never wins, and that the
// comparison with a single method is correct.
func TestRivals(t *testing.T) {
	p := Part{Name: "p", Rivals: []string{"a", "b"}, Than: "b"}
	rows := make([]row, 3)
	for i, name := range []string{"a", "b", "c"} {
		rows[i] = row{Result{Part: "p", Method: name, Figures: map[string]Figure{}}, []int{0, 1}}
	}
	lost := &outcome{plan: &fed.Plan{}}
	b := finished(2, 1.02, 4)
	b.course.Last = 5
	a := finished(1, 1, 5)
	for round, loss := range []float64{9, 6, 4} {
		a.evaluations = append(a.evaluations, run.Evaluation{Round: round, Loss: loss})
	}
	outcomes := [][]*outcome{{a, finished(1, 1, 1)}, {b, lost}, {finished(0, 0, 0), finished(0, 0, 0)}}
	p.contest(rows, outcomes)
	p.versus(rows, outcomes)
	for i, want := range []map[string]Figure{
		{"won_rmse": {2, 3}, "near_rmse": {2, 3}, "gained": {2, math.NaN()}, "reached_round": {2, math.NaN()}},
		{"won_rmse": {1, 0}, "near_rmse": {2, 0}, "gained": nil},
		{"won_rmse": nil},
	} {
		for name, f := range want {
			got := rows[i].Figures[name]
			if !slices.EqualFunc(got, f, func(x, y float64) bool { return x == y || math.IsNaN(x) && math.IsNaN(y) }) {
				t.Errorf("%s of %s is %v, want %v", name, rows[i].Method, []float64(got), []float64(f))
			}
		}
	}
}
