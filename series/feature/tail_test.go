package feature

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"loadstar/series"
)

// cut returns the dataset with all meters cut to the time between from and to.
func cut(t *testing.T, d *series.Dataset, from, to int64) *series.Dataset {
	t.Helper()
	var meters []series.Meter
	for i := range d.Len() {
		meters = append(meters, d.Meter(i).Cut(from, to, d.Seconds()))
	}
	out, err := series.NewDataset(*d, meters)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestTails checks that the inputs of an origin have the same bits for the whole series as for
// the shortest tail and a longer one, which end at the cutoff. The series has a clock time at
// which loads are missing for longer than a tail.
func TestTails(t *testing.T) {
	for name, x := range fixtures {
		for k, task := range tasks {
			t.Run(fmt.Sprintf("%s,horizon=%d,targets=%d", name, task.horizon, task.targets), func(t *testing.T) {
				skipInShort(t, name, task.horizon, task.targets)
				t.Parallel()
				x := x // subtests of other tasks read x at the same time
				x.seed += uint64(k)
				d := x.dataset(t)
				random := rand.New(rand.NewPCG(x.seed, 3))
				for i := range d.Len() {
					m := d.Meter(i)
					for s := range m.Load {
						if hole := s % d.StepsPerDay(); hole == 3 && s < len(m.Load)*9/10 || hole == 5 {
							m.Load[s] = float32(math.NaN())
						}
					}
				}
				from, to := d.Span()
				start := Tail(from, d.Seconds())
				all := cut(t, d, start, to)
				whole := newFrame(t, all, task.horizon, task.targets, 0.3)
				names, compared := whole.Names(), 0
				frozen := make([]*Scaling, d.Len())
				for i := range frozen {
					frozen[i] = newFrame(t, d, task.horizon, task.targets, 0.3).Rows(d.Meter(i)).Scaling()
				}
				for range 12 {
					cutoff := from + 50*86400 + random.Int64N((to-from-50*86400)/d.Seconds()+1)*d.Seconds()
					for _, weeks := range []int64{0, 1} {
						tail := cut(t, d, max(Tail(cutoff, d.Seconds())-weeks*week, start), cutoff)
						f := newFrame(t, tail, task.horizon, task.targets, 0.3)
						for i := range d.Len() {
							m := all.Meter(i)
							full, part := whole.Frozen(m, frozen[i]), f.Frozen(tail.Meter(i), frozen[i])
							since := len(tail.Meter(i).Load) - 1
							if weeks == 0 { // once as for a single forecast, otherwise as for forecasts over several days
								part = f.Newest(tail.Meter(i), frozen[i], since-random.IntN(2)*random.IntN(200))
							}
							at := series.Example{Last: int((cutoff-m.Start)/d.Seconds()) - 1, Target: random.IntN(task.targets)}
							short := at
							short.Last -= int((tail.Meter(i).Start - m.Start) / d.Seconds())
							if a, b := full.Ready(at.Last), part.Ready(short.Last); a != b {
								t.Errorf("meter %s is %v in the whole series and %v in the tail", m.ID, a, b)
							}
							want, got := make([]float32, f.Width()), make([]float32, f.Width())
							full.Gather(want, nil, []series.Example{at})
							part.Gather(got, nil, []series.Example{short})
							for j := range want {
								if math.Float32bits(want[j]) != math.Float32bits(got[j]) {
									t.Errorf("meter %s, cutoff %d, %d weeks more: %s is %g in the whole series and %g in the tail", m.ID, cutoff, weeks, names[j], want[j], got[j])
								}
							}
							compared++
						}
					}
				}
				if compared < 70 {
					t.Errorf("%d origins were compared", compared)
				}
			})
		}
	}
}
