package run

import (
	"bytes"
	"math"
	"strings"
	"testing"
)

func TestCourse(t *testing.T) {
	rounds := make([]Round, 40)
	for i := range rounds {
		rounds[i] = Round{Round: i, Loss: float64(40 - i)}
	}
	rounds[0].Loss = math.NaN() // no client responded
	for _, c := range []struct {
		losses   []float64
		rose     float64
		diverged bool
	}{
		{nil, math.NaN(), false},
		{[]float64{4, 2, 1}, 1, false},
		{[]float64{4, 1, 9.9}, 9.9, false},
		{[]float64{4, 1, 10}, 10, true},
		{[]float64{4, 1, 10, 2}, 2, false},
		{[]float64{4, math.NaN(), 2}, 1, false},
		{[]float64{4, 1, math.NaN()}, math.NaN(), true},
		{[]float64{4, 1, math.Inf(1)}, math.NaN(), true},
		{[]float64{0, 0}, math.NaN(), false},
	} {
		var rows []Evaluation
		for i, l := range c.losses {
			rows = append(rows, Evaluation{Round: 10 * i, Loss: l / 2}, Evaluation{Round: 10 * i, Loss: 3 * l / 2})
		}
		got := course(rounds, Losses(rows))
		if rose := float64(got.Rose); got.Diverged != c.diverged || !(math.Abs(rose-c.rose) < 1e-12) && !(math.IsNaN(rose) && math.IsNaN(c.rose)) {
			t.Errorf("%v: %+v", c.losses, got)
		}
		if got.TrainFirst != 39 || got.TrainLast != (4+3+2+1)/4.0 {
			t.Errorf("training losses %v and %v", got.TrainFirst, got.TrainLast)
		}
		var out bytes.Buffer
		got.print(&out)
		if strings.HasPrefix(out.String(), "DIVERGED") != c.diverged {
			t.Errorf("%v: printed %q", c.losses, out.String())
		}
	}
}
