package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"loadstar/agent/state"
	"loadstar/internal/mtls"
	"loadstar/rig/product"
)

// generate writes a prepared file with synthetic data.
func generate(ctx context.Context, bin, dir string, meters int) (string, error) {
	raw, prepared := filepath.Join(dir, "data"), filepath.Join(dir, "data.prepared")
	if _, err := command(ctx, bin, nil, 2*time.Minute, "data", "generate", "--meters", fmt.Sprint(meters), "--days", "60", "-o", raw); err != nil {
		return "", err
	}
	_, err := command(ctx, bin, nil, 2*time.Minute, "data", "prepare", raw, "-o", prepared)
	return prepared, err
}

// generateOwn writes a prepared file with the server's data, whose meters differ from the
// fleet's meters.
func generateOwn(ctx context.Context, bin, dir string) (string, error) {
	raw, prepared := filepath.Join(dir, "own"), filepath.Join(dir, "own.prepared")
	if _, err := command(ctx, bin, nil, 2*time.Minute, "data", "generate", "--meters", "5", "--days", "60", "--seed", "77", "-o", raw); err != nil {
		return "", err
	}
	_, err := command(ctx, bin, nil, 2*time.Minute, "data", "prepare", raw, "-o", prepared)
	return prepared, err
}

// plan contains the name and the text of a plan.
type plan struct {
	name string
	text string
}

func (p plan) write(dir string) (path string, err error) {
	path = filepath.Join(dir, p.name+".yaml")
	return path, os.WriteFile(path, []byte(p.text), 0o644)
}

// reference contains the inputs with which the simulator repeats a run. own is the server's
// data, or empty.
type reference struct {
	plan
	bin, data, own string
}

// simulate repeats a run with the simulator and returns the file of its shared weights. The
// simulator needs the run's name, because the agents' draws depend on it.
func (s *system) simulate(ctx context.Context, r run, ref reference) (string, error) {
	path, err := ref.write(s.dir)
	if err != nil {
		return "", err
	}
	out := filepath.Join(s.dir, "simulated-"+r.id)
	args := []string{"simulate", path, "--data", ref.data, "--out", out, "--workers", "1", "--save", "10m", "--quiet", "--run", r.id, "--secret-file", s.secret()}
	if ref.own != "" {
		args = append(args, "--server-data", ref.own)
	}
	_, err = command(ctx, ref.bin, nil, 10*time.Minute, args...)
	return filepath.Join(out, "shared.safetensors"), err
}

// secret is the file with the secret of all agents.
func (s *system) secret() string { return filepath.Join(s.dir, state.SecretFile) }

// shareSecret gives an agent the common secret of all agents before it joins, so that the
// simulator can repeat its training.
func (s *system) shareSecret(i int) error {
	if _, err := state.Secret(s.dir); err != nil { // creates it
		return err
	}
	text, err := mtls.ReadPrivate(s.secret())
	if err == nil {
		err = mtls.MakeDir(s.agentDir(i))
	}
	if err != nil {
		return err
	}
	return mtls.WritePrivate(filepath.Join(s.agentDir(i), state.SecretFile), text)
}

// submit starts a run and retries if servers are down. The run may exist although the
// response was lost, so submit looks for it in the ledger before it retries. If two runs are
// created anyway, the test checks both.
func (s *system) submit(ctx context.Context, dir string, p plan, clients int, limit time.Duration) error {
	path, err := p.write(dir)
	if err != nil {
		return err
	}
	for end := time.Now().Add(limit); ; {
		_, err := s.command(ctx, "run", "start", path, "--wait-for", fmt.Sprint(clients))
		if err == nil {
			return nil
		}
		if time.Now().After(end) || product.Sleep(ctx, 500*time.Millisecond) != nil {
			return err
		}
		if all, err := s.ledger.runs(ctx, p.name); err == nil && len(all) > 0 {
			return nil
		}
	}
}

// finish waits until all runs with the given name have ended. It returns an error if there
// is no progress for the duration patience.
func (s *system) finish(ctx context.Context, name string, patience time.Duration) ([]run, error) {
	var last progress
	moved := time.Now()
	for {
		if p, err := s.ledger.progress(ctx); err == nil && p != last {
			last, moved = p, time.Now()
		}
		all, err := s.ledger.runs(ctx, name)
		running := err != nil || len(all) == 0
		for _, r := range all {
			running = running || !r.ended()
			if r.ended() && r.state != "finished" {
				return all, fmt.Errorf("run %s (%s) %s: %s", r.id, r.name, r.state, r.reason)
			}
		}
		if !running {
			return all, nil
		}
		if time.Since(moved) > patience {
			return all, fmt.Errorf("no progress for %s: %s", patience, s.where(ctx))
		}
		if product.Sleep(ctx, 100*time.Millisecond) != nil {
			return all, ctx.Err()
		}
	}
}

// where describes the state of all runs, for an error report.
func (s *system) where(ctx context.Context) string {
	p, err := s.ledger.progress(ctx)
	if err != nil {
		return fmt.Sprintf("the ledger cannot be read: %v", err)
	}
	text := fmt.Sprintf("%+v", p)
	for _, q := range []struct{ what, query string }{
		{"clients", "SELECT count(*) FROM clients"},
		{"leases", "SELECT count(*) FROM leases"},
		{"partials", "SELECT count(*) FROM partials"},
		{"updates", "SELECT count(*) FROM updates"},
	} {
		if n, err := s.ledger.number(ctx, q.query); err == nil {
			text += fmt.Sprintf(", %d %s", n, q.what)
		}
	}
	if all, err := s.ledger.rounds(ctx); err == nil {
		for _, r := range all {
			if r.state != "merged" {
				text += fmt.Sprintf("; %+v", r)
			}
		}
	}
	return text
}

// same reports whether a run's weights are byte-identical to the simulator's.
func (s *system) same(ctx context.Context, r run, ref reference, limit time.Duration) (bool, error) {
	simulated, err := s.simulate(ctx, r, ref)
	if err != nil {
		return false, err
	}
	path := filepath.Join(s.dir, "weights-"+r.id+".safetensors")
	if _, err := s.insist(ctx, limit, "run", "weights", r.id, "-o", path); err != nil {
		return false, err
	}
	got, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	want, err := os.ReadFile(simulated)
	if err != nil {
		return false, err
	}
	return bytes.Equal(got, want), nil
}

// heard returns the turns that the agents logged as counted.
func (s *system) heard() (map[turn]bool, error) {
	all := map[turn]bool{}
	for _, p := range s.hosts {
		text, err := os.ReadFile(p.log)
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		for line := range bytes.Lines(text) {
			var x struct {
				Msg   string
				Run   string
				Round int64
				Names []string
			}
			// The last line of a killed process may be incomplete.
			if json.Unmarshal(line, &x) != nil || x.Msg != "result counted" {
				continue
			}
			for _, c := range x.Names {
				all[turn{x.Run, x.Round - 1, c}] = true // logs count rounds from 1
			}
		}
	}
	return all, nil
}
