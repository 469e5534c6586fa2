package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"loadstar/internal/testkit"
)

const dayPlan = `name: day
algorithm: fedavg
rounds: ROUNDS
model: {name: dense, targets: 24}
client: {steps: 40}
evaluate: {every: 2}
`

// train trains a model with all clients of the fleet, and returns the run and the output of
// run watch.
func (f *town) train(rounds int) (run, watched string) {
	f.Helper()
	plan := strings.Replace(dayPlan, "ROUNDS", strconv.Itoa(rounds), 1)
	if err := os.WriteFile(filepath.Join(f.dir, "plan.yaml"), []byte(plan), 0o600); err != nil {
		f.Fatal(err)
	}
	run = f.loadstar("run", "start", "plan.yaml", "--wait-for", strconv.Itoa(2*len(f.agents)))
	return run, f.loadstar("run", "watch", run)
}

// TestReleases trains a model with a fleet of agents that make forecasts, and releases good and
// bad models to the fleet. The server and the agents are separate processes.
func TestReleases(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server and agents")
	}
	f := newFleet(t, testkit.Pick(3, 6), testkit.Pick(140, 200))

	// The watched run shows the decreasing validation error and the remaining time.
	run, watched := f.train(testkit.Pick(14, 24)) // enough that no client refuses the model by chance
	found := regexp.MustCompile(`(?m)^round (\d+) of \d+ merged: .*, relative MAE ([0-9.]+)`).FindAllStringSubmatch(watched, -1)
	if len(found) < 3 {
		t.Fatalf("run watch:\n%s", watched)
	}
	var errors []float64
	for _, x := range found {
		e, err := strconv.ParseFloat(x[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		errors = append(errors, e)
	}
	if !(errors[len(errors)-1] < 0.9*errors[0]) || !regexp.MustCompile(`relative MAE [0-9.]+ \(-[0-9.]+\), .*, about \S+ left`).MatchString(watched) {
		t.Errorf("run watch shows no lower error or no time left:\n%s", watched)
	}
	t.Logf("run watch:\n%s", watched)

	// All clients use the release, including those of an agent that is killed during the
	// comparison.
	victim := f.agents[len(f.agents)-1]
	if got := f.loadstar("release", "create", run, "--name", "day"); got != "day@1" {
		t.Errorf("released %q", got)
	}
	testkit.Within(f, patience, "the release arrives", func() bool { return strings.Contains(f.read(victim.name+".log"), "received a model") })
	for k := range testkit.Pick(3, 30) {
		if k > 0 {
			victim.start()
			time.Sleep(time.Duration(k*k) * 20 * time.Millisecond)
		}
		victim.kill()
	}
	t.Logf("%d of %d clients had compared the release when their agent was killed last",
		strings.Count(f.read(victim.name+".log"), "the client uses a new model"), len(victim.clients))
	victim.start()
	before := f.all(f.agents, "day@1", run)

	// A second model is spoiled. Every client refuses it and keeps its forecasts.
	bad, _ := f.train(2)
	f.spoil(bad, 3)
	f.loadstar("release", "create", bad, "--name", "day")
	for _, a := range f.agents {
		testkit.Within(f, patience, a.name+" refuses day@2", func() bool { return reflect.DeepEqual(a.model("day@2").Refused, a.clients) })
		if text := a.status(); strings.Count(text, "; refused day@2, which would be worse") != len(a.clients) {
			t.Errorf("status of %s:\n%s", a.name, text)
		}
	}
	for client, now := range f.all(f.agents, "day@1", run) {
		if now.Cutoff == before[client].Cutoff && !reflect.DeepEqual(now, before[client]) {
			t.Errorf("the forecast of %s was\n%+v\nand became\n%+v", client, before[client], now)
		}
	}

	// The bad release is withdrawn, and the earlier version released again.
	f.loadstar("release", "withdraw", "day@2")
	if got := f.loadstar("release", "create", run, "--name", "day"); got != "day@3" {
		t.Errorf("released %q", got)
	}
	f.all(f.agents, "day@3", run)
	for _, a := range f.agents {
		if m := a.model("day@2"); m.Release != "" {
			t.Errorf("%s still has the withdrawn release: %+v", a.name, m)
		}
	}

	// An agent that is offline during a withdrawal uses the release until it reconnects.
	away, others := f.agents[0], f.agents[1:]
	away.stop()
	f.loadstar("release", "withdraw", "day@3")
	f.all(others, "day@1", run)
	if text := away.status(); strings.Count(text, "model day@3 ") != len(away.clients) || !strings.Contains(text, "the agent is not running") {
		t.Errorf("status of the agent that is offline:\n%s", text)
	}
	away.start()
	f.all([]*forecaster{away}, "day@1", run)
	if list := f.loadstar("release", "list"); !regexp.MustCompile(`(?m)^day@3 .* withdrawn \S+ ago$`).MatchString(list) || !regexp.MustCompile(`(?m)^day@1 .* offered$`).MatchString(list) {
		t.Errorf("release list:\n%s", list)
	}
	for _, a := range f.agents {
		a.stop()
		if log := f.read(a.name + ".log"); strings.Contains(log, "level=ERROR") {
			t.Errorf("%s reports errors:\n%s", a.name, log)
		}
	}
}
