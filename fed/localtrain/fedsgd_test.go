package localtrain

import (
	"strings"
	"testing"

	"loadstar/fed"
)

func TestGradient(t *testing.T) {
	d := &Gradient{Batch: 2, Optimizer: sgd(t, 0.25)}
	// Targets 1, 3 and 8 in batches of 2: the gradient at 0 is -(1+3+8)/3 = -4, whereas
	// the mean over batches would be -(2+8)/2 = -5. Shared weights move by 4, the
	// personal one by 0.25·4. Loss: 2·(1 + 9 + 64)/2/3 = 74/3.
	tr := turn(d, []float32{0, 0}, fed.Span{Lo: 0, Hi: 1})
	got := train(t, d, same(2, 1, 3, 8), tr)
	check(t, "weights", tr.W, 4, 1)
	if want := (fed.Trained{Steps: 2, Loss: 74. / 3}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}

	// The change is the negative gradient for any weights: -(6 - 4) = -2.
	tr = turn(d, []float32{6, 6}, fed.Span{Lo: 0, Hi: 1})
	train(t, d, same(2, 1, 3, 8), tr)
	check(t, "weights", tr.W, 4, 5.5)
}

func TestGradientUsesEachExampleOnce(t *testing.T) {
	d := &Gradient{Batch: 2, Optimizer: sgd(t, 0.25)}
	b := same(1, 1, 3, 8, 5, 7)
	b.record = true
	train(t, d, b, turn(d, []float32{0}))
	if !equal(b.batches, [][]int{{0, 1}, {2, 3}, {4}}) {
		t.Error(b.batches)
	}
}

func TestGradientWithoutBatch(t *testing.T) {
	d := &Gradient{Optimizer: sgd(t, 0.25)}
	if _, err := d.Train(t.Context(), same(1, 1), turn(d, []float32{0})); err == nil || !strings.Contains(err.Error(), "batch size is 0") {
		t.Error(err)
	}
}
