package round

import (
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"loadstar/fed"
	"loadstar/fed/recipe"
)

// drawScheduler returns a random scheduler that a plan for the given fleet can have.
func drawScheduler(t *rapid.T, fleet int) fed.Scheduler {
	running := rapid.IntRange(1, fleet).Draw(t, "cohort")
	switch rapid.SampledFrom([]string{"synchronous", "buffered", "periodic"}).Draw(t, "kind") {
	case "synchronous":
		return recipe.Synchronous{
			Cohort: running, Asked: rapid.IntRange(running, fleet).Draw(t, "asked"),
			Quorum:   rapid.IntRange(0, running).Draw(t, "quorum"),
			Deadline: time.Duration(rapid.IntRange(0, 20).Draw(t, "deadline")) * time.Second,
		}
	case "buffered":
		return recipe.Buffered{Running: running, Buffer: rapid.IntRange(1, fleet).Draw(t, "buffer")}
	}
	return recipe.Periodic{Running: running, Period: time.Duration(rapid.IntRange(1, 10).Draw(t, "period")) * time.Second}
}

// TestMachine drives machines through random runs. It checks that a busy client is never asked,
// and that no client is asked twice in a round. A machine that is restored from saved state at
// any point must make the same decisions as a machine that was never interrupted.
func TestMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fleet := rapid.IntRange(1, 12).Draw(t, "fleet")
		scheduler := drawScheduler(t, fleet)
		seed := rapid.Uint64().Draw(t, "seed")
		steady, crashing := NewMachine(scheduler, seed, fleet), NewMachine(scheduler, seed, fleet)
		var (
			now            time.Duration
			running        []Assignment
			busy           = map[int]bool{} // training, or waiting for a merge
			asked          = map[[2]int]bool{}
			version, count int
			lost           int
		)
		equal := func(what string, a, b any) {
			if !reflect.DeepEqual(a, b) {
				t.Fatalf("%s: %v, and after crashes %v", what, a, b)
			}
		}
		take := func(t *rapid.T) (Assignment, bool) {
			if len(running) == 0 {
				return Assignment{}, false
			}
			i := rapid.IntRange(0, len(running)-1).Draw(t, "who")
			a := running[i]
			running = slices.Delete(running, i, i+1)
			return a, true
		}
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) {
				got := steady.Ask(now)
				equal("asked", got, crashing.Ask(now))
				for i, a := range got {
					switch {
					case a.Client < 0 || a.Client >= fleet || i > 0 && a.Client <= got[i-1].Client:
						t.Fatalf("asked %v of a fleet of %d", got, fleet)
					case busy[a.Client]:
						t.Fatalf("client %d is asked although it is busy", a.Client)
					case asked[[2]int{a.Round, a.Client}]:
						t.Fatalf("client %d is asked twice in round %d", a.Client, a.Round)
					case a.Round != steady.Round() || a.Version != version:
						t.Fatalf("%v in round %d, version %d", a, steady.Round(), version)
					}
					busy[a.Client], asked[[2]int{a.Round, a.Client}] = true, true
				}
				running = append(running, got...)
			},
			"return": func(t *rapid.T) {
				a, ok := take(t)
				if !ok {
					return
				}
				for range rapid.IntRange(1, 2).Draw(t, "times") { // a repeated call must have no effect
					v := steady.Return(a)
					equal("verdict", v, crashing.Return(a))
					if v != Counted {
						t.Fatalf("the update of %v is rejected", a)
					}
				}
				count++
			},
			"lose": func(t *rapid.T) {
				a, ok := take(t)
				if !ok {
					return
				}
				steady.Lose(a)
				crashing.Lose(a)
				steady.Lose(a) // a repeated call must have no effect
				delete(busy, a.Client)
				if a.Round == steady.Round() {
					lost++
				}
			},
			"strange": func(t *rapid.T) { // an assignment that was never made
				a := Assignment{Client: rapid.IntRange(0, fleet-1).Draw(t, "client"), Round: steady.Round() + 1, Version: version}
				equal("verdict", Closed, steady.Return(a))
				steady.Lose(a)
			},
			"wait": func(t *rapid.T) {
				now += time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond
				at, ok := steady.Wake(now)
				at2, ok2 := crashing.Wake(now)
				equal("wake", fmt.Sprint(at, ok), fmt.Sprint(at2, ok2))
			},
			"close": func(t *rapid.T) {
				r := steady.Round()
				o, ok := steady.Close(now)
				o2, ok2 := crashing.Close(now)
				equal("closed", ok, ok2)
				equal("outcome", o, o2)
				if !ok {
					return
				}
				if o.Round != r || o.Version != version || len(o.Counted) != count || o.Lost != lost || o.Merged && count == 0 {
					t.Fatalf("%+v; %d were counted and %d lost in round %d of version %d", o, count, lost, r, version)
				}
				if o.Merged {
					version++
				}
				for _, a := range o.Counted {
					delete(busy, a.Client)
				}
				if !scheduler.Carries() {
					if o.Late != len(running) || o.Late+o.Lost+len(o.Counted) != o.Asked {
						t.Fatalf("%+v; %d were training", o, len(running))
					}
					for _, a := range running {
						equal("verdict of the late", Closed, steady.Return(a))
						delete(busy, a.Client)
					}
					running = nil
				}
				count, lost = 0, 0
			},
			"crash": func(t *rapid.T) {
				b, err := json.Marshal(crashing)
				if err != nil {
					t.Fatal(err)
				}
				crashing = NewMachine(scheduler, seed, fleet)
				if err := json.Unmarshal(b, crashing); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				equal("running", inOrder(steady.running), inOrder(crashing.running))
				if n := len(steady.running); n != len(running) {
					t.Fatalf("%d are running, want %d", n, len(running))
				}
			},
		})
	})
}

// TestEveryRoundCloses checks that a round ends when no client is training and no client
// can be asked, even if all clients are lost.
func TestEveryRoundCloses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fleet := rapid.IntRange(1, 8).Draw(t, "fleet")
		m := NewMachine(drawScheduler(t, fleet), 1, fleet)
		dropout := rapid.SampledFrom([]float64{0.2, 0.7, 1}).Draw(t, "dropout")
		var now time.Duration
		for r := range 20 {
			for step := 0; m.Round() == r; step++ {
				if step > 10*fleet {
					t.Fatalf("round %d does not end: %v is running", r, inOrder(m.running))
				}
				m.Ask(now)
				for _, a := range inOrder(m.running) {
					if fed.Rand(7, "dropout", a.Round, fed.ClientID(fmt.Sprint(a.Client))).Float64() < dropout {
						m.Lose(a)
					} else {
						m.Return(a)
					}
				}
				if at, ok := m.Wake(now); ok {
					now = at
				}
				m.Close(now)
			}
		}
	})
}

// The cost of Ask depends on the size of the cohort, not on the size of the fleet.
func TestAskInLargeFleet(t *testing.T) {
	const fleet, cohort = 10_000_000, 100
	m := NewMachine(recipe.Synchronous{Cohort: cohort}, 1, fleet)
	best := time.Hour // the minimum excludes the effect of other load
	var before, after runtime.MemStats
	for range 10 {
		runtime.ReadMemStats(&before)
		start := time.Now()
		asked := m.Ask(0)
		best = min(best, time.Since(start))
		runtime.ReadMemStats(&after)
		if len(asked) != cohort {
			t.Fatalf("asked %d", len(asked))
		}
		for _, a := range asked {
			m.Return(a)
		}
		if _, ok := m.Close(0); !ok {
			t.Fatal("the round did not close")
		}
		if grew := after.TotalAlloc - before.TotalAlloc; grew > 100<<10 {
			t.Errorf("%d bytes for a cohort of %d", grew, cohort)
		}
	}
	if best > time.Millisecond {
		t.Errorf("Ask takes %s", best)
	}
	t.Logf("%s for %d of %d", best, cohort, fleet)
}

// All idle clients are equally likely to be asked, even while other clients are busy.
func TestCohortsAreFair(t *testing.T) {
	for _, c := range []struct{ fleet, cohort int }{{20, 3}, {20, 15}} { // both code paths of draw
		m := NewMachine(recipe.Synchronous{Cohort: c.cohort}, 5, c.fleet)
		times := make([]float64, c.fleet)
		const rounds = 4000
		for range rounds {
			for _, a := range m.Ask(0) {
				times[a.Client]++
				m.Return(a)
			}
			m.Close(0)
		}
		want := rounds * float64(c.cohort) / float64(c.fleet)
		for i, n := range times {
			if n < 0.85*want || n > 1.15*want { // more than 4 standard deviations
				t.Errorf("%d of %d: client %d was asked %v times, want about %v", c.cohort, c.fleet, i, n, want)
			}
		}
	}
}

func TestMachineRejectsAnotherFleet(t *testing.T) {
	m := NewMachine(recipe.Synchronous{Cohort: 5}, 1, 5)
	m.Ask(0)
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text string
		want string
	}{
		"smaller fleet": {string(b), "want a client below 3"},
		"not JSON":      {"{", "round:"},
		"future":        {`{"format":1,"running":[{"client":1,"round":7}]}`, "client 1 of round 7"},
		"no client":     {`{"format":1,"waiting":[{"client":-1}]}`, "client -1"},
	} {
		other := NewMachine(recipe.Synchronous{Cohort: 3}, 1, 3)
		if err := other.UnmarshalJSON([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if len(other.running) != 0 || other.Round() != 0 {
			t.Errorf("%s: the machine has changed", name)
		}
	}
}
