package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"loadstar/internal/fleetload"
	"loadstar/internal/jointoken"
	"loadstar/internal/mtls"
	v1 "loadstar/proto/loadstar/v1"
)

// engines are those that a server under test leans on.
type engines struct {
	database string
	nats     []string
}

func (e *engines) add(f *pflag.FlagSet) {
	f.StringVar(&e.database, "database", "", "postgres://… for the ledger, in a schema that is dropped in the end (default a SQLite file)")
	f.StringSliceVar(&e.nats, "nats", nil, "servers of a NATS cluster that carries nothing else (default an embedded one)")
}

func (e *engines) check() error {
	if e.database != "" && !strings.HasPrefix(e.database, "postgres://") && !strings.HasPrefix(e.database, "postgresql://") {
		return fmt.Errorf("--database is postgres://…, not %q", e.database)
	}
	return nil
}

func (e *engines) String() string {
	ledger, bus := "SQLite", "embedded NATS"
	if e.database != "" {
		ledger = "PostgreSQL"
	}
	if len(e.nats) > 0 {
		bus = "NATS at " + strings.Join(e.nats, ", ")
	}
	return ledger + " and " + bus
}

// schema makes a schema of its own in the given PostgreSQL, and returns how to reach
// and to drop it. Without a database it does nothing.
func (e *engines) schema(ctx context.Context) (database string, drop func(), err error) {
	if e.database == "" {
		return "", func() {}, nil
	}
	u, err := url.Parse(e.database)
	if err != nil {
		return "", nil, fmt.Errorf("--database: %w", err)
	}
	db, err := sql.Open("pgx", e.database) // the driver that the ledger uses
	if err != nil {
		return "", nil, err
	}
	name := "loadstar_bench_" + strings.ToLower(rand.Text()[:8])
	if _, err := db.ExecContext(ctx, "CREATE SCHEMA "+name); err != nil {
		return "", nil, errors.Join(fmt.Errorf("--database: %w", err), db.Close())
	}
	q := u.Query()
	q.Set("search_path", name)
	u.RawQuery = q.Encode()
	return u.String(), func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		_, _ = db.ExecContext(ctx, "DROP SCHEMA "+name+" CASCADE") // at worst a schema stays behind
		db.Close()
	}, nil
}

// testbed is a server in a process of its own, and a fleet that has joined it.
type testbed struct {
	engines
	dir             string
	url             string // of the schema
	drop            func()
	address, watch  string
	process         *exec.Cmd
	ended           chan struct{} // closed when the process has
	fleet           *fleetload.Fleet
	operator        *operator
	counted, merged string // names of metrics
}

// benchInputs are what bose2023 wants beyond load and calendar.
var benchInputs = []string{"temperature", "wind", "floor_area", "wall_area", "window_area"}

// newTestbed starts a server and lets agents join it.
func newTestbed(ctx context.Context, e engines, agents int, to io.Writer) (*testbed, error) {
	if err := openFiles(agents); err != nil {
		return nil, err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(300) // memory for time: it is the server that is measured
	}
	b := &testbed{engines: e, drop: func() {}, counted: "loadstar_aggregator_counted_total", merged: `loadstar_rounds_total{outcome="merged"}`}
	if err := b.open(ctx, agents, to); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *testbed) open(ctx context.Context, agents int, to io.Writer) (err error) {
	if b.dir, err = os.MkdirTemp("", "loadstar-fleet-"); err != nil {
		return err
	}
	url, drop, err := b.schema(ctx)
	if err != nil {
		return err
	}
	b.url, b.drop = url, drop
	// The same for every process, so that agents find the next one.
	if b.address, err = freeAddress(); err == nil {
		b.watch, err = freeAddress()
	}
	if err != nil {
		return err
	}
	if err := b.serve(ctx); err != nil {
		return err
	}
	identity := filepath.Join(b.dir, "operator")
	o := operatorFlags{server: "https://" + b.address, identity: identity}
	if b.operator, err = o.dial(); err != nil {
		return err
	}
	trusted, err := mtls.ReadFolder(identity)
	if err != nil {
		return err
	}
	t, err := b.operator.CreateToken(ctx, &v1.CreateTokenRequest{Uses: int64(agents), TtlSeconds: 3600, Note: "bench"})
	if err != nil {
		return plain(err)
	}
	token, err := jointoken.Parse(t.Token)
	if err != nil {
		return err
	}
	bar := newProgress(to, agents)
	defer bar.stop()
	b.fleet, err = fleetload.Join(ctx, fleetload.Config{
		Server: "https://" + b.address, Root: trusted.Root, Token: token, Agents: agents, Inputs: benchInputs,
	}, func(n int) { bar.set(n, ", joining") })
	if err != nil {
		return b.because(err)
	}
	return nil
}

// spareFiles is what a process opens beside one connection for each agent.
const spareFiles = 256

// openFiles makes sure that every agent can have a connection, at either end.
func openFiles(agents int) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	if need := uint64(agents + spareFiles); l.Max < need {
		return fmt.Errorf("%d agents need %d open files in a process, and %d are allowed: raise the hard limit (ulimit -Hn), or use fewer --agents", agents, need, l.Max)
	}
	l.Cur = l.Max
	// The server's process inherits it.
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &l)
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// own returns this program as a command, which is interrupted when the context ends.
func own(ctx context.Context, args ...string) (*exec.Cmd, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Args[0] = "loadstar"
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	return cmd, nil
}

// serve starts the server, instead of the one before.
func (b *testbed) serve(ctx context.Context, flags ...string) error {
	b.stop()
	args := append([]string{"serve", "--dir", b.dir, "--listen", b.address, "--watch", b.watch, "--log-level", "warn"}, flags...)
	if b.url != "" {
		args = append(args, "--database", b.url)
	}
	if len(b.nats) > 0 {
		args = append(args, "--nats", strings.Join(b.nats, ","))
	}
	cmd, err := own(context.WithoutCancel(ctx), args...) // until stop
	if err != nil {
		return err
	}
	log, err := os.OpenFile(b.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stderr = log
	// A signal for this process is ours to pass on; without us it has no use.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	started, ready, ended := make(chan error, 1), make(chan struct{}), make(chan struct{})
	go func() {
		runtime.LockOSThread() // it counts as our death if the thread ends that started it
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		if bufio.NewScanner(out).Scan() {
			close(ready)
		}
		_, _ = io.Copy(io.Discard, out) // read until the process ends
		_ = cmd.Wait()                  // the log says why
	}()
	if err := <-started; err != nil {
		return err
	}
	b.process, b.ended = cmd, ended
	select {
	case <-ready:
		return nil
	case <-b.ended:
		return b.because(errors.New("the server did not start"))
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *testbed) log() string { return filepath.Join(b.dir, "serve.log") }

// because adds the end of the server's log to an error.
func (b *testbed) because(err error) error {
	log, _ := os.ReadFile(b.log())
	log = bytes.TrimSpace(log[max(len(log)-2000, 0):])
	if len(log) == 0 {
		return err
	}
	return fmt.Errorf("%w; the end of the server's log:\n%s", err, log)
}

// stop ends the server.
func (b *testbed) stop() {
	if b.process == nil {
		return
	}
	_ = b.process.Process.Signal(syscall.SIGTERM) // the process may have ended
	select {
	case <-b.ended:
	case <-time.After(30 * time.Second):
		_ = b.process.Process.Kill() // the process may have ended
		<-b.ended
	}
	b.process = nil
}

func (b *testbed) close() {
	if b.fleet != nil {
		b.fleet.Close()
	}
	b.stop()
	b.drop()
	if b.dir != "" {
		os.RemoveAll(b.dir)
	}
}

// start connects the fleet and begins a run with all of it.
func (b *testbed) start(ctx context.Context, plan string, agents int) (run string, err error) {
	if err := b.fleet.Connect(ctx); err != nil {
		return "", b.because(err)
	}
	r, err := b.operator.StartRun(ctx, &v1.StartRunRequest{Plan: plan, Clients: int64(agents)})
	if err != nil {
		return "", plain(err)
	}
	return r.Run, nil
}

// await waits until the metrics are as wanted.
func (b *testbed) await(ctx context.Context, what string, within time.Duration, is func(map[string]float64) bool) error {
	for end := time.Now().Add(within); ; {
		m, err := b.metrics(ctx)
		if err != nil {
			return err
		}
		if is(m) {
			return nil
		}
		if time.Now().After(end) {
			return b.because(fmt.Errorf("%s: not within %v", what, within))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// rest lets the fleet rest, and waits until everything that it has sent is counted.
func (b *testbed) rest(ctx context.Context) error {
	b.fleet.Rest()
	return b.await(ctx, "counting what has come", time.Minute, func(m map[string]float64) bool { return m["loadstar_bus_waiting"] == 0 })
}

// metrics returns the server's, by name and labels as they are written.
func (b *testbed) metrics(ctx context.Context) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.watch+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return nil, b.because(err)
	}
	defer r.Body.Close()
	all := map[string]float64{}
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		text := lines.Text()
		i := strings.LastIndexByte(text, ' ')
		if i < 0 || text[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(text[i+1:], 64); err == nil {
			all[text[:i]] = v
		}
	}
	return all, lines.Err()
}

// usage is what a process has used of the machine.
type usage struct {
	cpu       time.Duration
	rss, peak int64 // bytes
}

// ticks of the clock by which Linux tells CPU time are always as many.
const ticksPerSecond = 100

func (b *testbed) usage() (u usage, err error) {
	proc := fmt.Sprintf("/proc/%d/", b.process.Process.Pid)
	stat, err := os.ReadFile(proc + "stat")
	if err != nil {
		return u, err
	}
	// The name in parentheses may hold anything.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return u, fmt.Errorf("%sstat is not as expected", proc)
	}
	for _, f := range fields[11:13] { // in user and in system mode
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return u, err
		}
		u.cpu += time.Duration(n) * time.Second / ticksPerSecond
	}
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "VmRSS:":
			u.rss = n << 10
		case "VmHWM:":
			u.peak = n << 10
		}
	}
	return u, nil
}

// ownTime returns the CPU time of this process.
func ownTime() time.Duration {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
