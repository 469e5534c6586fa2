package paper

import (
	"math"
	"strings"
	"testing"
	"time"

	"loadstar/lab/experiment"
	"loadstar/lab/report"
)

// example returns results of a part with three methods and a baseline on two datasets.
func example() *rules {
	var results []experiment.Result
	add := func(dataset, method string, at []string, f map[string]experiment.Figure) {
		results = append(results, experiment.Result{Part: "table", Dataset: dataset, Method: method, At: at, Figures: f})
	}
	for _, d := range []string{"hog", "robin"} {
		add(d, "ridge", nil, map[string]experiment.Figure{"mae": {2.5}})
		add(d, "FL", nil, map[string]experiment.Figure{"mae": {3, 3.2, 3.1}, "steps": {1, 1, 1}, "rose": {2, 2, 2}, "diverged": {0, 1, 0}})
		add(d, "PL", nil, map[string]experiment.Figure{"mae": {1, 1.2, 1.1}, "steps": {1, 1, 1}, "rose": {2, 2, 2}, "diverged": {0, 0, 0}})
		add(d, "noisy", nil, map[string]experiment.Figure{"mae": {1, 2.9, 1}, "steps": {1, 1, 1}, "rose": {2, 2, 2}, "diverged": {0, 0, 0}})
		add(d, "lost", nil, map[string]experiment.Figure{"mae": {1, math.NaN(), 1}, "steps": {1, 1, 1}, "rose": {2, 2, 2}, "diverged": {0, 1, 0}})
		add(d, "grid", []string{"0.1", "P 1"}, map[string]experiment.Figure{"mae": {7}, "steps": {1}})
	}
	return &rules{results: results, published: []printed{
		{table: "IV", row: "California", column: "FL", metric: "MAE", value: "22.5"},
		{table: "fig. 1", row: "a", column: "b", metric: "c"},
	}}
}

func TestConditions(t *testing.T) {
	r := example()
	for text, want := range map[string]bool{
		`lower(v("table", "hog", "PL", "mae"), v("table", "hog", "FL", "mae"))`:         true,
		`clearly(v("table", "hog", "PL", "mae"), v("table", "hog", "FL", "mae"))`:       true,
		`clearly(v("table", "hog", "FL", "mae"), v("table", "hog", "PL", "mae"))`:       false,
		`clearly(v("table", "hog", "noisy", "mae"), v("table", "hog", "FL", "mae"))`:    true,
		`clearly(v("table", "hog", "noisy", "mae"), v("table", "hog", "ridge", "mae"))`: false, // one seed is higher
		`clearly(v("table", "hog", "PL", "mae"), v("table", "hog", "ridge", "mae"))`:    true,
		`clearly(v("table", "hog", "ridge", "mae"), 3)`:                                 false, // one seed
		`clearly([1, 1], [9, 9])`:                                                                                    false, // two seeds
		`clearly([1, 1, 4], [4.5, 4.5, 4.6])`:                                                                        true,
		`clearly([1, 1, 4], [1.5, 1.5, 4.6])`:                                                                        false, // less than the spread
		`clearly(v("table", "hog", "lost", "mae"), 100)`:                                                             false,
		`lower(v("table", "hog", "lost", "mae"), 100)`:                                                               false,
		`all(datasets("table"), lower(v("table", #, "PL", "mae"), v("table", #, "FL", "mae")))`:                      true,
		`count(filter(methods("table"), # != "grid"), mean(v("table", "hog", #, "mae")) < 2.5) == 2`:                 true,
		`best("table", "hog", "mae", ["FL", "PL", "lost"]) == "PL"`:                                                  true,
		`rank("table", "hog", "mae", ["FL", "PL", "lost"], "lost") == 3`:                                             true,
		`diverged("table", "hog", "FL") == 1`:                                                                        true,
		`seeds(v("table", "hog", "PL", "mae")) >= 3`:                                                                 true,
		`v("table", "hog", "grid", "mae", "0.1", "P 1")[0] == 7`:                                                     true,
		`axis("table", 1)[0] == "P 1" and "grid" in methods("table") and baselines("table")[0] == "ridge"`:           true,
		`has("table", "hog", "grid", "mae", "0.1", "P 1") and not has("table", "hog", "grid", "rmse", "0.1", "P 1")`: true,
		`published("IV", "California", "FL", "MAE") > 22`:                                                            true,
		`mean(ratio(v("table", "hog", "FL", "mae"), v("table", "hog", "PL", "mae"))) > 2.8`:                          true,
		`low(times([1, 2], 100)) == 100 and high([1, 2]) == 2 and spread([1, 3]) > 1.41 and spread([1, 3]) < 1.42`:   true,
	} {
		got, err := r.condition(text)
		if err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}

func TestConditionsRefuse(t *testing.T) {
	r := example()
	for text, want := range map[string]string{
		`v("tabel", "hog", "PL", "mae")`:                   `no part "tabel"; there are table`,
		`v("table", "hug", "PL", "mae")`:                   `no dataset "hug"; there are hog, robin`,
		`v("table", "hog", "pl", "mae")`:                   `no method "pl"; there are PL`,
		`v("table", "hog", "PL", "mea")`:                   `no metric "mea"; there are diverged, mae, rose, steps`,
		`v("table", "hog", "grid", "mae", "0.2", "P 1")`:   `no point "0.2; P 1"; there are 0.1; P 1`,
		`true || lower(v("table", "hog", "pl", "mae"), 1)`: `no method "pl"`,
		`lowr(1, 2)`:                           `unknown name lowr`,
		`lower(1)`:                             `not enough arguments`,
		`lower("a", 2)`:                        `a is not a list of numbers`,
		`mean(v("table", "hog", "PL", "mae"))`: `want true or false`,
		`published("IV", "California", "FL", "MASE") > 1`:                   `has no ("IV", "California", "FL", "MASE")`,
		`published("fig. 1", "a", "b", "c") > 1`:                            `not a number`,
		`best("table", "hog", "mae", []) == ""`:                             `no methods to compare`,
		`datasets("tabel")[0] == ""`:                                        `no part "tabel"`,
		`rank("table", "hog", "mae", ["FL"], "PL") == 1`:                    `PL is not among the methods FL`,
		`ratio([1, 2], [1, 2, 3])[0] > 1`:                                   `ratio of 2 and 3 values`,
		`best("table", "hog", "mae", [1]) == ""`:                            `1 is not a name`,
		`v("table", "hog", "PL", "mae", 0.1)`:                               `cannot use`,
		`clearly(v("table", "hog", "PL", "mae"), v("table", "hog", 1))`:     `not enough arguments`,
		`count(datasets("table"), lower(v("table", #, "x", "mae"), 1)) > 0`: `no method "x"`,
	} {
		if _, err := r.condition(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestFill(t *testing.T) {
	r := example()
	for text, want := range map[string]string{
		`PL ${v("table", "hog", "PL", "mae")}, ridge ${v("table", "hog", "ridge", "mae")}.`: "PL 1.1 (1-1.2), ridge 2.5.",
		`${v("table", "hog", "PL", "mae"); %.2f} kW`:                                        "1.10 (1.00-1.20) kW",
		`${100*mean(v("table", "hog", "PL", "mae"))/3; %.0f} %`:                             "37 %",
		`${best("table", "hog", "mae", ["FL", "PL"])} of ${methods("table")}`:               "PL of FL, PL, noisy, lost, grid",
		`${v("table", "hog", "lost", "mae")}`:                                               "undefined",
		`${1 < 2} and ${12345678}`:                                                          "yes and 12345678",
		`${map(datasets("table"), {mean(v("table", #, "PL", "mae"))})}`:                     "1.1",
		`no expressions`: "no expressions",
	} {
		if got, err := r.fill(text); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{`${nothing}`, `${1 +}`, `${`, `${v("table"}`} {
		if got, err := r.fill(text); err == nil {
			t.Errorf("%s became %q", text, got)
		}
	}
}

func TestJudge(t *testing.T) {
	r := example()
	for _, c := range []struct {
		claim claim
		want  report.Verdict
		wrong string
	}{
		{claim{Holds: "1 < 2", Partly: "false"}, report.Holds, ""},
		{claim{Holds: "1 > 2", Partly: "true"}, report.HoldsPartly, ""},
		{claim{Holds: "1 > 2", Partly: "false", RuledOut: "the seed"}, report.DoesNotHold, ""},
		{claim{Holds: "1 > 2", RuledOut: "the seed"}, report.DoesNotHold, ""},
		{claim{Holds: "1 < 2", Untested: "true", Why: "no data"}, report.NotTested, ""},
		{claim{Holds: "1 < 2", Untested: "false"}, report.Holds, ""},
		{claim{Why: "no data"}, report.NotTested, ""},
		{claim{}, "", "why is empty"},
		{claim{Holds: "1 < 2", Untested: "true"}, "", "why is empty"},
		{claim{Holds: "1 > 2"}, "", "ruled_out is empty"},
		{claim{Holds: "1 < 2", Partly: "flase"}, "", "partly: unknown name flase"},
		{claim{Holds: "1 < 2", Figures: "${x}"}, "", "figures"},
	} {
		got, err := r.judge(c.claim)
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%+v: %v, want %q", c.claim, err, c.wrong)
			}
		} else if err != nil || got.verdict != c.want {
			t.Errorf("%+v: %q, %v", c.claim, got.verdict, err)
		}
	}
}

func TestGrid(t *testing.T) {
	r := &rules{}
	for _, y := range []string{"1", "2"} {
		for _, x := range []string{"a", "b"} {
			f := map[string]experiment.Figure{"mae": {3, 5}, "diverged": {0, 0}}
			switch y + x {
			case "2a":
				f = map[string]experiment.Figure{"diverged": {1, 1}} // both runs failed
			case "2b":
				f["mae"] = experiment.Figure{1, math.NaN()} // one did
			case "1b":
				f["mae"] = experiment.Figure{6}
			}
			r.results = append(r.results, experiment.Result{Part: "map", Dataset: "hog", Method: "FL", At: []string{y, x}, Figures: f})
		}
	}
	got, err := r.grid("map", "hog", "FL", "mae")
	if err != nil {
		t.Fatal(err)
	}
	if s, err := r.condition(`grid("map", "hog", "FL", "mae")[0] == [4.0, 6.0] and count(flatten(grid("map", "hog", "FL", "mae")), # < 1e9) == 2`); err != nil || !s {
		t.Errorf("grid is %v, %v", got, err)
	}
	for _, wrong := range []string{`grid("maps", "hog", "FL", "mae")`, `grid("map", "hog", "PL", "mae")`} {
		if _, err := r.evaluate(wrong); err == nil {
			t.Errorf("%s has no error", wrong)
		}
	}
}

// TestLongExpression checks that an expression whose loops would take hours ends with an error.
func TestLongExpression(t *testing.T) {
	usual := evaluateFor
	t.Cleanup(func() { evaluateFor = usual })
	evaluateFor = time.Millisecond
	r := &rules{}
	// The evaluation continues for about a second after the error, and then ends.
	if v, err := r.evaluate("let r = 1..3000; count(r, count(r, true) > 0)"); err == nil || !strings.Contains(err.Error(), "takes longer") {
		t.Errorf("%v, %v", v, err)
	}
	evaluateFor = usual
	if v, err := r.evaluate("count(1..10, # > 5)"); err != nil || v != 5 {
		t.Errorf("%v, %v", v, err)
	}
}
