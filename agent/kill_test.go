package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// childEnv names the environment variable that makes the test binary an agent process for
// TestKill.
const childEnv = "LOADSTAR_AGENT_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(m.Run())
	}
	child()
}

// The numbers of agents and meters in TestKill.
const killedAgents, killedMeters = 2, 7

// child is the main function of an agent process. It runs until the process is killed.
func child() {
	t := &testing.B{} // helper functions need a testing.TB; a failure ends the process
	i, _ := strconv.Atoi(os.Getenv(childEnv))
	c := config(t, fmt.Sprint("agent ", i), os.Getenv("LOADSTAR_SERVER"), os.Getenv("LOADSTAR_DIR"), part(t, meters(t, killedMeters), i, killedAgents))
	c.Workers = 1 + i
	if err := Run(context.Background(), c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestKill checks that every result is counted at most once while agents on an unreliable
// network are killed repeatedly. Shared weights and personal values must be the same as in a
// run without kills.
func TestKill(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a while")
	}
	d := meters(t, killedMeters)
	for name, plan := range map[string]settings{
		"fedavg, head":   small("fedavg", settings{"partition": "head", "rounds": 12}),
		"scaffold, head": small("scaffold", settings{"partition": "head", "rounds": 12, "client.lr": 0.05}),
		"dense":          dense(settings{"rounds": 12}),
	} {
		for _, fold := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, fold %v", name, fold), func(t *testing.T) {
				t.Parallel()
				seed := uint64(time.Now().UnixNano())
				t.Logf("seed %d", seed)
				g := newGateway(t, plan, namesOf(d), 5, fold, seed)
				g.inject(chaos{reply: 0.1, cut: 0.3, forget: 0.2, late: 0.3, slowCount: 0.5})
				dirs := []string{t.TempDir(), t.TempDir()}
				kills := make(chan int, killedAgents)
				for i := range killedAgents {
					rng := rand.New(rand.NewPCG(seed, uint64(i)))
					go func() {
						n := 0
						for ; ; n++ {
							if !killOne(t, g, i, dirs[i], 20*time.Millisecond+time.Duration(rng.ExpFloat64()*float64(250*time.Millisecond))) {
								break
							}
						}
						kills <- n
					}()
				}
				total := 0
				for range killedAgents {
					total += <-kills
				}
				var stops []func()
				for i, dir := range dirs {
					stops = append(stops, start(t, config(t, fmt.Sprint("agent ", i), g.http.URL, dir, part(t, d, i, killedAgents))))
				}
				g.settled(t, 5*time.Minute)
				for _, stop := range stops {
					stop()
				}
				kept := replay(t, g.text, d, g.log)
				for i, dir := range dirs {
					checkKept(t, g.run, dir, part(t, d, i, killedAgents), kept)
				}
				t.Logf("%d kills, %v", total, g.forms)
				if total < 2 { // a fast machine needs only a second for all rounds
					t.Errorf("only %d kills", total)
				}
			})
		}
	}
}

// killOne runs an agent for the given time and then kills it, unless all rounds are
// finished. It reports whether it killed the agent.
func killOne(t *testing.T, g *gateway, i int, dir string, after time.Duration) bool {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", childEnv, i), "LOADSTAR_SERVER="+g.http.URL, "LOADSTAR_DIR="+dir)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return false
	}
	over := false
	select {
	case <-time.After(after):
	case <-g.done:
		over = true
	}
	cmd.Process.Kill() // fails if the process has already ended
	cmd.Wait()         // returns an error because the process was killed
	if code := cmd.ProcessState.ExitCode(); code != -1 {
		t.Errorf("the agent ended by itself with %d", code)
		return false
	}
	return !over
}
