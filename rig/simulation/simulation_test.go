package simulation

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seeds      = flag.Int("seeds", 30, "number of seeds")
	first      = flag.Uint64("first", 1, "first seed")
	trace      = flag.String("trace", "", "write the trace of the first seed to this file")
	verbose    = flag.Bool("log", false, "print what the parts log")
	allPrivate = flag.Bool("private", false, "let all seeds be private")
	failFast   = flag.Bool("failfast", false, "end with the first seed that fails")
	shrunk     = flag.Bool("shrink", true, "shrink the faults of the first seed that fails")
)

// totals adds up the results of all seeds.
type totals struct {
	sync.Mutex
	seeds, faults, steps int
	virtual              time.Duration
	byKind               map[kind]int
	byState              map[string]int
	violations           int
}

var sum = totals{byKind: map[kind]int{}, byState: map[string]int{}}

func TestMain(m *testing.M) {
	flag.Parse()
	debug.SetGCPercent(400) // a world's memory is small and short-lived
	begun := time.Now()
	code := m.Run()
	if sum.seeds > 0 {
		for _, k := range kinds {
			fmt.Printf("%8d  %s\n", sum.byKind[k], k)
		}
		fmt.Printf("%d steps, %.1f hours of the fleet's time in %.0f s; runs %v\n", sum.steps, sum.virtual.Hours(), time.Since(begun).Seconds(), sum.byState)
		fmt.Printf("seeds %d, faults %d, violations %d\n", sum.seeds, sum.faults, sum.violations)
	}
	os.Exit(code)
}

// references contains the results of fleets without faults, by setting.
var references sync.Map

// reference returns the result of a setting without faults.
func reference(t *testing.T, set setting) string {
	once, _ := references.LoadOrStore(set.key(), sync.OnceValue(func() string {
		calm := set.calm()
		calm.region, calm.stable = false, true
		return simulate(t, 1, calm, nil).result
	}))
	return once.(func() string)()
}

// try simulates a seed and compares its result with that of a fleet without faults.
func try(t *testing.T, seed uint64, set setting, only map[string]bool) outcome {
	t.Helper()
	out := simulate(t, seed, set, only)
	if out.violation == "" && set.exact {
		if want := reference(t, set); out.result != want {
			out.violation = fmt.Sprintf("weights or personal layers differ from those without faults: %s, want %s", out.result, want)
		}
	}
	return out
}

// TestSeeds simulates a fleet for each seed, in the order of the seeds, and checks that there
// are no violations.
func TestSeeds(t *testing.T) {
	var next atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			for i := next.Add(1) - 1; i < int64(*seeds); i = next.Add(1) - 1 {
				seed := *first + uint64(i)
				out := try(t, seed, choose(seed), nil)
				sum.add(out)
				if i == 0 && *trace != "" {
					write(t, *trace, []byte(strings.Join(out.lines, "\n")+"\n"))
				}
				if len(out.racy) > 0 {
					t.Errorf("two calls of seed %d have one name, so their order is left to chance: %s", seed, out.racy[0])
				}
				if out.violation != "" {
					if *failFast {
						next.Store(int64(*seeds))
					}
					report(t, seed, out)
				}
			}
		})
	}
}

func (s *totals) add(out outcome) {
	s.Lock()
	defer s.Unlock()
	s.seeds++
	s.steps += out.steps
	s.virtual += out.virtual
	s.byState[out.state]++
	for k, n := range out.faults {
		s.byKind[k] += n
		s.faults += n
	}
	if out.violation != "" {
		s.violations++
	}
}

// shrinking makes sure that only the first failure is shrunk, because shrinking takes a long
// time.
var shrinking sync.Once

// report prints a violation, and how to repeat it.
func report(t *testing.T, seed uint64, out outcome) {
	t.Helper()
	how := ""
	if *allPrivate {
		how = " PRIVATE=1"
	}
	t.Errorf("seed %d, step %d, trace %x: %s\nrepeat it with: make simulation SEED=%d%s", seed, out.steps, out.hash, out.violation, seed, how)
	if !*shrunk {
		return
	}
	shrinking.Do(func() {
		small, runs := shrink(t, seed, out)
		t.Logf("shrunk in %d runs from %d faults to %d: %s", runs, len(out.named), len(small.named), small.violation)
		for _, name := range small.named {
			t.Log("  ", name)
		}
		tail := small.lines[max(0, len(small.lines)-15):]
		t.Log("the end of its trace:\n" + strings.Join(tail, "\n"))
	})
}

// shrink looks for a small set of faults with which a seed still fails. It leaves out halves of
// the faults, then quarters, and so on.
func shrink(t *testing.T, seed uint64, out outcome) (best outcome, runs int) {
	const most = 100
	best = out
	for size := max(len(best.named)/2, 1); ; size /= 2 {
		for part := range slices.Chunk(slices.Clone(best.named), size) {
			only := map[string]bool{}
			for _, name := range best.named {
				only[name] = true
			}
			for _, name := range part {
				delete(only, name)
			}
			if runs++; runs > most {
				return best, runs
			}
			if out := try(t, seed, choose(seed), only); out.violation != "" && len(out.named) < len(best.named) {
				best = out
			}
		}
		if size == 1 {
			return best, runs
		}
	}
}

// TestRepeats checks that a seed gives the same trace every time. Long simulations check more
// seeds.
func TestRepeats(t *testing.T) {
	for kind, draw := range map[string]func(uint64) setting{"plain": draw, "private": drawPrivate} {
		for i := range uint64(max(5, *seeds/100)) {
			seed := 1_000_000 + i
			t.Run(fmt.Sprint(kind, " ", seed), func(t *testing.T) {
				t.Parallel()
				one := try(t, seed, draw(seed), nil)
				for range 2 {
					if two := try(t, seed, draw(seed), nil); two.hash != one.hash {
						t.Fatalf("two runs of a seed differ: %s", difference(one.lines, two.lines))
					}
				}
			})
		}
	}
}

// difference returns the first lines in which two traces differ.
func difference(a, b []string) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d:\n%s\n%s", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("they have %d and %d lines", len(a), len(b))
}

// TestEveryFault checks that each kind of fault happens within the first seeds. Faults of
// keepers must happen in a few seeds that have many of them.
func TestEveryFault(t *testing.T) {
	seen := map[kind]bool{}
	many := func(seed uint64) setting {
		set := drawPrivate(seed)
		for _, k := range keeperKinds {
			set.odds[k] = 500
		}
		return set
	}
	try := func(draw func(uint64) setting, seeds uint64, kinds int) {
		for seed := uint64(1); len(seen) < kinds && seed < seeds; seed++ {
			for k := range simulate(t, seed, draw(seed), nil).faults {
				seen[k] = true
			}
		}
	}
	try(draw, 100, len(kinds)-len(keeperKinds))
	try(many, 10, len(kinds))
	if len(seen) < len(kinds) {
		t.Errorf("only these happen: %v", slices.Sorted(maps.Keys(seen)))
	}
}
