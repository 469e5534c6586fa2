package recipe

import (
	"strings"
	"testing"
)

// A plan may come from a stranger, so the width of a row of features has limits.
func TestRowLimits(t *testing.T) {
	for settings, want := range map[string]string{
		"interval: 1s":               "model.interval is 1s; it must be at least 1m0s",
		"interval: 1ns":              "model.interval is 1ns; it must be at least 1m0s",
		"interval: 1h, targets: 169": "model.targets is 169; with rows of features and model.horizon 1 it must be at most 168",
		"interval: 1h, horizon: 169": "model.horizon is 169; with rows of features it must be at most 168 hours, which is 168 steps",
		"targets: 10081":             "model.targets is 10081; with rows",
		"targets: 9223372036854775807, horizon: 9223372036854775807": "model.horizon is 9223372036854775807",
	} {
		if _, err := Read([]byte("algorithm: fedavg\nmodel: {name: dense, " + settings + "}")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", settings, err, want)
		}
	}
	for _, settings := range []string{"targets: 168", "interval: 30m, targets: 336", "interval: 1m, targets: 10080", "targets: 336"} {
		p, err := Read([]byte("algorithm: fedavg\nmodel: {name: dense, " + settings + "}"))
		if err != nil {
			t.Fatal(err)
		}
		// Without an interval, the plan may be intended for half-hourly readings.
		if _, err := Frame(p, nil); err != nil {
			t.Errorf("%s: %v", settings, err)
		}
	}
}
