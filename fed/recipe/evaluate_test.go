package recipe

import "testing"

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
