package recipe

import (
	"strings"
	"testing"
)

// TestBlendDefault checks that only the model dense blends forecasts by default.
func TestBlendDefault(t *testing.T) {
	for text, want := range map[string]bool{
		"algorithm: fedavg":                                                     false,
		"algorithm: fedavg\nmodel: {name: dense}":                               true,
		"algorithm: local\nmodel: {name: dense, targets: 24}":                   true,
		"algorithm: fedavg\nmodel: {name: dense}\nevaluate: {correct: false}":   false,
		"algorithm: fedavg\nmodel: {name: bose2024}\nevaluate: {correct: true}": true,
	} {
		p, err := Read([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if p.Evaluate.Correct != want || p.Evaluate.Reference != "auto" {
			t.Errorf("%s: blend %t, reference %s", text, p.Evaluate.Correct, p.Evaluate.Reference)
		}
	}
}

// TestKeepBestImpliesChoose checks that a plan with keep best also sets choose in its written
// form, and that a plan with keep last does not.
func TestKeepBestImpliesChoose(t *testing.T) {
	for text, want := range map[string]string{
		"algorithm: fedavg\nevaluate: {keep: best}":                                            "validation",
		"algorithm: pooled\nevaluate: {keep: best}":                                            "validation",
		"algorithm: fedavg\nevaluate: {keep: best, fine_tune: {steps: 2}}":                     "validation",
		"algorithm: fedavg\nevaluate: {keep: best, fine_tune: {choose: validation}}":           "validation",
		"algorithm: fedavg\nmodel: {name: dense}\nevaluate: {keep: best}":                      "validation",
		"algorithm: fedavg\nevaluate: {keep: last, fine_tune: {steps: 2}}":                     "last",
		"algorithm: fedavg\nevaluate: {fine_tune: {steps: 2}}":                                 "last",
		"algorithm: fedavg\nevaluate: {keep: last, fine_tune: {steps: 2, choose: validation}}": "validation",
	} {
		p, err := Read([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if p.Evaluate.FineTune.Choose != want {
			t.Errorf("%s: choose %s, want %s", text, p.Evaluate.FineTune.Choose, want)
		}
		written, err := Write(p)
		if err != nil {
			t.Fatal(err)
		}
		if says := strings.Contains(string(written), "choose: validation"); says != (want == "validation") {
			t.Errorf("%s: the written plan has choose: validation: %t\n%s", text, says, written)
		}
	}
}
