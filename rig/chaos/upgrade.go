package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"loadstar/internal/protocol"
	"loadstar/rig/product"
)

// The sizes in an upgrade test. A run with this number of rounds takes some seconds, so that
// there is time to kill it after upgradeAfter rounds.
const (
	upgradeMeters = 6
	upgradeAgents = 2
	upgradeRounds = 20
	upgradeAfter  = 3
)

// simulated lists plans whose checkpoints together contain every kind of state.
var simulated = []plan{
	checkpointed("fedadam", "schedule: {cohort: 4}\n"),
	checkpointed("scaffold", "partition: head\nschedule: {cohort: 3, over_selection: 0.5, deadline: 6s}\n"+slow),
	checkpointed("fedbuff", "partition: head\nschedule: {cohort: 4, buffer: 2}\nserver: {optimizer: fedyogi}\n"+slow),
	checkpointed("fednorm", "schedule: {cohort: 4}\nsimulate: {delayed: 0.6}\n"),
	checkpointed("fedavgadaptive", "schedule: {cohort: 4}\n"),
	checkpointed("fedsim", "partition: head\nschedule: {cohort: 4}\nserver: {clients: 0.1, batch: 32}\n"),
	{"plfl-head", "name: plfl-head\nalgorithm: fedadam\npartition: head\nrounds: 40\nmodel: {name: bose2023}\nevaluate: {every: 5}\nclient: {steps: 1, batch: 16}\n"},
}

// slow is the part of a plan that makes clients return late, or not at all.
const slow = "simulate: {step_time: 1s, speed_spread: 1, dropout: 0.1}\n"

// checkpointed returns a plan with a small model.
func checkpointed(algorithm, more string) plan {
	return plan{algorithm, fmt.Sprintf("name: %[1]s\nalgorithm: %[1]s\nrounds: 80\nmodel: {name: fekri2023, lookback: 6, targets: 2, split: {train: 0.7, validation: 0.15}}\n"+
		"client: {steps: 2, batch: 8}\nevaluate: {every: 10}\n%[2]s", algorithm, more)}
}

// upgrade starts runs with the old binary, kills them, and continues them with the new
// binary.
func upgrade(ctx context.Context, o options, out io.Writer) (err error) {
	if o.old, err = filepath.Abs(o.old); err != nil {
		return err
	}
	data, err := generate(ctx, o.old, o.dir, upgradeMeters)
	if err != nil {
		return err
	}
	for _, p := range simulated {
		round, err := upgradeSimulation(ctx, o, data, p)
		if err != nil {
			return fmt.Errorf("simulate %s: %w", p.name, err)
		}
		fmt.Fprintf(out, "simulate %s: killed after round %d, resumed: identical\n", p.name, round)
	}
	for _, c := range []struct {
		name           string
		server, agents bool // whether to upgrade the server, and the agents
	}{
		{"server and agents", true, true},
		{"server only", true, false},
		{"agents only", false, true},
	} {
		dir := filepath.Join(o.dir, strings.ReplaceAll(c.name, " ", "-"))
		if err := upgradeFleet(ctx, o, dir, data, c.server, c.agents); err != nil {
			return fmt.Errorf("upgrade of %s: %w", c.name, err)
		}
		fmt.Fprintf(out, "upgrade of %s: weights as simulated\n", c.name)
	}
	return nil
}

// upgradeSimulation compares two simulations. The old binary runs one to its end. It also
// starts the other simulation, which the new binary completes. It returns the last round that
// the old binary saved in the second simulation.
func upgradeSimulation(ctx context.Context, o options, data string, p plan) (round int, err error) {
	path, err := p.write(o.dir)
	if err != nil {
		return 0, err
	}
	args := func(out string) []string {
		return []string{"simulate", path, "--data", data, "--out", out, "--save", "0s", "--quiet"}
	}
	steady, broken := filepath.Join(o.dir, p.name+"-steady"), filepath.Join(o.dir, p.name+"-upgraded")
	if _, err := command(ctx, o.old, nil, o.patience, args(steady)...); err != nil {
		return 0, err
	}
	old := &process{name: p.name, bin: o.old, args: args(broken), log: filepath.Join(o.dir, p.name+".log")}
	if err := old.Start(); err != nil {
		return 0, err
	}
	err = await(ctx, o.patience, func() (bool, error) {
		round, err = lastSaved(broken)
		return round >= upgradeAfter, err
	})
	if err := errors.Join(err, old.Kill()); err != nil {
		return 0, err
	}
	if round, err = lastSaved(broken); err != nil {
		return 0, err
	}
	if _, err := os.Stat(filepath.Join(broken, "summary.json")); err == nil || len(old.Exits()) > 0 {
		return 0, errors.New("the run ended before it could be killed; give it more rounds")
	}
	if _, err := command(ctx, o.bin, nil, o.patience, append(args(broken), "--resume")...); err != nil {
		return 0, err
	}
	return round, sameRun(steady, broken)
}

// lastSaved returns the round of the newest checkpoint according to the run's event log.
func lastSaved(dir string) (round int, err error) {
	text, err := os.ReadFile(filepath.Join(dir, "events.jsonl"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	for line := range bytes.Lines(text) {
		var e struct {
			Event string
			Data  struct{ Round int }
		}
		// The process may have written only part of the last line.
		if json.Unmarshal(line, &e) == nil && e.Event == "saved" {
			round = e.Data.Round
		}
	}
	return round, err
}

// sameRun compares the tables and weights of two runs byte by byte. It compares their
// summaries except for measured values such as durations. The second run may have files
// that the older version did not write.
func sameRun(want, got string) error {
	a, err := results(want)
	if err != nil {
		return err
	}
	b, err := results(got)
	if err != nil {
		return err
	}
	for name := range a {
		if a[name] != b[name] {
			err = errors.Join(err, fmt.Errorf("%s differs", filepath.Join(got, name)))
		}
	}
	return err
}

// results reads the files of a run whose contents depend only on the plan and the data.
func results(dir string) (map[string]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || slices.Contains([]string{"events.jsonl", "checkpoint", "kept.bin", "lock"}, e.Name()) {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if e.Name() == "summary.json" {
			var s map[string]any
			if err := json.Unmarshal(b, &s); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			// Measured values differ, and the older version did not write the path.
			for _, key := range []string{"seconds", "steps_per_s", "engine_share", "rss_bytes", "data_path"} {
				delete(s, key)
			}
			b = fmt.Append(nil, s) // fmt sorts the keys
		}
		name, err := filepath.Rel(dir, path)
		files[name] = string(b)
		return err
	})
	return files, err
}

// upgradeFleet starts runs with a server and agents of the old binary, and kills all
// processes after some rounds. Then it restarts the server, the agents, or both with the
// new binary.
func upgradeFleet(ctx context.Context, o options, dir, data string, server, agents bool) (err error) {
	s, err := start(ctx, o.old, dir, layout{agents: upgradeAgents, data: data})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, s.logs(1500))
		}
		err = errors.Join(err, s.Close())
	}()
	token, err := s.command(ctx, "token", "create", "--uses", fmt.Sprint(upgradeAgents))
	if err != nil {
		return err
	}
	for i := range upgradeAgents {
		if err := s.join(ctx, token, i, o.patience); err != nil {
			return err
		}
	}
	const plans = 3 // number of planOf's kinds that earlier versions support
	var references []reference
	for i := range plans {
		p := planOf(i, o.seed, upgradeRounds, upgradeMeters)
		references = append(references, reference{p, o.old, data, ""})
		if err := s.submit(ctx, dir, p, upgradeMeters, o.patience); err != nil {
			return err
		}
	}
	err = await(ctx, o.patience, func() (bool, error) {
		n, err := s.ledger.number(ctx, "SELECT count(*) FROM runs WHERE version >= $1", upgradeAfter)
		return n == plans, err
	})
	if err != nil {
		return err
	}
	if err := s.replaceBinaries(ctx, o, plans, server, agents); err != nil {
		return err
	}
	for i, ref := range references {
		all, err := s.finish(ctx, planOf(i, o.seed, upgradeRounds, upgradeMeters).name, o.patience)
		if err != nil {
			return err
		}
		if same, err := s.same(ctx, all[0], ref, o.patience); err != nil {
			return err
		} else if !same {
			return fmt.Errorf("%s: the weights are not the simulator's", all[0].name)
		}
	}
	if exits := s.exits(); len(exits) > 0 {
		return errors.New(strings.Join(exits, "\n"))
	}
	return nil
}

// replaceBinaries kills all processes, starts them again with the new binary of the server, the
// agents or both, and waits until all agents are back.
func (s *system) replaceBinaries(ctx context.Context, o options, plans int64, server, agents bool) error {
	for _, p := range s.parts() {
		if err := p.Kill(); err != nil {
			return err
		}
	}
	if n, err := s.ledger.number(ctx, "SELECT count(*) FROM runs WHERE state = 'running'"); err != nil || n < plans {
		return errors.Join(fmt.Errorf("only %d of %d runs were left to continue; give them more rounds", n, plans), err)
	}
	if server {
		s.bin = o.bin // the operator's commands also use the new binary
	}
	for _, p := range s.parts() {
		if p := p.(*process); p.kind == kindAgent && agents || p.kind != kindAgent && server {
			p.bin = o.bin
		}
		if err := p.Start(); err != nil {
			return err
		}
	}
	if server {
		oldest := protocol.Oldest
		if agents {
			oldest = protocol.Version
		}
		err := await(ctx, o.patience, func() (bool, error) {
			n, err := s.ledger.number(ctx, "SELECT count(*) FROM agents WHERE protocol BETWEEN $1 AND $2", oldest, protocol.Version)
			return n == upgradeAgents, err
		})
		if err != nil {
			return fmt.Errorf("not all agents announced version %d: %w", oldest, err)
		}
	}
	return nil
}

// await calls reached at intervals until it returns true or an error, or the time limit is
// over.
func await(ctx context.Context, limit time.Duration, reached func() (bool, error)) error {
	for end := time.Now().Add(limit); ; {
		switch ok, err := reached(); {
		case ok:
			return nil
		case time.Now().After(end):
			return errors.Join(fmt.Errorf("nothing to kill within %s", limit), err)
		}
		if product.Sleep(ctx, 5*time.Millisecond) != nil {
			return ctx.Err()
		}
	}
}
