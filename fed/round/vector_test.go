package round

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"loadstar/fed"
	"loadstar/fed/exact"
	"loadstar/fed/limit"
	"loadstar/fed/mask"
)

// vectorRules returns rules with every combination of parts that a vector can have.
func vectorRules(t testing.TB) []Rules {
	var all []Rules
	for i := range 8 {
		r := Rules{Tallied: i&1 > 0, ByExamples: i&2 > 0, Coarse: true, Weight: func(int) int64 { return 1 }}
		most := int64(1)
		if r.ByExamples {
			most, r.Weight = 1000, func(n int) int64 { return min(int64(n), 1000) }
		}
		r.Needs.Control = i&4 > 0
		r.WeightControl = r.ByExamples
		var err error
		if r.Scale, err = exact.NewScale(16, most, 64); err != nil {
			t.Fatal(err)
		}
		if r.Control, err = exact.NewScale(1<<12, most, 64); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func vectorUpdate(rng *rand.Rand, r Rules, name string, shared int, l fed.Limits) *fed.Update {
	u := &fed.Update{
		Client: fed.ClientID(name), Version: 3, Claimed: 1 + rng.IntN(3000), Steps: rng.IntN(50), TrainLoss: rng.ExpFloat64(),
		Delta: make([]float32, shared),
	}
	if r.Needs.Control {
		u.Control = make([]float32, shared)
	}
	for _, x := range [][]float32{u.Delta, u.Control} {
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
	}
	limit.Apply(l, u)
	return u
}

// TestVector encodes results of agents with several clients each, masks them, adds them up in
// random order and removes the masks. The decoded result must equal the fold of all updates.
func TestVector(t *testing.T) {
	const shared = 50
	for _, r := range vectorRules(t) {
		rng := rand.New(rand.NewPCG(5, 6))
		v, limits := r.Vector(shared), fed.Limits{Norm: 3, Control: 2, Examples: 800}
		total, masks := make([]uint64, v.Len()), make([]uint64, v.Len())
		plain, sum, clients := NewFold(r), Sizes{}, int64(0)
		for agent := range 12 {
			own, ownSizes, n := NewFold(r), Sizes{}, 1+rng.IntN(4)
			for c := range n {
				u := vectorUpdate(rng, r, fmt.Sprint(agent, c), shared, limits)
				for _, f := range []*Fold{own, plain} {
					if err := f.Add(u, make([]float32, shared)); err != nil {
						t.Fatal(err)
					}
				}
				ownSizes.Add(u)
				sum.Add(u)
			}
			ownSizes.Evaluate(int64(n), 5)
			sum.Evaluate(int64(n), 5)
			clients += int64(n)
			x, err := v.Encode(own, &ownSizes)
			if err != nil || len(x) != v.Len() {
				t.Fatal(len(x), v.Len(), err)
			}
			inBlocks(t, v.Blocks(limits), x, n)
			s := mask.Seed{byte(agent)}
			s.Add(x)
			s.Add(masks)
			if err := AddVector(total, AppendVector(nil, x)); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := v.Decode(3, clients, total); err == nil {
			t.Error("a masked sum is decoded")
		}
		for i := range total {
			total[i] -= masks[i]
		}
		got, sizes, err := v.Decode(3, clients, total)
		if err != nil {
			t.Fatal(err)
		}
		if !r.Tallied { // the vector has no tallies, and they are not needed
			plain.tally, got.tally = limit.Tally{}, limit.Tally{}
		}
		want := plain.Sums()
		if *sizes != sum || got.Len() != plain.Len() || len(got.Sums()) != 1 || got.Sums()[0].Version != 3 || !reflect.DeepEqual(got.tally, plain.tally) {
			t.Errorf("decoded %+v of %d updates, want %+v of %d", *sizes, got.Len(), sum, plain.Len())
		}
		a, err1 := AppendSums(nil, &want[0])
		b, err2 := AppendSums(nil, &got.Sums()[0])
		if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Error("the decoded sum is another one")
		}
	}
}

// inBlocks checks that each part of an honest vector is within its limit.
func inBlocks(t *testing.T, blocks []mask.Block, x []uint64, clients int) {
	t.Helper()
	for i, b := range blocks {
		var norm float64
		for _, n := range x[:b.Length] {
			norm += float64(int64(n)) * float64(int64(n))
		}
		if norm = math.Sqrt(norm); b.Limit == 0 || norm > float64(clients)*float64(b.Limit) {
			t.Errorf("block %d of %d clients has the norm %g, the limit of one is %d", i, clients, norm, b.Limit)
		}
		x = x[b.Length:]
	}
	if len(x) > 0 {
		t.Errorf("%d numbers are in no block", len(x))
	}
}

// Impossible numbers are clipped to the bounds or rejected.
func TestVectorGarbage(t *testing.T) {
	for _, r := range vectorRules(t) {
		v := r.Vector(4)
		x := make([]uint64, v.Len())
		if r.ByExamples {
			x[v.Len()-sizes-1] = 2
		}
		for i := range sizes {
			x[v.Len()-1-i] = 1 << 63 >> (i % 2)
		}
		if r.Tallied {
			at := 4
			if r.Needs.Control {
				at = 8
			}
			x[at], x[at+1] = 1<<63, 99
		}
		f, s, err := v.Decode(0, 2, x)
		if err != nil {
			t.Fatal(err)
		}
		if s.Examples < 0 || s.Examples > 2*mostCount || s.TrainLoss > 2*mostLoss || s.Evaluated > 2 || s.RelativeMAE > 2*mostError {
			t.Errorf("sizes %+v", s)
		}
		for _, n := range f.tally.Counters() {
			if n > 2 {
				t.Errorf("a counter of two clients is %d", n)
			}
		}
		x[0] = 1 << 62
		if _, _, err := v.Decode(0, 2, x); err == nil {
			t.Error("a number beyond the bound is decoded")
		}
		if _, _, err := v.Decode(0, 2, x[1:]); err == nil {
			t.Error("a short vector is decoded")
		}
		if r.ByExamples {
			x[0], x[v.Len()-sizes-1] = 0, 2001
			if _, _, err := v.Decode(0, 2, x); err == nil {
				t.Error("a weight beyond the bound is decoded")
			}
		}
	}
}
