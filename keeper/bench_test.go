package keeper

import (
	"fmt"
	"testing"

	"loadstar/fed/mask"
	"loadstar/internal/proc"
	v1 "loadstar/proto/loadstar/v1"
)

// preload adds members and their keys without enrolling them.
func (w *world) preload(members int) {
	k := w.keepers[0]
	for i := range members {
		name, key := fmt.Sprintf("agent-%06d", i), mask.NewKey()
		k.Keeper.state.members[name] = &memberRow{Serial: 1, Cell: int64(i / 100)}
		k.ring.keys[name] = keyRow{Serial: 1, Day: mask.Day(w.clock) - 1, Key: key[:]}
	}
}

// BenchmarkRelease releases rounds of the model dense.
func BenchmarkRelease(b *testing.B) {
	for _, members := range []int{42, 1000, 10_000} {
		b.Run(fmt.Sprint(members), func(b *testing.B) {
			w := newWorld(b, 70, 1, testRules())
			w.preload(members)
			round := int64(0)
			begun := proc.CPUTime()
			for b.Loop() {
				q := &v1.KeeperReleaseRequest{Round: w.round("run", round, 26721)}
				for i := range members {
					n := mask.NewNonce()
					q.Results = append(q.Results, &v1.MaskedResult{Agent: fmt.Sprintf("agent-%06d", i), Clients: 1, Nonce: n[:]})
				}
				if _, err := w.keepers[0].Release(q); err != nil {
					b.Fatal(err)
				}
				round++
			}
			b.ReportMetric((proc.CPUTime()-begun).Seconds()/float64(b.N), "cpu-s/op")
		})
	}
}

// BenchmarkCheck judges 64 results of the model dense.
func BenchmarkCheck(b *testing.B) {
	const results = 64
	w := newWorld(b, 71, 1, testRules())
	w.preload(results)
	round := int64(0)
	begun := proc.CPUTime()
	for b.Loop() {
		q := &v1.KeeperCheckRequest{Round: w.normRound("run", round, 26721)}
		for i := range results {
			n := mask.NewNonce()
			q.Results = append(q.Results, &v1.CheckedResult{Products: make([]uint64, mask.Sketch), Result: &v1.MaskedResult{Agent: fmt.Sprintf("agent-%06d", i), Clients: 1, Nonce: n[:]}})
		}
		if _, err := w.keepers[0].Check(q); err != nil {
			b.Fatal(err)
		}
		round++
	}
	b.ReportMetric(float64((proc.CPUTime()-begun).Microseconds())/float64(b.N)/results, "cpu-us/result")
}
