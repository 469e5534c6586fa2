package sim

import (
	"bytes"
	"testing"
	"time"

	"loadstar/fed/recipe"
	"loadstar/series"
)

// TestUpgradePlan checks that the plan of an older version, which has no reference, becomes the
// plan that a user must give to resume the run.
func TestUpgradePlan(t *testing.T) {
	hourly := Config{Dataset: &series.Dataset{Interval: time.Hour}}
	for _, c := range []struct{ model, reference string }{
		{"{horizon: 1}", "auto"}, {"{horizon: 4}", "last-value"}, {"{targets: 2}", "last-value"},
	} {
		p, err := recipe.Read([]byte("algorithm: fedavg\nmodel: " + c.model + "\nevaluate: {reference: " + c.reference + "}"))
		if err != nil {
			t.Fatal(err)
		}
		if p, err = recipe.Resolve(p, time.Hour); err != nil {
			t.Fatal(err)
		}
		want, err := recipe.Write(p)
		if err != nil {
			t.Fatal(err)
		}
		old := bytes.Replace(want, []byte("  reference: "+c.reference+"\n"), nil, 1)
		old = bytes.Replace(old, []byte("  interval: 1h\n"), nil, 1)
		old = bytes.Replace(old, []byte("  correct: false\n"), nil, 1)
		if len(old) >= len(want)-len("  correct: false\n") {
			t.Fatalf("the plan has no reference or blend:\n%s", want)
		}
		for _, from := range [][]byte{old, want} {
			if got, err := hourly.upgradePlan(from); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s:\n%s%v, want\n%s", c.model, got, err, want)
			}
		}
	}
	if _, err := hourly.upgradePlan([]byte("algorithm: none")); err == nil {
		t.Error("a plan with an unknown algorithm is accepted")
	}
}
