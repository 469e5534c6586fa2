package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"loadstar/internal/testkit"
	"loadstar/rig/product"
)

// ground contains the data that all attacks share.
type ground struct {
	bin, dir string
	postgres bool   // for the servers of the floods
	data     string // prepared dataset of generated meters
}

// The fleet of the review: twelve generated meters with 60 days of readings.
const (
	meters = 12
	days   = 60
)

// prepare generates the readings of the honest clients.
func prepare(ctx context.Context, bin, dir string) (*ground, error) {
	g := &ground{bin: bin, dir: dir, data: filepath.Join(dir, "meters.prepared")}
	if _, err := os.Stat(g.data); err != nil {
		raw := filepath.Join(dir, "meters")
		if _, err := run(ctx, bin, nil, "data", "generate", "--meters", fmt.Sprint(meters), "--days", fmt.Sprint(days), "-o", raw); err != nil {
			return nil, err
		}
		if _, err := run(ctx, bin, nil, "data", "prepare", raw, "-o", g.data); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// attack carries out an attack in a separate folder and ends all processes that it has
// started.
func (g *ground) attack(ctx context.Context, a Attack, folder string) (r Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	f := &Fleet{ground: g, dir: filepath.Join(g.dir, folder)}
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return r, err
	}
	defer func() {
		switch x := recover().(type) {
		case nil:
		case failure:
			err = x.error
		default:
			panic(x)
		}
		err = errors.Join(err, f.close())
	}()
	return a.Run(ctx, f)
}

// Fleet is the target of an attack. It consists of servers and honest agents of the binary under
// attack, each in its own process, with all files in one folder. All processes end with the
// attack.
type Fleet struct {
	*ground
	dir string

	mu       sync.Mutex
	children []*product.Process
	closers  []func() error
}

func (f *Fleet) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []error
	for i := len(f.children) - 1; i >= 0; i-- {
		all = append(all, f.children[i].Kill())
	}
	for i := len(f.closers) - 1; i >= 0; i-- {
		all = append(all, f.closers[i]())
	}
	return errors.Join(all...)
}

// later registers a function that is called after the attack.
func (f *Fleet) later(end func() error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closers = append(f.closers, end)
}

// path returns the path of a file in the attack's folder.
func (f *Fleet) path(name string) string { return filepath.Join(f.dir, name) }

// write writes a file in the attack's folder and returns its path.
func (f *Fleet) write(name, text string) (string, error) {
	return f.path(name), os.WriteFile(f.path(name), []byte(text), 0o600)
}

// start starts the binary with these arguments. The log is appended to name.log.
func (f *Fleet) start(name string, args ...string) (*product.Process, error) {
	return f.startBinary(f.bin, name, args...)
}

func (f *Fleet) startBinary(bin, name string, args ...string) (*product.Process, error) {
	cmd := exec.Command(bin, args...)
	cmd.Dir = f.dir
	p, err := product.Start(cmd, f.path(name+".log"))
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.children = append(f.children, p)
	return p, nil
}

// Server is a running server.
type Server struct {
	*product.Process
	fleet    *Fleet
	Dir      string // the server's folder
	Host     string // address of the agents' listener
	Operator string // address of the operators' listener
	Watch    string // address of /metrics
}

// Serve starts a server with all roles, and waits until it is ready. The arguments follow the
// test bed's own arguments and override them.
func (f *Fleet) Serve(ctx context.Context, more ...string) (*Server, error) {
	return f.serveAs(ctx, "server", more...)
}

// serveAs starts a server in a folder of the given name, which may exist from an earlier
// server.
func (f *Fleet) serveAs(ctx context.Context, name string, more ...string) (*Server, error) {
	s := &Server{fleet: f, Dir: f.path(name)}
	for _, address := range []*string{&s.Host, &s.Watch, &s.Operator} {
		var err error
		if *address, err = testkit.FreeAddress(); err != nil {
			return nil, err
		}
	}
	args := []string{"serve", "--dir", s.Dir, "--listen", s.Host, "--watch", s.Watch, "--set", "agents.poll=200ms", "--set", "operators=" + s.Operator}
	var err error
	if s.Process, err = f.start(name, append(args, more...)...); err != nil {
		return nil, err
	}
	if err := product.Ready(ctx, s.Watch, s.Done()); err != nil {
		return s, fmt.Errorf("serve: %w: %s", err, product.LastLine(s.Log()))
	}
	return s, nil
}

// Command runs a command of the binary as an operator of the server and returns its output.
func (s *Server) Command(ctx context.Context, args ...string) (string, error) {
	return run(ctx, s.fleet.bin, []string{"LOADSTAR_SERVER=https://" + s.Operator, "LOADSTAR_OPERATOR=" + filepath.Join(s.Dir, "operator")}, args...)
}

// StartAgent joins a real agent that hosts part K/N of the generated meters, and starts it.
func (f *Fleet) StartAgent(ctx context.Context, s *Server, name, part string, flags ...string) (*product.Process, error) {
	token, err := s.Command(ctx, "token", "create")
	if err != nil {
		return nil, err
	}
	if _, err := run(ctx, f.bin, nil, "agent", "join", "https://"+s.Host, token, "--dir", f.path(name), "--name", name); err != nil {
		return nil, err
	}
	return f.startAgain(name, part, flags...)
}

// startAgain starts an agent that has joined. The fleet is smaller than the minimum of the agents'
// default policy.
func (f *Fleet) startAgain(name, part string, flags ...string) (*product.Process, error) {
	args := []string{"agent", "run", "--dir", f.path(name), "--data", f.data, "--part", part, "--workers", "1", "--log-level", "debug", "--policy", "trial"}
	return f.start(name, append(args, flags...)...)
}

// run runs a command to its end and returns its output.
func run(ctx context.Context, bin string, env []string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(args[:min(2, len(args))], " "), err, strings.TrimSpace(problems.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// failure is the reason why an attack could not be carried out.
type failure struct{ error }

// check ends the attack if err is not nil, as FailNow ends a test. It must be called on the
// attack's own goroutine.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// must returns v, and ends the attack if err is not nil; see check.
func must[T any](v T, err error) T {
	check(err)
	return v
}

// must2 is must for two values.
func must2[T, U any](v T, w U, err error) (T, U) {
	check(err)
	return v, w
}
