package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"loadstar/internal/testkit"
)

// killPlans are plans whose checkpoints contain different kinds of state. Each trains for
// about a second.
var killPlans = []struct{ name, plan string }{
	{"fedadam", "algorithm: fedadam\npartition: head\nrounds: 80\nschedule: {cohort: 4}\nsimulate: {step_time: 1s, speed_spread: 1}\n"},
	{"scaffold", "algorithm: scaffold\npartition: head\nrounds: 80\nschedule: {cohort: 4, over_selection: 0.5, deadline: 6s}\nsimulate: {step_time: 1s, speed_spread: 1, dropout: 0.1}\n"},
	{"fedavgadaptive", "algorithm: fedavgadaptive\nrounds: 80\nschedule: {cohort: 4}\n"},
	{"fedsim", "algorithm: fedsim\npartition: head\nrounds: 80\nschedule: {cohort: 4}\nserver: {clients: 0.1, batch: 32}\nevaluate: {holdout: 0.2, fine_tune: {steps: 10}, every: 10}\nclient: {steps: 4, batch: 16}\n"},
	{"fednorm", "algorithm: fednorm\nrounds: 80\nschedule: {cohort: 5}\nclient: {steps: 4, batch: 16}\nsimulate: {delayed: 0.6}\n"},
	{"fedbuff", "algorithm: fedbuff\npartition: head\nrounds: 80\nschedule: {cohort: 4, buffer: 2}\nserver: {optimizer: fedyogi}\nsimulate: {step_time: 1s, speed_spread: 1, dropout: 0.1}\n"},
	{"fedasync", "algorithm: fedasync\nrounds: 100\nschedule: {cohort: 4}\nsimulate: {step_time: 1s, speed_spread: 1}\n"},
	{"pfedme", "algorithm: pfedme\nrounds: 60\nschedule: {cohort: 3}\nclient: {steps: 4, batch: 16}\nevaluate: {fine_tune: {steps: 5}}\n"},
	{"dense", "algorithm: fedavg\nmodel: {name: dense, targets: 24}\nrounds: 60\nschedule: {cohort: 4}\nevaluate: {every: 20}\n"},
	{"local", "algorithm: local\nrounds: 60\n"},
	{"pooled", "algorithm: pooled\nrounds: 80\nclient: {steps: 10}\n"},
}

const killModel = "model: {name: fekri2023, lookback: 6, targets: 2, split: {train: 0.7, validation: 0.15}}\n"

// TestKilled kills simulations with SIGKILL at random points and continues them with
// --resume. It kills each plan at least LOADSTAR_KILLS times. The final files must be
// byte-identical to those of an uninterrupted run.
func TestKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("starts hundreds of processes")
	}
	kills := testkit.Pick(4, 20)
	if s := os.Getenv("LOADSTAR_KILLS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal("LOADSTAR_KILLS:", err)
		}
		kills = n
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("LOADSTAR_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal("LOADSTAR_SEED:", err)
		}
		seed = n
	}
	t.Logf("LOADSTAR_SEED=%d", seed)
	dir := t.TempDir()
	k := &killer{dir: dir, data: filepath.Join(dir, "fleet.prepared"), rng: rand.New(rand.NewPCG(seed, 1))}
	mustRun(t, dir, "data", "generate", "--meters", "8", "--days", "40", "-o", "fleet")
	mustRun(t, dir, "data", "prepare", "fleet", "-o", k.data)
	for _, c := range killPlans {
		t.Run(c.name, func(t *testing.T) { k.family(t, c.name, c.plan, kills) })
	}
}

// mustRun runs loadstar and returns its output. The command is this test's binary under another
// name, which testscript.Main has added to the PATH.
func mustRun(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("loadstar", args...)
	cmd.Dir = dir
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("loadstar %v: %v\n%s", args, err, &problems)
	}
	return out.String()
}

type killer struct {
	dir, data string
	rng       *rand.Rand
}

func (k *killer) family(t *testing.T, name, plan string, kills int) {
	path := filepath.Join(k.dir, name+".yaml")
	plan = "name: " + name + "\n" + plan
	if !strings.Contains(plan, "model:") {
		plan += killModel
	}
	if !strings.Contains(plan, "client:") {
		plan += "client: {steps: 4, batch: 16}\n"
	}
	if !strings.Contains(plan, "evaluate:") {
		plan += "evaluate: {every: 10}\n"
	}
	if err := os.WriteFile(path, []byte(plan), 0o644); err != nil {
		t.Fatal(err)
	}
	args := func(out string) []string {
		return []string{"simulate", path, "--data", k.data, "--save", "0s", "--json", "--quiet", "--out", out}
	}
	steady := filepath.Join(k.dir, name+"-steady")
	start := time.Now()
	want := resultOf(t, mustRun(t, k.dir, args(steady)...))
	took := time.Since(start)
	files := runFiles(t, steady)

	compare := func(out, printed string, kills int) {
		t.Helper()
		if got := resultOf(t, printed); got != want {
			t.Fatalf("after %d kills: %v, uninterrupted %v", kills, got, want)
		}
		got := runFiles(t, out)
		for file := range got {
			if _, ok := files[file]; !ok {
				t.Errorf("after %d kills there is an extra file %s", kills, file)
			}
		}
		for file, content := range files {
			if got[file] != content {
				t.Errorf("after %d kills, %s differs", kills, file)
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}

	done, runs, inTraining := 0, 0, 0
	var out string
	for ; done < kills; runs++ {
		out = filepath.Join(k.dir, fmt.Sprintf("%s-%d", name, runs))
		for over := false; !over; {
			a := args(out)
			if _, err := os.Stat(filepath.Join(out, "plan.yaml")); err == nil {
				a = append(a, "--resume")
			}
			wait := after(k.upTo(100*time.Millisecond + took/4)) // short enough for several kills per run
			switch {
			case done >= kills:
				wait = after(time.Minute)
			case done%2 == 1:
				// On a busy machine, a process may not start training within that time, so wait for
				// a checkpoint instead.
				wait = afterProgress(filepath.Join(out, "checkpoint"), k.upTo(20*time.Millisecond))
			}
			printed, killed := runUntil(t, k.dir, wait, a)
			if over = !killed; over {
				compare(out, printed, done)
			} else {
				done++
			}
		}
		for _, round := range resumes(t, out) {
			if round > 0 && round < want.Rounds {
				inTraining++
			}
		}
	}

	// The work after the last round is short, so random kills rarely hit it. Kill a process
	// during that work on purpose.
	again := append(args(out), "--resume")
	start = time.Now()
	compare(out, mustRun(t, k.dir, again...), done)
	end := time.Since(start)
	inScoring := 0
	for range kills / 4 {
		if _, killed := runUntil(t, k.dir, after(k.upTo(end)), again); killed {
			inScoring++
		}
	}
	compare(out, mustRun(t, k.dir, again...), done+inScoring)
	t.Logf("%s: kills %d, identical (%d of them within training; %d more in the end; %d runs, uninterrupted %.1f s)",
		name, done, inTraining, inScoring, runs, took.Seconds())
	if inTraining < done/4 {
		t.Errorf("%s: only %d of %d kills hit a run during training", name, inTraining, done)
	}
}

// upTo returns a few milliseconds plus a random time up to d.
func (k *killer) upTo(d time.Duration) time.Duration {
	return 5*time.Millisecond + time.Duration(k.rng.Int64N(int64(d)))
}

// resumes returns the rounds at which the run was resumed.
func resumes(t *testing.T, dir string) []int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var rounds []int
	for line := range strings.Lines(string(text)) {
		var e struct {
			Event string
			Data  struct{ Round int }
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(line, err)
		}
		if e.Event == "begin" {
			rounds = append(rounds, e.Data.Round)
		}
	}
	return rounds[1:]
}

// A moment waits until it is time to kill a process, or until the process has ended.
type moment func(ended <-chan struct{})

// after returns a moment that waits until d after the start of the process.
func after(d time.Duration) moment {
	return func(ended <-chan struct{}) {
		select {
		case <-time.After(d):
		case <-ended:
		}
	}
}

// afterProgress returns a moment that waits until the process has written the file again,
// and then for the duration d.
func afterProgress(file string, d time.Duration) moment {
	written := func() time.Time {
		info, err := os.Stat(file)
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	before := written()
	return func(ended <-chan struct{}) {
		for written().Equal(before) {
			select {
			case <-time.After(time.Millisecond):
			case <-ended:
				return
			}
		}
		after(d)(ended)
	}
}

// runUntil runs loadstar and kills it at the given moment, unless it has ended by then.
func runUntil(t *testing.T, dir string, kill moment, args []string) (printed string, killed bool) {
	t.Helper()
	cmd := exec.Command("loadstar", args...)
	cmd.Dir = dir
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	var killing sync.WaitGroup
	killing.Go(func() {
		kill(ended)
		_ = cmd.Process.Kill() // fails only if the process has ended
	})
	err := cmd.Wait()
	close(ended)
	killing.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return "", true
	}
	if err != nil {
		t.Fatalf("loadstar %v: %v\n%s", args, err, &problems)
	}
	return out.String(), false
}

// result contains the fields of a run's JSON summary that are not measured values.
type result struct {
	Weights     string `json:"weights_sha256"`
	Rounds      int    `json:"rounds"`
	Steps       int64  `json:"steps"`
	RelativeMAE struct {
		Mean, Median float64
		BelowOne     float64 `json:"below_one"`
	} `json:"relative_mae"`
}

func resultOf(t *testing.T, printed string) result {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(printed, "\n"), "\n")
	var s result
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &s); err != nil || len(s.Weights) != 64 || s.Rounds == 0 || s.Steps == 0 {
		t.Fatalf("the last line is no summary: %v\n%s", err, printed)
	}
	return s
}

// runFiles reads the files that must be the same in all runs of a plan: all except the
// event log, the state for --resume and the measurements.
func runFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		if err != nil || e.IsDir() || slices.Contains([]string{"events.jsonl", "checkpoint", "kept.bin", "lock"}, name) {
			return err
		}
		b, err := os.ReadFile(path)
		if name == "summary.json" && err == nil {
			var s map[string]any
			err = json.Unmarshal(b, &s)
			for _, measured := range []string{"seconds", "steps_per_s", "engine_share", "rss_bytes"} {
				delete(s, measured)
			}
			b = fmt.Append(nil, s) // fmt prints maps sorted by key
		}
		files[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestInterrupted checks that Ctrl-C prints the round at which the run resumes, and that
// --resume continues there.
func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	mustRun(t, dir, "data", "generate", "--meters", "4", "--days", "30", "-o", "fleet")
	plan := "name: long\nalgorithm: fedavg\nrounds: 100000\nclient: {steps: 1, batch: 8}\nevaluate: {every: 0}\n" + killModel
	if err := os.WriteFile(filepath.Join(dir, "long.yaml"), []byte(plan), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("loadstar", "simulate", "long.yaml", "--data", "fleet", "--save", "0s", "--quiet")
	cmd.Dir = dir
	var problems bytes.Buffer
	cmd.Stderr = &problems
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	checkpoint := filepath.Join(dir, "runs", "long", "checkpoint")
	for start := time.Now(); time.Since(start) < 5*time.Minute; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(checkpoint); err == nil {
			break
		}
	}
	// A second process cannot resume a run while the first is running.
	second := exec.Command("loadstar", "simulate", "long.yaml", "--data", "fleet", "--quiet", "--resume")
	second.Dir = dir
	if out, err := second.CombinedOutput(); err == nil || !strings.Contains(string(out), "another process is using this run") {
		t.Errorf("%v: %s", err, out)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(problems.String(), "continue from round") {
		t.Errorf("%v: %s", err, &problems)
	}
}
