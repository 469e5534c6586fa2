package sim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"loadstar/fed"
	"loadstar/internal/testkit"
	"loadstar/series"
)

// besieged is a private run in which a fifth of the clients or none are hostile.
type besieged struct {
	robust string
	attack string // flipped, 100 times, alie, or empty
	seed   uint64
}

// crowd contains the updates of honest clients in two rounds, the current one and the last. The
// updates of the last round show a hostile client how much updates differ.
type crowd struct {
	mu    sync.Mutex
	round int
	now   map[string][]float32
	last  map[string][]float32
	lie   []float32
}

func (c *crowd) at(round int) {
	if c.round != round || c.now == nil {
		c.round, c.last, c.now, c.lie = round, c.now, map[string][]float32{}, nil
	}
}

// alie replaces a hostile update with the mean of the last round's honest updates minus z
// standard deviations of each number, which is a small change, but enough (Baruch et al. 2019).
func (c *crowd) alie(u *fed.Update, n, hostile int) {
	if len(c.last) == 0 {
		return
	}
	if c.lie == nil {
		honest := float64(n - hostile)
		supporters := float64(n/2 + 1 - hostile)
		z := math.Sqrt2 * math.Erfinv(2*(honest-supporters)/honest-1)
		c.lie = make([]float32, len(u.Delta))
		names := slices.Sorted(maps.Keys(c.last))
		for i := range c.lie {
			var sum, squares float64
			for _, name := range names {
				x := float64(c.last[name][i])
				sum, squares = sum+x, squares+x*x
			}
			mean := sum / float64(len(names))
			c.lie[i] = float32(mean - z*math.Sqrt(max(squares/float64(len(names))-mean*mean, 0)))
		}
	}
	copy(u.Delta, c.lie)
}

// hostile returns a function that replaces the updates of a fifth of the clients.
func (x besieged) hostile(names []string, bound float32) func(fed.Task, *fed.Update) {
	slices.Sort(names)
	bad := map[string]bool{}
	for i := 0; i < len(names); i += 5 {
		bad[names[i]] = true
	}
	c := &crowd{}
	return func(task fed.Task, u *fed.Update) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.at(task.Round)
		if !bad[string(u.Client)] {
			c.now[string(u.Client)] = slices.Clone(u.Delta)
			return
		}
		switch x.attack {
		case "flipped": // flips the update and scales it to the maximum norm
			by := -1.0
			if norm := normOf(u.Delta); task.Limits.Norm > 0 && norm > 0 {
				by = -task.Limits.Norm / norm
			}
			scale(u, float32(by))
		case "100 times":
			scale(u, -100)
		case "alie":
			c.alie(u, len(names), len(bad))
		}
		clamp(u.Delta, bound) // a server rejects numbers beyond the bound
	}
}

func normOf(x []float32) float64 {
	var sum float64
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	return math.Sqrt(sum)
}

// run returns the error at the end of the run.
func (x besieged) run(t *testing.T, b *runner, d *series.Dataset, s settings) float64 {
	t.Helper()
	s = maps.Clone(s)
	s["seed"], s["server.robust"] = int(x.seed), x.robust
	s["evaluate.every"], s["evaluate.clients"], s["evaluate.forecasts"] = s["rounds"].(int)-1, d.Len(), 0
	s["privacy.mode"], s["privacy.keepers"], s["privacy.least"] = "private", []string{"auditor"}, 2
	p := s.plan(t)
	if x.attack == "" {
		return finalError(t, b, p, d, nil)
	}
	var names []string
	for i := range d.Len() {
		names = append(names, d.Meter(i).ID)
	}
	return finalError(t, b, p, d, x.hostile(names, float32(p.Server.Bound)))
}

// TestRobustPrivate checks that if a fifth of the clients flip their updates, the error of a
// private plan with robust nearest increases by at most a tenth. The long test also prints the
// errors with ALIE, and the cost of nearest without hostile clients. If only norms are checked,
// the simulator scales a longer update down to the limit, whereas a keeper would refuse it.
func TestRobustPrivate(t *testing.T) {
	if testing.Short() {
		t.Skip("trains for more than a second")
	}
	seeds := []uint64{1}
	if testkit.Long() {
		seeds = append(seeds, 2, 3)
	}
	b := newRunner(t)
	t.Run("generated", func(t *testing.T) { besiege(t, b, dataset(t, houses(t, 20)...), settling("fedavg", 20, 160), seeds) })
	if testkit.Long() {
		hog := settings{"name": "robust", "algorithm": "fedavg", "model.name": "dense", "partition": "none", "rounds": 40}
		t.Run("hog-core42", func(t *testing.T) { besiege(t, b, poisoning{Data: "hog-core42"}.dataset(t), hog, seeds) })
	}
}

// besiege prints the errors of runs with each attack, relative to the error with checked norms
// and without hostile clients.
func besiege(t *testing.T, b *runner, d *series.Dataset, s settings, seeds []uint64) {
	t.Helper()
	measured := func(robust, attack string) float64 {
		var all []float64
		for _, seed := range seeds {
			x := besieged{robust, attack, seed}
			all = append(all, x.run(t, b, d, s))
			t.Logf("%+v: %.4f", x, all[len(all)-1])
		}
		return average(all)
	}
	clean := measured("none", "")
	var line strings.Builder
	fmt.Fprintf(&line, "clean %.3f; times that, with checked norms alone and with nearest:", clean)
	for _, attack := range []string{"flipped", "100 times", "alie", ""} {
		if attack != "flipped" && !testkit.Long() {
			continue
		}
		mean, nearest := 1.0, measured("nearest", attack)/clean
		if attack != "" {
			mean = measured("none", attack) / clean
		}
		label := attack
		if label == "" {
			label = "no hostile clients"
		}
		fmt.Fprintf(&line, " %s %.3f %.3f;", label, mean, nearest)
		if (attack == "flipped" || attack == "100 times") && !(nearest <= 1.1) {
			t.Errorf("%s: the error with nearest is %.3f times that of the clean run, want at most 1.1", attack, nearest)
		}
		if attack == "flipped" && !(nearest < mean) {
			t.Errorf("nearest has %.3f and checked norms alone %.3f, so this attack shows nothing", nearest, mean)
		}
	}
	t.Log(line.String())
}
