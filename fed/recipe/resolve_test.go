package recipe

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"loadstar/fed"
)

func TestResolve(t *testing.T) {
	const day = "algorithm: fedavg\nmodel: {name: dense, targets: 24h}\n"
	const windows = "algorithm: fedavg\nmodel: {name: bose2023, lookback: 12h, horizon: 30m, targets: 2}\n"
	for _, c := range []struct {
		plan                               string
		step                               time.Duration
		lookback, horizon, targets, stride int
		wrong                              string
	}{
		{plan: day, step: time.Hour, lookback: 168, horizon: 1, targets: 24, stride: 6},
		{plan: day, step: 30 * time.Minute, lookback: 336, horizon: 1, targets: 48, stride: 12},
		{plan: day, step: 15 * time.Minute, lookback: 672, horizon: 1, targets: 96, stride: 24},
		{plan: day, step: 7 * time.Minute, wrong: "model.targets 24h is not a multiple of the data's step of 7m"},
		{plan: windows, step: 30 * time.Minute, lookback: 24, horizon: 1, targets: 2},
		{plan: windows, step: 15 * time.Minute, lookback: 48, horizon: 2, targets: 2},
		{plan: windows, step: time.Hour, wrong: "model.horizon 30m is not a multiple of the data's step of 1h"},
		{plan: "algorithm: fedavg\nmodel: {name: dense, targets: 1h}\n", step: time.Hour, lookback: 168, horizon: 1, targets: 1, stride: 1},
		{plan: "algorithm: fedavg\nmodel: {name: dense, targets: 1h}\n", step: 15 * time.Minute, lookback: 672, horizon: 1, targets: 4, stride: 1},
		{plan: "algorithm: fedavg\nmodel: {name: dense, targets: 24}\n", step: 15 * time.Minute, lookback: 672, horizon: 1, targets: 24, stride: 6},
		{plan: "algorithm: fedavg\nmodel: {name: dense, interval: 1h}\n", step: 15 * time.Minute, wrong: "model.interval is 1h, but the readings are 15m apart"},
	} {
		p, err := Read([]byte(c.plan))
		if err != nil {
			t.Fatal(err)
		}
		before := *p
		q, err := Resolve(p, c.step)
		switch {
		case !reflect.DeepEqual(before, *p):
			t.Errorf("%s at %s: the plan was changed", c.plan, c.step)
		case c.wrong != "":
			if err == nil || err.Error() != c.wrong {
				t.Errorf("%s at %s: %v, want %s", c.plan, c.step, err, c.wrong)
			}
			continue
		case err != nil:
			t.Errorf("%s at %s: %v", c.plan, c.step, err)
			continue
		}
		if got, want := [4]int{q.Model.Lookback.Steps(), q.Model.Horizon.Steps(), q.Model.Targets.Steps(), q.Evaluate.Stride.Steps()}, [4]int{c.lookback, c.horizon, c.targets, c.stride}; got != want || time.Duration(q.Model.Interval) != c.step {
			t.Errorf("%s at %s: steps %v every %s, want %v", c.plan, c.step, got, q.Model.Interval, want)
		}
		// A resolved plan does not change when it is written, read and resolved again.
		text, err := Write(q)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Read(text)
		if err != nil {
			t.Fatalf("%s\n%v", text, err)
		}
		if twice, err := Resolve(again, c.step); err != nil || !reflect.DeepEqual(again, q) || !reflect.DeepEqual(twice, q) {
			t.Errorf("%s\nis read back as %+v, %v", text, again, err)
		}
	}
}

// On hourly data, a resolved plan trains in the same way as the plan with its spans in steps.
func TestResolvedIsSteps(t *testing.T) {
	for _, c := range [][2]string{{"targets: 24h", "targets: 24"}, {"targets: 1h", "targets: 1"}, {"targets: 48h, horizon: 2h", "targets: 48, horizon: 2"}} {
		var both [2]*fed.Plan
		for i, model := range c {
			p, err := Read([]byte("algorithm: fedavg\nmodel: {name: dense, " + model + "}"))
			if err != nil {
				t.Fatal(err)
			}
			if both[i], err = Resolve(p, time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		if !reflect.DeepEqual(both[0], both[1]) {
			t.Errorf("%s: %+v\n%s: %+v", c[0], both[0], c[1], both[1])
		}
	}
}

// Without data, Assume uses an hour, or a shorter step that divides all durations.
func TestAssume(t *testing.T) {
	for model, want := range map[string]time.Duration{
		"targets: 24":                 time.Hour,
		"targets: 24h":                time.Hour,
		"targets: 30m":                30 * time.Minute,
		"targets: 90m, horizon: 20m":  10 * time.Minute,
		"targets: 24h, interval: 15m": 15 * time.Minute,
	} {
		p, err := Read([]byte("algorithm: fedavg\nmodel: {name: dense, " + model + "}"))
		if err != nil {
			t.Fatal(err)
		}
		if q, err := Assume(p); err != nil || time.Duration(q.Model.Interval) != want {
			t.Errorf("%s: %+v, %v", model, q, err)
		}
	}
	for model, want := range map[string]string{
		"targets: 24x":                "neither a number of steps nor a duration",
		"targets: 90s":                "a duration of whole minutes",
		"targets: -1h":                "a duration of whole minutes",
		"targets: 0":                  "model.targets is 0; it must be at least 1",
		"targets: 169h":               "model.targets is 10140; with rows of features",
		"lookback: 24h":               "model.lookback is 24h; with model dense it must be 168h",
		"targets: 1h, interval: 45m":  "model.targets 1h is not a multiple of the data's step of 45m",
		"targets: 24h, lookback: 672": "model.lookback is 672; with model dense it must be 168h",
	} {
		if _, err := Read([]byte("algorithm: fedavg\nmodel: {name: dense, " + model + "}")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", model, err, want)
		}
	}
}

func TestCountsSteps(t *testing.T) {
	for _, c := range []struct {
		model string
		step  time.Duration
		want  string
	}{
		{"targets: 24", 15 * time.Minute, "day-ahead counts 24 steps, which are 6 hours of this data; write targets: 24h for a day"},
		{"targets: 48", 30 * time.Minute, "day-ahead counts 48 steps, which are 24 hours of this data; write targets: 48h for 48 hours"},
		{"targets: 2", 15 * time.Minute, "day-ahead counts 2 steps, which are 30 minutes of this data; write targets: 2h for 2 hours"},
		{"targets: 24", time.Hour, ""},
		{"targets: 24h", 15 * time.Minute, ""},
		{"targets: 1", 15 * time.Minute, ""},
		{"targets: 24, interval: 15m", 15 * time.Minute, ""},
	} {
		p, err := Read([]byte("name: day-ahead\nalgorithm: fedavg\nmodel: {name: dense, " + c.model + "}"))
		if err != nil {
			t.Fatal(err)
		}
		if got := CountsSteps(p, c.step); got != c.want {
			t.Errorf("%s at %s: %q, want %q", c.model, c.step, got, c.want)
		}
	}
}
