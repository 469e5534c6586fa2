package localtrain

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"loadstar/fed"
)

func draws(seed uint64) *rand.Rand { return fed.Rand(seed, "batches", 0, "a") }

// allBatches returns all batches of a turn.
func allBatches(t testing.TB, b *batches, w Work, n int, r *rand.Rand) [][]int {
	t.Helper()
	if err := b.begin(w, n, &fed.Turn{Rand: r}); err != nil {
		t.Fatal(err)
	}
	want := w.steps(n)
	var all [][]int
	for x := b.next(); x != nil; x = b.next() {
		all = append(all, slices.Clone(x))
	}
	if len(all) != want {
		t.Errorf("%+v on %d examples: %d steps predicted, %d taken", w, n, want, len(all))
	}
	return all
}

func equal(a, b [][]int) bool { return slices.EqualFunc(a, b, slices.Equal[[]int]) }

func TestSteps(t *testing.T) {
	all := allBatches(t, new(batches), Work{Batch: 8, Steps: 50}, 20, draws(1))
	if len(all) != 50 {
		t.Fatalf("%d steps", len(all))
	}
	for i, x := range all {
		s := slices.Compact(slices.Sorted(slices.Values(x)))
		if len(x) != 8 || len(s) != 8 || s[0] < 0 || s[7] >= 20 {
			t.Fatalf("%v is not a batch of 8 out of 20", x)
		}
		if i > 0 && slices.Equal(x, all[i-1]) {
			t.Errorf("step %d has the same batch as the previous step", i)
		}
	}
}

func TestOneBatchPerRound(t *testing.T) {
	var b batches
	all := allBatches(t, &b, Work{Batch: 8, Steps: 4, ResampleRound: true}, 20, draws(1))
	fresh := allBatches(t, &b, Work{Batch: 8, Steps: 1}, 20, draws(1))
	if !equal(all, [][]int{fresh[0], fresh[0], fresh[0], fresh[0]}) {
		t.Error(all)
	}
}

func TestFewExamples(t *testing.T) {
	for _, n := range []int{1, 3, 4} {
		all := allBatches(t, new(batches), Work{Batch: 4, Steps: 2}, n, draws(1))
		want := []int{0, 1, 2, 3}[:n]
		if !equal(all, [][]int{want, want}) {
			t.Errorf("%v of %d examples", all, n)
		}
	}
}

func TestEpochs(t *testing.T) {
	all := allBatches(t, new(batches), Work{Batch: 4, Epochs: 3}, 10, draws(1))
	if len(all) != 9 { // 4 + 4 + 2 examples in each epoch
		t.Fatalf("%d batches", len(all))
	}
	var orders [][]int
	for ; len(all) > 0; all = all[3:] {
		if len(all[0]) != 4 || len(all[1]) != 4 || len(all[2]) != 2 {
			t.Errorf("batches %v", all[:3])
		}
		order := slices.Concat(all[:3]...)
		orders = append(orders, order)
		if !slices.Equal(slices.Sorted(slices.Values(order)), []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
			t.Errorf("an epoch has the examples %v", order)
		}
	}
	if slices.Equal(orders[0], orders[1]) || slices.Equal(orders[1], orders[2]) {
		t.Errorf("epochs have the same order: %v", orders)
	}
	if all := allBatches(t, new(batches), Work{Batch: 5, Epochs: 1}, 10, draws(1)); len(all) != 2 {
		t.Errorf("two even batches: %v", all)
	}
}

// In 10,000 samples of 2 out of 5 examples, each of the 10 pairs occurs 1,000 times, give or
// take 5 standard deviations. The standard deviation is 30.
func TestDrawsAreUniform(t *testing.T) {
	count := map[[2]int]int{}
	for _, x := range allBatches(t, new(batches), Work{Batch: 2, Steps: 10000}, 5, draws(3)) {
		count[[2]int{min(x[0], x[1]), max(x[0], x[1])}]++
	}
	if len(count) != 10 {
		t.Errorf("%d pairs, want 10", len(count))
	}
	for pair, n := range count {
		if n < 850 || n > 1150 {
			t.Errorf("%v was drawn %d times, want about 1,000", pair, n)
		}
	}
}

func TestSameSeedSameBatches(t *testing.T) {
	for _, w := range []Work{{Batch: 3, Steps: 5}, {Batch: 3, Steps: 5, ResampleRound: true}, {Batch: 3, Epochs: 2}} {
		var used batches
		allBatches(t, &used, Work{Batch: 50, Epochs: 3}, 99, draws(9))
		allBatches(t, &used, Work{Batch: 7, Steps: 3}, 60, draws(8))
		a := allBatches(t, &used, w, 10, draws(1))
		b := allBatches(t, new(batches), w, 10, draws(1))
		c := allBatches(t, new(batches), w, 10, draws(2))
		if !equal(a, b) {
			t.Errorf("%+v: %v and %v from the same seed", w, a, b)
		}
		if equal(a, c) {
			t.Errorf("%+v: %v from two different seeds", w, a)
		}
	}
	// These batches must never change, because the results of existing seeds depend on
	// them.
	if got := allBatches(t, new(batches), Work{Batch: 4, Steps: 2}, 1000, draws(1)); !equal(got, [][]int{{577, 934, 97, 708}, {829, 976, 583, 278}}) {
		t.Errorf("steps: %v", got)
	}
	if got := allBatches(t, new(batches), Work{Batch: 4, Epochs: 1}, 6, draws(1)); !equal(got, [][]int{{1, 0, 2, 5}, {4, 3}}) {
		t.Errorf("an epoch: %v", got)
	}
}

// Sampling a batch from a billion examples costs no more than from a few.
func TestDrawsDoNotDependOnExamples(t *testing.T) {
	var b batches
	turn := func() {
		if err := b.begin(Work{Batch: 64, Steps: 100}, 1<<30, &fed.Turn{Rand: draws(1)}); err != nil {
			t.Fatal(err)
		}
		for b.next() != nil {
		}
	}
	turn()
	if len(b.order) != 0 || cap(b.batch) > 128 || cap(b.seen.slots) > 128 {
		t.Errorf("capacity for %d, %d and %d numbers", cap(b.order), cap(b.batch), cap(b.seen.slots))
	}
}

func TestBadWork(t *testing.T) {
	for _, c := range []struct {
		work Work
		n    int
		want string
	}{
		{Work{Batch: 4, Steps: 1}, 0, "no training examples"},
		{Work{Batch: 4, Epochs: 1}, 0, "no training examples"},
		{Work{Steps: 1}, 5, "batch size is 0"},
		{Work{Batch: 4}, 5, "0 steps and 0 epochs"},
		{Work{Batch: 4, Steps: 1, Epochs: 1}, 5, "1 steps and 1 epochs"},
		{Work{Batch: 4, Steps: -1, Epochs: 1}, 5, "-1 steps"},
		{Work{Batch: 4, Epochs: 1, ResampleRound: true}, 5, "not with epochs"},
	} {
		if err := new(batches).begin(c.work, c.n, &fed.Turn{Rand: draws(1)}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v on %d examples: %v, want %q", c.work, c.n, err, c.want)
		}
	}
}

// The number of earlier steps must not overflow, even on platforms where an int has 32 bits.
func TestEarlierSteps(t *testing.T) {
	for _, x := range []struct{ version, steps, want int }{
		{0, 8, 0}, {3, 8, 24}, {7, 0, 0}, {1 << 20, 1 << 9, 1 << 29}, {1<<31 - 1, 1, 1 << 30}, {1<<31 - 1, 1<<31 - 1, 1 << 30}, {2, 1 << 30, 1 << 30},
	} {
		turn := &fed.Turn{Task: fed.Task{Version: x.version}}
		if got := earlier(turn, x.steps); got != x.want {
			t.Errorf("%d rounds of %d steps: %d, want %d", x.version, x.steps, got, x.want)
		}
	}
}
