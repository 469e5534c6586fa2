package main

import (
	"fmt"
	"strings"
	"testing"
)

// TestComplete checks that every entry of the reviews, and every lie in a private run, has an
// attack or a reason why it has none.
func TestComplete(t *testing.T) {
	known := map[string]bool{}
	for id := range unattempted {
		known[id] = true
	}
	seen := map[string]bool{}
	for _, a := range attacks() {
		if seen[a.ID] || a.Run == nil || a.Name == "" {
			t.Errorf("attack %s is there twice or has no function or name", a.ID)
		}
		seen[a.ID] = true
		known[strings.TrimRight(a.ID, "abcdefg")] = true
	}
	for _, class := range []struct {
		letter  string
		entries int
	}{{"C", 3}, {"H", 11}, {"M", 12}, {"L", 4}, {"S", 11}, {"SL", 9}, {"N", 5}, {"P", 11}} {
		for i := range class.entries {
			id := fmt.Sprintf("%s%d", class.letter, i+1)
			if !known[id] && id != "H11" { // the attack was on the queue, which no longer exists
				t.Errorf("no attack carries out %s", id)
			}
		}
	}
}

// TestReconstruct checks that the quotients of a layer's changes are the example if the layer
// is trained on one example, and that they have no common values if it is trained on two.
func TestReconstruct(t *testing.T) {
	const n = spyGates*(spyInputs+spyHidden) + 2*spyGates
	trained := func(examples ...float64) []float32 {
		w := make([]float32, n)
		for g := range spyGates {
			for k, x := range examples {
				d := 0.01 * float64((g*(k+3))%7-3) // the gate's error at this example
				for i := range spyInputs {
					w[g*spyInputs+i] += float32(d * x * float64(i+1))
				}
				w[spyGates*(spyInputs+spyHidden)+g] += float32(d)
			}
		}
		return w
	}
	example, gates := reconstruct(make([]float32, n), trained(0.25), spyLayer)
	if gates < spyGates/2 || !alike(example, []float64{0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2}) {
		t.Errorf("one example: %d gates agree on %v", gates, example)
	}
	if example, gates := reconstruct(make([]float32, n), trained(0.25, 0.7), spyLayer); gates > spyGates/2 {
		t.Errorf("two examples: %d gates agree on %v", gates, example)
	}
}

// TestVerdict checks that an attack succeeds if it makes the server turn callers away every
// other time, but not if answers are slow only twice, as on a busy machine.
func TestVerdict(t *testing.T) {
	for outcomes, want := range map[string]bool{"rr": true, "hh": false, "hrh": false, "rhh": false, "hrr": true, "rhr": true, "sss": false, "ssr": true, "srr": true, "shs": false, "ssh": false, "hsr": true} {
		var all []Result
		for i, o := range outcomes {
			if i > 0 && decided(all) {
				t.Errorf("%s is decided after %d attempts", outcomes, i)
			}
			all = append(all, Result{Repelled: o == 'r', Slow: o == 's'})
		}
		if got := verdict(all).Repelled; got != want || !decided(all) {
			t.Errorf("%s: repelled %t, want %t", outcomes, got, want)
		}
	}
}
