package localtrain

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"

	"loadstar/fed"
)

// Work sets how much a client trains in a round, and on which examples: either Steps steps, or
// Epochs passes over all examples. The other one is 0.
//
//   - Steps with a fresh minibatch for each (bose2024, figure 4), drawn without
//     replacement within a batch;
//   - Steps on one minibatch per round, if ResampleRound (the letter of bose2023,
//     algorithm 2);
//   - Epochs in batches of a new random order for each (reddi2021, algorithm 4;
//     fekri2023), where the last batch may be smaller.
//
// bose2023 speaks of 4 client epochs. Its algorithm repeats them on one sampled minibatch. The
// default in plans is Steps with a fresh minibatch for each step. Epochs is a third reading, in
// which an epoch is a pass over the client's data.
//
// With Steps, a client that has at most Batch examples uses all of them, in order, in
// every batch.
type Work struct {
	Batch         int
	Steps, Epochs int
	ResampleRound bool
}

// steps returns the number of batches in a turn of a client with n examples.
func (w Work) steps(n int) int {
	if w.Epochs > 0 {
		return w.Epochs * ((n + w.Batch - 1) / w.Batch)
	}
	return w.Steps
}

var errNoExamples = errors.New("localtrain: the client has no training examples; leave it out of the fleet")

// batches produces the batches of a turn. Sampling a batch takes time and memory in proportion
// to the batch size, no matter how many examples the client has. An epoch requires a
// permutation of all examples.
type batches struct {
	work  Work
	n     int
	rand  *rand.Rand
	done  int // number of batches in this turn if Steps is set, or of examples in this epoch
	epoch int
	batch []int
	order []int
	seen  intSet
}

// begin starts the turn of a client with n examples and sets its number of steps.
func (b *batches) begin(w Work, n int, t *fed.Turn) error {
	switch {
	case w.Batch < 1:
		return fmt.Errorf("localtrain: the batch size is %d, want at least 1", w.Batch)
	case (w.Steps > 0) == (w.Epochs > 0) || w.Steps < 0 || w.Epochs < 0:
		return fmt.Errorf("localtrain: %d steps and %d epochs, want one of them above 0 and the other 0", w.Steps, w.Epochs)
	case w.ResampleRound && w.Epochs > 0:
		return errors.New("localtrain: one batch per round works only with steps, not with epochs")
	case n < 1:
		return errNoExamples
	}
	b.work, b.n, b.rand, b.done, b.epoch = w, n, t.Rand, 0, 0
	t.Steps = w.steps(n)
	t.Done = earlier(t, t.Steps)
	return nil
}

// earlier returns the number of steps before a turn if each earlier version took the given
// number of steps. The result is at most maxDone: larger numbers would have the same effect,
// and on some devices they do not fit in an int.
func earlier(t *fed.Turn, steps int) int {
	const maxDone = 1 << 30
	if steps > 0 && t.Task.Version > maxDone/steps {
		return maxDone
	}
	return t.Task.Version * steps
}

// next returns the examples of the next step, valid until the next call, or nil
// after the last step.
func (b *batches) next() []int {
	if b.work.Epochs > 0 {
		return b.nextOfEpoch()
	}
	if b.done == b.work.Steps {
		return nil
	}
	if b.done == 0 || !b.work.ResampleRound {
		b.batch = b.draw(b.batch)
	}
	b.done++
	return b.batch
}

func (b *batches) nextOfEpoch() []int {
	if b.done == b.n {
		b.done = 0
		b.epoch++
	}
	if b.epoch == b.work.Epochs {
		return nil
	}
	if b.done == 0 {
		b.order = fill(b.order, 0, b.n)
		b.rand.Shuffle(b.n, func(i, j int) { b.order[i], b.order[j] = b.order[j], b.order[i] })
	}
	lo := b.done
	b.done = min(lo+b.work.Batch, b.n)
	return b.order[lo:b.done]
}

// draw overwrites dst with a random batch of distinct examples. All batches are equally
// likely (Floyd's algorithm: Bentley and Floyd 1987).
func (b *batches) draw(dst []int) []int { return b.drawFrom(dst, b.n) }

// drawFrom overwrites dst with a random batch of the first n examples.
func (b *batches) drawFrom(dst []int, n int) []int {
	if n <= b.work.Batch {
		return fill(dst, 0, n)
	}
	b.seen.empty(b.work.Batch)
	dst = dst[:0]
	for last := n - b.work.Batch; last < n; last++ {
		x := b.rand.IntN(last + 1)
		if !b.seen.add(x) {
			x = last // cannot be in the batch yet, because all numbers in it are smaller
			b.seen.add(x)
		}
		dst = append(dst, x)
	}
	return dst
}

// fill overwrites dst with the numbers from lo up to, but not including, hi.
func fill(dst []int, lo, hi int) []int {
	dst = dst[:0]
	for i := lo; i < hi; i++ {
		dst = append(dst, i)
	}
	return dst
}

// intSet is a set of non-negative integers, with open addressing.
type intSet struct {
	slots []int // a number of the set plus one, or 0 if the slot is free
	shift int
}

// empty removes all numbers and makes room for n numbers, with at most half of the slots in
// use.
func (t *intSet) empty(n int) {
	size := bits.Len(uint(2*n - 1))
	if cap(t.slots) < 1<<size {
		t.slots = make([]int, 1<<size)
	}
	t.slots, t.shift = t.slots[:1<<size], 32-size
	clear(t.slots)
}

// add adds x and reports whether it was not yet in the set.
func (t *intSet) add(x int) bool {
	// Fibonacci hashing assigns neighbouring numbers to distant slots.
	for i := uint32(x) * 0x9E3779B1 >> t.shift; ; i++ {
		switch slot := &t.slots[int(i)&(len(t.slots)-1)]; *slot {
		case x + 1:
			return false
		case 0:
			*slot = x + 1
			return true
		}
	}
}
