package client

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"loadstar/fed"
)

// distance returns a score that is lowest at the given weights.
func distance(to []float32) func(w []float32) (float64, error) {
	return func(w []float32) (float64, error) {
		sum := 0.0
		for i := range w {
			d := float64(w[i]) - float64(to[i])
			sum += d * d
		}
		return sum, nil
	}
}

// between returns the weights at fraction a of the way from x to y.
func between(x, y []float32, a float32) []float32 {
	z := slices.Clone(x)
	for i := range z {
		z[i] += a * (y[i] - z[i])
	}
	return z
}

// A tuner returns the candidate with the lowest score, whichever it is.
func TestTunerChooses(t *testing.T) {
	x := newFixture(t, small("fedavg", "partition: head, evaluate: {fine_tune: {steps: 4}}"), homes(t, 2))
	tuner := func(choose bool) *Tuner { return NewTuner(x.job, kernels(t), x.parts.NewTuner(kernels(t)), choose) }
	tune := func(n *Tuner, earlier [][]float32, score func([]float32) (float64, error)) []float32 {
		c, shared := x.client(0, x.initial)
		before := slices.Clone(c.Kept)
		w, err := n.Tune(t.Context(), c, fed.Task{Round: 9, Shared: shared}, earlier, score)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(c.Kept, before) {
			t.Error("the stored state has changed")
		}
		return slices.Clone(w)
	}
	after := tune(tuner(false), nil, func([]float32) (float64, error) { t.Error("scored without a choice"); return 0, nil })
	if slices.Equal(after, x.initial) {
		t.Fatal("fine-tuning changes nothing")
	}
	far := slices.Clone(x.initial)
	for i := range far {
		far[i] += 100
	}
	chooser := tuner(true)
	half := func() []float32 { tune(chooser, nil, distance(after)); return slices.Clone(chooser.half) }()
	if slices.Equal(half, after) || slices.Equal(half, x.initial) {
		t.Fatal("half of the steps are none or all steps")
	}
	for name, want := range map[string][]float32{
		"before": x.initial, "after": after, "half": half, "earlier": far,
		"quarter": between(x.initial, after, 0.25), "middle": between(x.initial, after, 0.5), "three quarters": between(x.initial, after, 0.75),
	} {
		if got := tune(chooser, [][]float32{far}, distance(want)); !slices.Equal(got, want) {
			t.Errorf("%s is not chosen", name)
		}
	}
	// If all scores are NaN, the weights after fine-tuning are chosen.
	nan := func([]float32) (float64, error) { return math.NaN(), nil }
	if !slices.Equal(tune(chooser, [][]float32{far}, nan), after) {
		t.Error("without a score, the weights after fine-tuning are not chosen")
	}
	fails := func([]float32) (float64, error) { return 0, fmt.Errorf("cannot score") }
	c, shared := x.client(0, x.initial)
	if _, err := chooser.Tune(t.Context(), c, fed.Task{Shared: shared}, nil, fails); err == nil {
		t.Error("no error")
	}
	if _, err := chooser.Tune(t.Context(), c, fed.Task{Shared: shared[1:]}, nil, nan); err == nil {
		t.Error("a shared vector of another length is accepted")
	}
	// Without fine-tuning, the choice is between the last weights and earlier ones.
	still := NewTuner(x.job, kernels(t), nil, true)
	for _, want := range [][]float32{x.initial, far} {
		if got := tune(still, [][]float32{far}, distance(want)); !slices.Equal(got, want) {
			t.Error("the wrong weights are chosen without fine-tuning")
		}
	}
}

// Moments that are kept between rounds continue in fine-tuning.
func TestTunerContinuesMoments(t *testing.T) {
	for _, moments := range []string{"reset", "kept", "averaged"} {
		plan := fmt.Sprintf("{algorithm: fedavg, model: {name: fekri2023, lookback: 4, targets: 2}, partition: head, "+
			"client: {batch: 8, steps: 2, moments: %s}, evaluate: {fine_tune: {steps: 2}}}", moments)
		x := newFixture(t, plan, homes(t, 2))
		c, shared := x.client(0, x.initial)
		u := x.train(t, c, x.task(0, shared))
		for i, d := range u.Delta {
			shared[i] += d
		}
		tuner := NewTuner(x.job, kernels(t), x.parts.NewTuner(kernels(t)), false)
		tuned, err := tuner.Tune(t.Context(), c, fed.Task{Round: 5, Version: 1, Shared: shared}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		tuned = slices.Clone(tuned)
		personal := slices.Clone(c.Kept[:x.problem.Partition.PersonalLen()])
		// An ordinary round of two steps from the same state takes the same steps.
		x.train(t, c, fed.Task{Round: 5, Version: 1, Shared: shared})
		if !slices.Equal(tuned, x.worker.Weights()) {
			t.Errorf("moments %s: fine-tuning differs from another round", moments)
		}
		// A client without moments takes different steps, unless they are reset.
		fresh, _ := x.client(0, x.initial)
		copy(fresh.Kept, personal)
		clear(shared[x.problem.Partition.SharedLen():])
		again, err := tuner.Tune(t.Context(), fresh, fed.Task{Round: 5, Version: 1, Shared: shared}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Equal(again, tuned) != (moments == "reset") {
			t.Errorf("moments %s: equal to fine-tuning without moments: %v", moments, moments != "reset")
		}
	}
}
