package feature

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"

	"loadstar/series"
)

// spoiled returns a copy of the dataset in which the loads of meter i from one step on, and the
// weather from another step on, are replaced. Both steps are counted from the meter's first
// step.
func spoiled(t *testing.T, d *series.Dataset, i, load, weather int, v float32) *series.Dataset {
	t.Helper()
	var meters []series.Meter
	for k := range d.Len() {
		m := d.Meter(k)
		if k == i {
			m.Load = slices.Clone(m.Load)
			for s := load; s < len(m.Load); s++ {
				m.Load[s] = v
			}
		}
		meters = append(meters, m)
	}
	out := *d
	out.Weather.Columns = nil
	offset := int((meters[i].Start - d.Weather.Start) / d.Seconds())
	for _, c := range d.Weather.Columns {
		c = slices.Clone(c)
		for s := max(weather+offset, 0); s < len(c); s++ {
			c[s] = v
		}
		out.Weather.Columns = append(out.Weather.Columns, c)
	}
	result, err := series.NewDataset(out, meters)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// TestNothingFromTheFuture replaces all loads after the origin, and all weather after the
// step whose weather is known. No input may change by a bit.
func TestNothingFromTheFuture(t *testing.T) {
	for name, x := range fixtures {
		for k, task := range tasks {
			t.Run(fmt.Sprintf("%s,horizon=%d,targets=%d", name, task.horizon, task.targets), func(t *testing.T) {
				skipInShort(t, name, task.horizon, task.targets)
				t.Parallel()
				d := x.dataset(t)
				f := newFrame(t, d, task.horizon, task.targets, 0.2)
				names := f.Names()
				i := k % d.Len()
				m := d.Meter(i)
				for e, a := range examples(f, m, 4, uint64(10+k)) {
					if a.Last < f.framer.Train(m) {
						continue // the scaling may depend on later steps of the training split
					}
					weather := a.Last + task.horizon + a.Target
					if f.task.next() {
						weather = a.Last
					}
					v := float32(1e9)
					if e%2 == 0 {
						v = float32(math.NaN())
					}
					other := spoiled(t, d, i, a.Last+1, weather+1, v)
					g := newFrame(t, other, task.horizon, task.targets, 0.2)
					want, got := make([]float32, f.Width()), make([]float32, f.Width())
					f.Rows(m).Gather(want, nil, []series.Example{a})
					g.Rows(other.Meter(i)).Gather(got, nil, []series.Example{a})
					for j := range want {
						if math.Float32bits(want[j]) != math.Float32bits(got[j]) {
							t.Errorf("meter %s, %v: %s changes from %g to %g when the future is %g", m.ID, a, names[j], want[j], got[j], v)
						}
					}
				}
			})
		}
	}
}

// TestCanarySees checks that the test above can fail. A change in the load at the origin or in
// the weather at the known step must change inputs of every group that reads it.
func TestCanarySees(t *testing.T) {
	d := fixed.dataset(t)
	for _, task := range tasks[:2] {
		f := newFrame(t, d, task.horizon, task.targets, 0)
		r := f.Rows(d.Meter(0))
		a := series.Example{Last: r.At(series.Test, 20), Target: task.targets - 1}
		weather := a.Last
		if task.targets > 1 {
			weather += task.targets
		}
		other := spoiled(t, d, 0, a.Last, weather, 50)
		want, got := make([]float32, f.Width()), make([]float32, f.Width())
		r.Gather(want, nil, []series.Example{a})
		newFrame(t, other, task.horizon, task.targets, 0).Rows(other.Meter(0)).Gather(got, nil, []series.Example{a})
		at := 0
		for _, g := range f.Groups() {
			n := g.Width(f.task)
			same := slices.Equal(want[at:at+n], got[at:at+n])
			if reads := g.Reach > 0 || g.Needs == "temperature" || g.Needs == "wind"; same == reads {
				t.Errorf("group %s: inputs are the same: %v", g.Name, same)
			}
			at += n
		}
	}
}

// TestScalingIsFromTraining replaces all values after the training split, which must not change
// the scaling.
func TestScalingIsFromTraining(t *testing.T) {
	for name, x := range fixtures {
		if testing.Short() && name != "autumn" {
			continue // takes long on an emulator
		}
		d := x.dataset(t)
		f := newFrame(t, d, 1, 1, 0)
		for i := range d.Len() {
			m := d.Meter(i)
			want := f.Rows(m).Scaling()
			for _, v := range []float32{1e9, float32(math.NaN())} {
				other := spoiled(t, d, i, f.framer.Train(m), f.framer.Train(m), v)
				if got := newFrame(t, other, 1, 1, 0).Rows(other.Meter(i)).Scaling(); !reflect.DeepEqual(got, want) {
					t.Errorf("the scaling of meter %s changes when later values are %g", m.ID, v)
				}
			}
			other := spoiled(t, d, i, f.framer.Train(m)-1, f.framer.Train(m), 5)
			if got := newFrame(t, other, 1, 1, 0).Rows(other.Meter(i)).Scaling(); reflect.DeepEqual(got, want) {
				t.Errorf("the scaling of meter %s does not depend on the last training step", m.ID)
			}
		}
	}
}
