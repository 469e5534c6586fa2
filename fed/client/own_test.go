package client

import (
	"slices"
	"testing"

	"loadstar/fed"
)

// TestBeginOwn compares a client that begins with its own shared weights with a reference in
// float64. The client continues from its last weights, the proximal term pulls it towards the
// received ones, and it sends the change of its weights. The test chooses the received weights
// of each round far from the client's.
func TestBeginOwn(t *testing.T) {
	const rounds, steps = 3, 2
	// A batch of all examples makes the steps independent of sampling.
	x := newFixture(t, "{algorithm: fedprox, model: {name: fekri2023, lookback: 4, targets: 2}, partition: head, "+
		"client: {batch: 4096, steps: 2, begin: own, mu: 0.5, epsilon: 1e-4}, server: {weighting: uniform}}", homes(t, 1))
	p, n := x.problem.Partition, len(x.initial)
	shared, personal := p.SharedLen(), p.PersonalLen()
	c, initial := x.client(0, x.initial)
	if want := personal + shared; len(c.Kept) != want {
		t.Fatalf("a client stores %d numbers, want %d personal and own shared weights", len(c.Kept), want)
	}
	o := newObjective(x.job.Model, kernels(t), x.job.Loss, x.job.Targets, x.job.Batch)
	o.setData(x.data)
	examples := make([]int, o.Len())
	for e := range examples {
		examples[e] = e
	}
	whole, g := slices.Clone(x.initial), make([]float32, n)
	for r := range rounds {
		received := slices.Clone(initial)
		for i := range received {
			received[i] += 0.01 * float32(r*(i%5))
		}
		u := x.train(t, c, x.task(r, received))

		// In round 0, the received weights are the initial weights, which are also the first
		// value of whole.
		before := slices.Clone(whole)
		now := reference{m: make([]float64, n), v: make([]float64, n)}
		target := make([]float32, n)
		p.Join(target, received, make([]float32, personal))
		for range steps {
			o.Gradient(g, whole, examples)
			for _, s := range spans(p.Shared()) {
				for i := s.Lo; i < s.Hi; i++ {
					g[i] += 0.5 * (whole[i] - target[i])
				}
			}
			now.step(whole, g, &x.plan.Client, func(int) bool { return true })
		}
		ends, starts, mine := make([]float32, shared), make([]float32, shared), make([]float32, personal)
		p.Cut(before, starts, mine)
		p.Cut(whole, ends, mine)
		moved := make([]float32, shared)
		for i := range moved {
			moved[i] = ends[i] - starts[i]
		}
		near(t, "progress", u.Delta, moved, 2e-6)
		near(t, "own weights", c.Kept[personal:], ends, 1e-5)
		near(t, "personal weights", c.Kept[:personal], mine, 1e-5)
		// The reference continues from the client's float32 weights, so that errors do not
		// accumulate.
		p.Join(whole, c.Kept[personal:], c.Kept[:personal])
	}
}

// TestScoreOwn checks which shared weights are used to score and fine-tune a client.
func TestScoreOwn(t *testing.T) {
	for _, scored := range []string{"shared", "own"} {
		x := newFixture(t, "{algorithm: fedadam, model: {name: fekri2023, lookback: 4, targets: 2}, partition: head, "+
			"client: {batch: 8, steps: 2, begin: own, moments: kept}, evaluate: {weights: "+scored+", fine_tune: {steps: 3}}}", homes(t, 1))
		p := x.problem.Partition
		c, shared := x.client(0, x.initial)
		whole := make([]float32, len(x.initial))
		x.job.Join(whole, shared, c.Kept, true)
		if !sameBits(whole, x.initial) {
			t.Fatal("a client that has not trained is not scored with the received weights")
		}
		x.train(t, c, x.task(0, shared))
		trained := slices.Clone(x.worker.Weights())
		server := slices.Clone(shared)
		for i := range server {
			server[i] += 0.25
		}
		want := slices.Clone(trained)
		if scored == "shared" {
			p.Join(want, server, c.Kept[:p.PersonalLen()])
		}
		x.job.Join(whole, server, c.Kept, false)
		if !sameBits(whole, want) {
			t.Errorf("%s: the scored weights are wrong", scored)
		}
		kept := slices.Clone(c.Kept)
		task := fed.Task{Round: 5, Version: 5, Shared: server}
		last, err := NewTuner(x.job, kernels(t), nil, true).Tune(t.Context(), c, task, nil, distance(want))
		if err != nil || !sameBits(last, want) {
			t.Errorf("%s: without fine-tuning, the weights are wrong: %v", scored, err)
		}
		// Fine-tuning is the same as training from these weights with the stored moments.
		plain := *x.job
		plain.Own = false
		w := NewWorker(&plain, kernels(t), x.parts.NewTuner(kernels(t)))
		same := &Client{ID: c.ID, Data: c.Data, Kept: slices.Concat(kept[:p.PersonalLen()], kept[p.PersonalLen()+p.SharedLen():])}
		from := make([]float32, p.SharedLen())
		p.Cut(want, from, make([]float32, p.PersonalLen()))
		var u fed.Update
		if err := w.Train(t.Context(), same, fed.Task{Round: 5, Version: 5, Shared: from}, &u); err != nil {
			t.Fatal(err)
		}
		tuned, err := NewTuner(x.job, kernels(t), x.parts.NewTuner(kernels(t)), false).Tune(t.Context(), c, task, nil, nil)
		if err != nil || !sameBits(tuned, w.Weights()) || sameBits(tuned, want) {
			t.Errorf("%s: fine-tuning does not begin with the scored weights: %v", scored, err)
		}
		if !sameBits(kept, c.Kept) {
			t.Errorf("%s: the stored state has changed", scored)
		}
	}
}
