package feature

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
)

// tasks are the tasks that are tested: one step ahead, a day and two days ahead, more than a
// week ahead, and one or several targets some steps ahead.
var tasks = []struct{ horizon, targets int }{{1, 1}, {1, 24}, {1, 48}, {1, 200}, {6, 1}, {30, 1}, {3, 10}}

var fixtures = map[string]fixture{"spring": spring, "autumn": autumn, "fixed": fixed, "half": half, "coarse": coarse, "midnight": midnight, "quarter": quarter}

// skipInShort skips all tasks but the first two in a short test, which may run on an
// emulator.
func skipInShort(t *testing.T, name string, horizon, targets int) {
	if testing.Short() && (name != "autumn" || horizon > 1 || targets > 24) {
		t.Skip("takes long on an emulator")
	}
}

// TestDefinitions compares the inputs with a slow implementation of their definitions.
func TestDefinitions(t *testing.T) {
	for name, x := range fixtures {
		for _, task := range tasks {
			t.Run(fmt.Sprintf("%s,horizon=%d,targets=%d", name, task.horizon, task.targets), func(t *testing.T) {
				skipInShort(t, name, task.horizon, task.targets)
				t.Parallel()
				d := x.dataset(t)
				f := newFrame(t, d, task.horizon, task.targets, 0.2)
				names := f.Names()
				for i := range d.Len() {
					m := d.Meter(i)
					ref := newReference(t, d, f.Framer(), m)
					at := examples(f, m, 4, uint64(i))
					got := make([]float32, len(at)*f.Width())
					y := make([]float32, len(at))
					r := f.Rows(m)
					r.Gather(got, y, at)
					for e, a := range at {
						want := ref.row(a, f.task)
						for j, name := range names {
							tolerance := 3e-5
							if !x.rounded && (strings.HasPrefix(name, "rank") || strings.HasPrefix(name, "median") || strings.HasPrefix(name, "above")) {
								tolerance = 0.03 // 256 values approximate the distribution
							}
							if v := float64(got[e*f.Width()+j]); !(math.Abs(v-want[name]) <= tolerance) {
								t.Errorf("meter %s, %v: %s is %g, want %g", m.ID, a, name, v, want[name])
							}
						}
						target := a.Last + task.horizon + a.Target
						if target >= len(m.Load) {
							continue
						}
						kw := float64(m.Load[target])
						if wantY := (kw-ref.mean)/ref.std - ref.level; math.Abs(float64(y[e])-wantY) > 1e-4 {
							t.Errorf("%v: target %g, want %g", a, y[e], wantY)
						}
						if back := float64(r.Unscale(a, y[e])); math.Abs(back-kw) > 1e-4*math.Abs(kw) {
							t.Errorf("%v: unscaled target %g, want %g", a, back, kw)
						}
					}
				}
			})
		}
	}
}

// TestDocumented checks that the documentation lists every group.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/data.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range Groups() {
		if !strings.Contains(string(text), "| `"+g.Name+"` |") {
			t.Errorf("docs/data.md does not list group %s", g.Name)
		}
		if g.About == "" || strings.HasSuffix(g.About, ".") {
			t.Errorf("group %s: description %q", g.Name, g.About)
		}
	}
}
