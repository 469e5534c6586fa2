package round

import (
	"math"
	"testing"

	"loadstar/fed"
	"loadstar/fed/exact"
	"loadstar/fed/recipe"
)

// TestControlWeights computes SCAFFOLD's merge of three updates directly. In reddi2021's
// algorithm 6, the clients' shares of the examples weight the changes of both the weights and
// the control variate. With uniform weighting, they weight neither.
func TestControlWeights(t *testing.T) {
	const fleet, n = 10, 3
	updates := []fed.Update{
		{Client: "a", Examples: 100, Delta: []float32{0.5, -1, 0}, Control: []float32{3, 0.25, -7}},
		{Client: "b", Examples: 300, Delta: []float32{0.25, 2, 1}, Control: []float32{-1, 100, 0.5}},
		{Client: "c", Examples: 700, Delta: []float32{-1, 1, 3}, Control: []float32{2, -3, 1e-3}},
	}
	for _, weighting := range []string{"examples", "uniform"} {
		p, err := recipe.Read([]byte("{algorithm: scaffold, server: {weighting: " + weighting + "}, schedule: {cohort: 3}}"))
		if err != nil {
			t.Fatal(err)
		}
		parts, err := recipe.Compose(p, fleet)
		if err != nil {
			t.Fatal(err)
		}
		rules := Rules{Needs: parts.Needs, Scale: parts.Scale, Control: parts.Control, Weight: parts.Weight, WeightControl: parts.WeightControl}
		s := NewServer(parts.NewAggregator(), parts.NewOptimizer(), fleet, make([]float32, n))
		f := NewFold(rules)
		for i := range updates {
			if err := f.Add(&updates[i], s.Shared()); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Merge(0, f, nil); err != nil {
			t.Fatal(err)
		}
		task := s.Task(1)
		for j := range n {
			var dx, dc, sum float64
			for _, u := range updates {
				w := 1.0
				if weighting == "examples" {
					w = float64(u.Examples)
				}
				dx, dc, sum = dx+w*float64(u.Delta[j]), dc+w*float64(u.Control[j]), sum+w
			}
			dx, dc = dx/sum, 3.0/fleet*dc/sum
			if math.Abs(float64(task.Shared[j])-dx) > 1e-6 || math.Abs(float64(task.Control[j])-dc) > 1e-6*max(1, math.Abs(dc)) {
				t.Errorf("%s, weight %d: %v and control variate %v, want %v and %v", weighting, j, task.Shared[j], task.Control[j], dx, dc)
			}
		}
	}
}

// TestControlWeightsOfSums checks that a sum is rejected if its control variates do not have
// the weights that the plan requires, and is counted if they do.
func TestControlWeightsOfSums(t *testing.T) {
	scale, err := exact.NewScale(8, 100, 4)
	if err != nil {
		t.Fatal(err)
	}
	rules := func(weighted bool) Rules {
		return Rules{Needs: fed.Needs{Control: true}, Scale: scale, Control: scale, Weight: func(n int) int64 { return int64(n) }, WeightControl: weighted}
	}
	sent := func(r Rules) []byte {
		f := NewFold(r)
		u := fed.Update{Client: "a", Examples: 5, Delta: []float32{1}, Control: []float32{2}}
		if err := f.Add(&u, []float32{0}); err != nil {
			t.Fatal(err)
		}
		b, err := AppendSums(nil, &f.Sums()[0])
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, mine := range []bool{false, true} {
		for _, theirs := range []bool{false, true} {
			f := NewFold(rules(mine))
			_, _, err := f.AddSums(0, 1, sent(rules(theirs)))
			if (err == nil) != (mine == theirs) || f.Len() != map[bool]int{true: 1}[mine == theirs] {
				t.Errorf("weighted %t, sent weighted %t: %v, %d counted", mine, theirs, err, f.Len())
			}
		}
	}
}
