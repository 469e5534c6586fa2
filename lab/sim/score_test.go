package sim

import (
	"math"
	"slices"
	"strconv"
	"testing"
)

// field returns a field of a table as a number, or NaN if it is empty.
func field(t *testing.T, row map[string]string, column string) float64 {
	t.Helper()
	text, ok := row[column]
	if !ok {
		t.Fatalf("no column %s in %v", column, row)
	}
	if text == "" {
		return math.NaN()
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestScoresOfQuantiles checks the tables of a run whose model forecasts quantiles.
func TestScoresOfQuantiles(t *testing.T) {
	d := dataset(t, houses(t, 4)...)
	b := newRunner(t)
	with := func(blend bool) settings {
		s := small("fedavg")
		s["model.loss"], s["model.quantiles"], s["model.targets"] = "pinball", []float64{0.1, 0.5, 0.9}, 3
		s["evaluate.correct"], s["evaluate.forecasts"] = blend, 2
		return s
	}
	plain, blended := b.run(t, with(false), d, 1), b.run(t, with(true), d, 2)
	if r := plain.RelativeMAE.Reference; r != "last-week" || plain.Corrected || !blended.Corrected {
		t.Errorf("reference %s, blend %t and %t", r, plain.Corrected, blended.Corrected)
	}
	if c := plain.Coverage; c == nil || !(c.Model > 0 && c.Model < 1) || c.Calibrated == c.Model {
		t.Errorf("coverage %+v", c)
	}
	a, z := rows(t, plain.files["clients.csv"]), rows(t, blended.files["clients.csv"])
	differ := 0
	for i := range a {
		model := field(t, a[i], "relative_mae_model")
		if field(t, a[i], "relative_mae") != model || field(t, z[i], "relative_mae_model") != model {
			t.Errorf("client %s: the model alone has %v, %v and %v", a[i]["unique_id"], field(t, a[i], "relative_mae"), model, field(t, z[i], "relative_mae_model"))
		}
		if field(t, z[i], "relative_mae") != model {
			differ++
		}
		for _, column := range []string{"coverage", "coverage_calibrated", "pinball", "pinball_calibrated"} {
			if v := field(t, a[i], column); !(v >= 0) {
				t.Errorf("client %s: %s %v", a[i]["unique_id"], column, v)
			}
		}
	}
	if differ == 0 {
		t.Error("no client's forecasts were blended")
	}
	forecasts := rows(t, blended.files["forecasts.csv"])
	if len(forecasts) == 0 {
		t.Fatal("no forecasts")
	}
	for _, f := range forecasts {
		p := []float64{field(t, f, "P10"), field(t, f, "P50"), field(t, f, "P90")}
		if !slices.IsSorted(p) || p[1] != field(t, f, "forecast") {
			t.Fatalf("quantiles %v of %v", p, f)
		}
	}
}

// TestScoresOfPoints checks that a model without quantiles leaves the columns of quantiles
// empty.
func TestScoresOfPoints(t *testing.T) {
	s := small("fedavg")
	s["evaluate.forecasts"] = 1
	o := newRunner(t).run(t, s, dataset(t, houses(t, 2)...), 1)
	if o.Coverage != nil {
		t.Errorf("coverage %+v", o.Coverage)
	}
	clients, forecasts := rows(t, o.files["clients.csv"]), rows(t, o.files["forecasts.csv"])
	for _, column := range []string{"coverage", "coverage_calibrated", "pinball", "pinball_calibrated"} {
		if v := clients[0][column]; v != "" {
			t.Errorf("%s is %s", column, v)
		}
	}
	for _, column := range []string{"P10", "P50", "P90"} {
		if v := forecasts[0][column]; v != "" {
			t.Errorf("%s is %s", column, v)
		}
	}
}

// TestPatience checks that the number of rounds from the lowest validation loss to the end of a
// run is exactly the plan's patience.
func TestPatience(t *testing.T) {
	b := newRunner(t)
	d := dataset(t, houses(t, 4)...)
	s := small("fedavg").with(settings{"rounds": 60, "evaluate.every": 2, "client.lr": 0.1, "evaluate.keep": "best"})
	whole := b.run(t, s, d, 1)
	early := b.run(t, s.with(settings{"evaluate.patience": 6}), d, 1)
	if whole.Rounds != 60 || early.Rounds >= 60 {
		t.Fatalf("%d rounds without patience, %d with it; want 60, and fewer", whole.Rounds, early.Rounds)
	}
	lowest, at, end := math.Inf(1), 0, 0
	sums := map[int]float64{}
	for _, r := range rows(t, whole.files["evaluations.csv"]) {
		sums[number(t, r, "round")] += field(t, r, "loss")
	}
	for round := 2; round <= 60 && end == 0; round += 2 {
		if sums[round] < lowest {
			lowest, at = sums[round], round
		}
		if round-at >= 6 {
			end = round
		}
	}
	if early.Rounds != end {
		t.Errorf("the run ended after %d rounds, want %d: the lowest loss was after %d", early.Rounds, end, at)
	}
	if early.Last == nil || early.Last.MAE <= 0 {
		t.Errorf("the scores of the last round are %+v", early.Last)
	}
}

// TestDailyErrors checks that the mean of the daily errors equals the client's score, and that
// days are in ascending order.
func TestDailyErrors(t *testing.T) {
	s := small("fedavg")
	s["model.targets"] = 5
	o := newRunner(t).run(t, s, dataset(t, houses(t, 3)...), 2)
	sums, targets, last := map[string]float64{}, map[string]float64{}, map[string]string{}
	for _, e := range rows(t, o.files["errors.csv"]) {
		id, n := e["unique_id"], field(t, e, "targets")
		if e["day"] <= last[id] {
			t.Errorf("client %s: day %s after %s", id, e["day"], last[id])
		}
		last[id] = e["day"]
		sums[id] += n * field(t, e, "mae")
		targets[id] += n
	}
	clients := rows(t, o.files["clients.csv"])
	if len(sums) != len(clients) {
		t.Errorf("errors of %d clients, want %d", len(sums), len(clients))
	}
	for _, c := range clients {
		id, mae := c["unique_id"], field(t, c, "mae")
		if targets[id] != field(t, c, "targets") || math.Abs(sums[id]/targets[id]-mae) > 1e-9*mae {
			t.Errorf("client %s: %v over %v targets, want %v", id, sums[id]/targets[id], targets[id], mae)
		}
	}
}
