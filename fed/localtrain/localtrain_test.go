package localtrain

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"loadstar/fed"
	"loadstar/fed/clientopt"
	"loadstar/nn/kernel"
)

func kernels(t testing.TB) *kernel.Set {
	t.Helper()
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func sgd(t testing.TB, rate float64) *clientopt.SGD {
	return &clientopt.SGD{Kernel: kernels(t), Rate: clientopt.Rate{Base: rate}}
}

// bowl is the objective f(w; e) = Σ_i curve·(w_i - targets[e][i])²/2, so the gradient is
// curve·(w - mean target of the batch).
type bowl struct {
	curve   float32
	targets [][]float32

	record  bool
	batches [][]int                   // the batch of each gradient, if record is set
	taken   int                       // gradients
	spoil   func(g []float32) float64 // if set, may change a gradient; its result is added to the loss
}

// same returns a bowl with one example per target. In each example, all weights have the
// same target.
func same(weights int, targets ...float32) *bowl {
	b := &bowl{curve: 1}
	for _, x := range targets {
		b.targets = append(b.targets, slices.Repeat([]float32{x}, weights))
	}
	return b
}

func (b *bowl) Len() int { return len(b.targets) }

func (b *bowl) Gradient(g, w []float32, examples []int) float64 {
	b.taken++
	if b.record {
		b.batches = append(b.batches, slices.Clone(examples))
	}
	clear(g)
	for _, e := range examples {
		for i, c := range b.targets[e] {
			g[i] += b.curve * (w[i] - c) / float32(len(examples))
		}
	}
	loss := b.Loss(w, examples)
	if b.spoil != nil {
		loss += b.spoil(g)
	}
	return loss
}

func (b *bowl) Loss(w []float32, examples []int) float64 {
	sum := 0.0
	for _, e := range examples {
		for i, c := range b.targets[e] {
			d := float64(w[i] - c)
			sum += float64(b.curve) * d * d / 2
		}
	}
	return sum / float64(len(examples))
}

// turn returns a turn of a client with the weights w. The weights in the spans are shared
// and equal the received weights.
func turn(l fed.LocalTrainer, w []float32, shared ...fed.Span) *fed.Turn {
	t := &fed.Turn{W: slices.Clone(w), Shared: shared, First: true, Rand: draws(1)}
	for _, s := range shared {
		t.Task.Shared = append(t.Task.Shared, w[s.Lo:s.Hi]...)
	}
	n := len(t.Task.Shared)
	t.Task.Control, t.Control = make([]float32, n), make([]float32, n)
	t.Kept = make([]float32, l.Kept(len(w), n))
	return t
}

func train(t testing.TB, l fed.LocalTrainer, o fed.Objective, tr *fed.Turn) fed.Trained {
	t.Helper()
	got, err := l.Train(t.Context(), o, tr)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func check(t testing.TB, what string, got []float32, want ...float32) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// trainers returns a new instance of every trainer by name, including Descent with every
// kind of optimizer and work.
func trainers(t testing.TB) map[string]fed.LocalTrainer {
	k, rate := kernels(t), clientopt.Rate{Base: 0.125}
	work := Work{Batch: 3, Steps: 4}
	adam := &clientopt.Adam{Kernel: k, Rate: rate, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8}
	return map[string]fed.LocalTrainer{
		"sgd":       &Descent{Work: work, Optimizer: sgd(t, 0.125)},
		"one batch": &Descent{Work: Work{Batch: 3, Steps: 4, ResampleRound: true}, Optimizer: sgd(t, 0.125)},
		"epochs":    &Descent{Work: Work{Batch: 3, Epochs: 2}, Optimizer: sgd(t, 0.125)},
		"proxadam":  &Descent{Work: work, Optimizer: &clientopt.Prox{Kernel: k, Mu: 0.5, Inner: adam}},
		"amsgrad":   &Descent{Work: work, Optimizer: &clientopt.AMSGrad{Kernel: k, Rate: rate, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8}},
		"scaffold":  &Descent{Work: work, Optimizer: &clientopt.Scaffold{Kernel: k, Rate: rate}},
		"fedsgd":    &Gradient{Batch: 3, Optimizer: sgd(t, 0.125)},
		"perfedavg": &PerFedAvg{Work: work, Kernel: k, Inner: 0.25, Optimizer: sgd(t, 0.125)},
		"fedmeta":   &FedMeta{Work: work, Kernel: k, Inner: 0.25, Delta: 0.25, Optimizer: sgd(t, 0.125)},
		"pfedme":    &PFedMe{Work: work, Kernel: k, Lambda: 1, Inner: 0.25, InnerSteps: 3, Optimizer: sgd(t, 0.125)},
	}
}

// clients returns two clients with different data, for 3 weights.
func clients() [2]*bowl {
	a, b := same(3, 1, 2, 5, -3, 0.5, 4, 7), same(3, -100, 3, 1, 11)
	b.curve = 0.5
	return [2]*bowl{a, b}
}

var ends = []fed.Span{{Lo: 0, Hi: 1}, {Lo: 2, Hi: 3}} // the weight between them is personal

func TestNoStateBetweenTurns(t *testing.T) {
	fresh, data := trainers(t), clients()
	for name, worn := range trainers(t) {
		w := []float32{1, -2, 0.5}
		train(t, worn, data[1], turn(worn, []float32{9, 8, 7}, ends...))
		got, want := turn(worn, w, ends...), turn(worn, w, ends...)
		a, b := train(t, worn, data[0], got), train(t, fresh[name], data[0], want)
		if a != b || !sameBits(got.W, want.W) || !sameBits(got.Kept, want.Kept) || !sameBits(got.Control, want.Control) {
			t.Errorf("%s: %v %v after another client, %v %v without", name, a, got, b, want)
		}
	}
}

// An interrupted turn must not affect the next one.
func TestNoStateAfterError(t *testing.T) {
	fresh, data := trainers(t), clients()
	for name, worn := range trainers(t) {
		ctx, cancel := context.WithCancel(t.Context())
		b := same(3, 1, 2, 3, 4, 5, 6, 7)
		b.spoil = func([]float32) float64 { cancel(); return 0 }
		if _, err := worn.Train(ctx, b, turn(worn, []float32{9, 8, 7}, ends...)); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		got, want := turn(worn, []float32{1, -2, 0.5}, ends...), turn(worn, []float32{1, -2, 0.5}, ends...)
		train(t, worn, data[0], got)
		train(t, fresh[name], data[0], want)
		if !sameBits(got.W, want.W) || !sameBits(got.Kept, want.Kept) {
			t.Errorf("%s: %v after an error, %v without", name, got, want)
		}
	}
}

// The value and the targets of a personal weight must not affect any other result of a
// turn.
func TestPersonalWeightsAreIsolated(t *testing.T) {
	for name, l := range trainers(t) {
		var turns [2]*fed.Turn
		for i, target := range []float32{3, -50} {
			b := same(3, 1, 2, 5, -3, 0.5, 4, 7)
			for _, x := range b.targets {
				x[1] += target
			}
			tr := turn(l, []float32{1, target, 3}, ends...)
			train(t, l, b, tr)
			if tr.W[1] == target {
				t.Errorf("%s does not train the personal weight", name)
			}
			check(t, name+": received", tr.Task.Shared, 1, 3)
			check(t, name+": received control", tr.Task.Control, 0, 0)
			turns[i] = tr
		}
		a, b := turns[0], turns[1]
		if a.W[0] != b.W[0] || a.W[2] != b.W[2] || !sameBits(a.Control, b.Control) || !sameBits(a.Kept, b.Kept) {
			t.Errorf("%s: %v and %v differ in more than the personal weight", name, a, b)
		}
		if a.W[0] == 1 || a.W[2] == 3 {
			t.Errorf("%s does not train the shared weights", name)
		}
	}
}

// Every trainer works even if no layer is shared.
func TestAllPersonal(t *testing.T) {
	for name, l := range trainers(t) {
		b := same(2, 4, 4, 4, 4)
		tr := turn(l, []float32{0, 0})
		train(t, l, b, tr)
		if !(tr.W[0] > 0 && tr.W[0] < 8 && tr.W[1] == tr.W[0]) {
			t.Errorf("%s: weights %v, want values between 0 and 4", name, tr.W)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	data := clients()
	for name, l := range trainers(t) {
		tr := turn(l, []float32{1, 2, 3}, ends...)
		ctx := t.Context()
		once := func() {
			for i := range data {
				if _, err := l.Train(ctx, data[i], tr); err != nil {
					t.Fatal(err)
				}
			}
		}
		once()
		if n := testing.AllocsPerRun(10, once); n != 0 {
			t.Errorf("%s allocates %v times in two turns", name, n)
		}
	}
}

// Trainers count every gradient, and no batch is larger than the batch size of the plan.
func TestGradientsAreCounted(t *testing.T) {
	want := map[string]int{
		"sgd": 4, "one batch": 4, "proxadam": 4, "amsgrad": 4, "scaffold": 4,
		"epochs": 6, "fedsgd": 3, // 7 examples are 3 + 3 + 1
		"perfedavg": 8, "fedmeta": 16, "pfedme": 12,
	}
	for name, l := range trainers(t) {
		b := same(1, 1, 2, 3, 4, 5, 6, 7)
		b.record = true
		got := train(t, l, b, turn(l, []float32{0}, fed.Span{Lo: 0, Hi: 1}))
		if got.Steps != want[name] || b.taken != want[name] {
			t.Errorf("%s: %d steps, %d gradients, want %d", name, got.Steps, b.taken, want[name])
		}
		for _, x := range b.batches {
			if len(x) > 3 {
				t.Errorf("%s: a batch of %d", name, len(x))
			}
		}
	}
}

func TestNoExamples(t *testing.T) {
	for name, l := range trainers(t) {
		if _, err := l.Train(t.Context(), same(1), turn(l, []float32{0})); err == nil || !strings.Contains(err.Error(), "no training examples") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLossNotFinite(t *testing.T) {
	for name, l := range trainers(t) {
		for _, bad := range []float64{math.NaN(), math.Inf(1)} {
			b := same(1, 1, 2, 3, 4, 5, 6, 7)
			b.spoil = func([]float32) float64 {
				if b.taken == 3 {
					return bad
				}
				return 0
			}
			_, err := l.Train(t.Context(), b, turn(l, []float32{0}, fed.Span{Lo: 0, Hi: 1}))
			if err == nil || !strings.Contains(err.Error(), "at step 3") || b.taken != 3 {
				t.Errorf("%s: %v after %d gradients", name, err, b.taken)
			}
		}
	}
}

// A weight that overflows is an error, even if the loss is still finite, and even in the last
// step.
func TestWeightNotFinite(t *testing.T) {
	for name, l := range trainers(t) {
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(-1))} {
			for _, last := range []bool{false, true} {
				total := 0
				for pass := range 2 { // the first pass counts the gradients
					b := same(2, 1, 2, 3, 4, 5, 6, 7)
					b.spoil = func(g []float32) float64 {
						if pass == 1 && (b.taken == total || !last) {
							g[0] = bad
						}
						return 0
					}
					blind := &sturdy{b}
					_, err := l.Train(t.Context(), blind, turn(l, []float32{0, 0}, fed.Span{Lo: 1, Hi: 2}))
					total = b.taken
					if pass == 1 && (err == nil || !strings.Contains(err.Error(), "weight 0 is")) {
						t.Errorf("%s with %v: %v", name, bad, err)
					}
				}
			}
		}
	}
}

// sturdy is a bowl whose loss is always 1, so it stays finite when weights overflow.
type sturdy struct{ *bowl }

func (s *sturdy) Gradient(g, w []float32, examples []int) float64 {
	s.bowl.Gradient(g, w, examples)
	return 1
}

func TestCancelled(t *testing.T) {
	for name, l := range trainers(t) {
		for after := range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			b := same(1, 1, 2, 3, 4, 5, 6, 7)
			b.spoil = func([]float32) float64 {
				if b.taken == after {
					cancel()
				}
				return 0
			}
			if after == 0 {
				cancel()
			}
			_, err := l.Train(ctx, b, turn(l, []float32{0}, fed.Span{Lo: 0, Hi: 1}))
			if !errors.Is(err, context.Canceled) || b.taken != after {
				t.Errorf("%s cancelled after %d: %v after %d", name, after, err, b.taken)
			}
			cancel()
		}
	}
}
