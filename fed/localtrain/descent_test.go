package localtrain

import (
	"math"
	"strings"
	"testing"

	"loadstar/fed"
	"loadstar/fed/clientopt"
)

func TestDescent(t *testing.T) {
	d := &Descent{Work: Work{Batch: 2, Steps: 2}, Optimizer: sgd(t, 0.5)}
	// Targets 1 and 3, in one batch: the gradient is w - 2.
	//   shared   0 -> 0 + 2/2 = 1 -> 1 + 1/2 = 1.5
	//   personal 4 -> 4 - 2/2 = 3 -> 3 - 1/2 = 2.5
	// Losses (half the squared distances to 1 and to 3, averaged):
	//   at 0, 4: (1 + 9)/4 + (9 + 1)/4 = 5;  at 1, 3: (0 + 4)/4 + (4 + 0)/4 = 2
	tr := turn(d, []float32{4, 0}, fed.Span{Lo: 1, Hi: 2})
	got := train(t, d, same(2, 1, 3), tr)
	check(t, "weights", tr.W, 2.5, 1.5)
	if want := (fed.Trained{Steps: 2, Loss: 3.5}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestDescentByEpochs(t *testing.T) {
	d := &Descent{Work: Work{Batch: 1, Epochs: 1}, Optimizer: sgd(t, 1)}
	b := same(1, 1, 3, 8)
	b.record = true
	tr := turn(d, []float32{0}, fed.Span{Lo: 0, Hi: 1})
	train(t, d, b, tr)
	// With a rate of 1 each step moves the weight to the target of its example, so the
	// weight ends at the target of the last example.
	last := b.batches[2][0]
	check(t, "weights", tr.W, b.targets[last][0])
}

// One client has its optimum at -1 and takes 1 step per round. Another client has its optimum
// at +1 and takes 10. The joint optimum is 0. FedAvg converges to the fixed point of
//
//	w = ((w+1)·0.9 - 1 + (w-1)·0.9¹⁰ + 1)/2, which is (0.9 - 0.9¹⁰)/(2 - 0.9 - 0.9¹⁰) = 0.734
//
// which is near the optimum of the client that takes more steps. SCAFFOLD corrects this drift.
func TestScaffoldCorrectsDrift(t *testing.T) {
	rate := clientopt.Rate{Base: 0.1}
	run := func(optimizer func() fed.ClientOptimizer) float64 {
		var descents [2]*Descent
		var kept [2][]float32
		for i := range descents {
			descents[i] = &Descent{Work: Work{Batch: 1, Steps: 1 + 9*i}, Optimizer: optimizer()}
			kept[i] = make([]float32, descents[i].Kept(1, 1))
		}
		shared, control := 0.3, 0.0
		for round := range 400 {
			var delta, change float64
			for i, d := range descents {
				tr := turn(d, []float32{float32(shared)}, fed.Span{Lo: 0, Hi: 1})
				tr.First, tr.Kept = round == 0, kept[i]
				tr.Task.Control[0] = float32(control)
				train(t, d, same(1, float32(2*i-1)), tr)
				delta += float64(tr.W[0]) - float64(tr.Task.Shared[0])
				change += float64(tr.Control[0])
			}
			shared += delta / 2
			control += change / 2
		}
		return shared
	}
	avg := run(func() fed.ClientOptimizer { return sgd(t, 0.1) })
	far := math.Pow(0.9, 10)
	if want := (0.9 - far) / (1.1 - far); math.Abs(avg-want) > 1e-3 {
		t.Errorf("FedAvg settles at %v, want %v", avg, want)
	}
	scaffold := run(func() fed.ClientOptimizer { return &clientopt.Scaffold{Kernel: kernels(t), Rate: rate} })
	if math.Abs(scaffold) > 1e-3 {
		t.Errorf("SCAFFOLD settles at %v, want 0", scaffold)
	}
}

// With a gradient of 3e38 and a control variate of -3e38, all weights are finite, but the
// change of the control variate is not.
func TestControlNotFinite(t *testing.T) {
	d := &Descent{
		Work:      Work{Batch: 1, Steps: 1},
		Optimizer: &clientopt.Scaffold{Kernel: kernels(t), Rate: clientopt.Rate{Base: 2e-38}},
	}
	tr := turn(d, []float32{0}, fed.Span{Lo: 0, Hi: 1})
	tr.First = false
	tr.Kept[0], tr.Task.Control[0] = -3e38, -3e38
	if _, err := d.Train(t.Context(), same(1, -3e38), tr); err == nil || !strings.Contains(err.Error(), "control variate 0 is +Inf after step 1") {
		t.Error(err, tr)
	}
}

// Kept is stored after the round, so a failed round must not write NaNs to it.
func TestErrorDoesNotChangeKept(t *testing.T) {
	d := &Descent{
		Work:      Work{Batch: 1, Steps: 1},
		Optimizer: &clientopt.Scaffold{Kernel: kernels(t), Rate: clientopt.Rate{Base: 0.1}},
	}
	b := same(1, 1)
	b.spoil = func(g []float32) float64 { g[0] = float32(math.NaN()); return 0 }
	tr := turn(d, []float32{0}, fed.Span{Lo: 0, Hi: 1})
	tr.First = false
	tr.Kept[0] = 0.5
	if _, err := d.Train(t.Context(), b, tr); err == nil {
		t.Error("no error")
	}
	check(t, "kept", tr.Kept, 0.5)
}
