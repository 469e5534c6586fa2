// Package fleet load-tests a server with simulated agents. It compares the server's cost of an
// update with the cost of bare engines, and checks for leaks in a long test.
package fleet

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"loadstar/internal/mtls"
	"loadstar/internal/proc"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/rig/bench"
	"loadstar/rig/fleetload"
	"loadstar/rig/product"
)

// Backends is the database of the server under test.
type Backends struct {
	// Database is a postgres:// URL. The benchmark creates a schema in it and drops it at
	// the end. If it is empty, the server uses a SQLite file.
	Database string
}

func (e *Backends) check() error {
	if e.Database != "" && !strings.HasPrefix(e.Database, "postgres://") && !strings.HasPrefix(e.Database, "postgresql://") {
		return fmt.Errorf("--database must be postgres://…, not %q", e.Database)
	}
	return nil
}

func (e *Backends) String() string {
	if e.Database != "" {
		return "PostgreSQL"
	}
	return "SQLite"
}

// schema creates a schema in the given PostgreSQL, and returns its URL and a function that
// drops it. Without a database it does nothing.
func (e *Backends) schema(ctx context.Context) (database string, drop func(), err error) {
	if e.Database == "" {
		return "", func() {}, nil
	}
	u, err := url.Parse(e.Database)
	if err != nil {
		return "", nil, fmt.Errorf("--database: %w", err)
	}
	db, err := sql.Open("pgx", e.Database) // the driver that the ledger uses
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
		_, _ = db.ExecContext(ctx, "DROP SCHEMA "+name+" CASCADE") // a schema that remains does no harm
		db.Close()
	}, nil
}

// testbed consists of a server in its own process, and a fleet that has joined the server.
type testbed struct {
	Backends
	dir             string
	url             string // URL of the schema
	drop            func()
	address, watch  string
	server          *product.Process // nil if the server is not running
	bare            *bare            // nil if the bare engine is not needed
	fleet           *fleetload.Fleet
	operator        v1.OperatorServiceClient
	counted, merged string // names of metrics
}

// modelInputs are the inputs of bose2023 except load and calendar features.
var modelInputs = []string{"temperature", "wind", "floor_area", "wall_area", "window_area"}

// newTestbed starts a server and makes the agents join it.
func newTestbed(ctx context.Context, e Backends, agents int, short bool, progress bench.Progress) (*testbed, error) {
	if err := openFiles(2 * agents); err != nil && !short { // twice, because of the connections to the bare server
		return nil, err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(300) // trade memory for CPU time, which the server under test needs
	}
	b := &testbed{Backends: e, drop: func() {}, counted: "loadstar_gateway_counted_total", merged: `loadstar_rounds_total{outcome="merged"}`}
	if err := b.open(ctx, agents, short, progress); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *testbed) open(ctx context.Context, agents int, short bool, progress bench.Progress) (err error) {
	if b.dir, err = os.MkdirTemp("", "loadstar-fleet-"); err != nil {
		return err
	}
	url, drop, err := b.schema(ctx)
	if err != nil {
		return err
	}
	b.url, b.drop = url, drop
	// Every server of the testbed has the same address, so that agents reconnect.
	if b.address, err = testkit.FreeAddress(); err == nil {
		b.watch, err = testkit.FreeAddress()
	}
	if err != nil {
		return err
	}
	if err := b.serve(ctx); err != nil {
		return err
	}
	identity := filepath.Join(b.dir, "operator")
	trusted, err := mtls.ReadFolder(identity)
	if err != nil {
		return err
	}
	b.operator = v1.NewOperatorServiceClient(mtls.Client(mtls.Transport(trusted.TLS())), "https://"+b.address)
	b.fleet, err = join(ctx, b.operator, fleetload.Config{Server: "https://" + b.address, Root: trusted.Root, Agents: agents, Short: short}, progress)
	if err != nil {
		return b.because(err)
	}
	return nil
}

// join makes the agents of a fleet join a server, with a token that it creates.
func join(ctx context.Context, operator v1.OperatorServiceClient, c fleetload.Config, progress bench.Progress) (*fleetload.Fleet, error) {
	t, err := operator.CreateToken(ctx, &v1.CreateTokenRequest{Uses: int64(c.Agents), TtlSeconds: 3600, Note: "bench"})
	if err != nil {
		return nil, fmt.Errorf("create the join token: %w", err)
	}
	if c.Token, err = mtls.ParseJoinToken(t.Token); err != nil {
		return nil, err
	}
	c.Inputs = modelInputs
	return fleetload.Join(ctx, c, func(n int) { progress(n, c.Agents, ", joining") })
}

// self returns a command that runs this program with the given arguments. When the context
// ends, the command is interrupted.
func self(ctx context.Context, args ...string) (*exec.Cmd, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := command(ctx, path, args...)
	cmd.Args[0] = "loadstar-lab"
	return cmd, nil
}

func command(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	return cmd
}

// serve stops the previous server, if any, and starts a new one.
func (b *testbed) serve(ctx context.Context, flags ...string) error {
	b.stop()
	// All agents of the benchmark share one address, so limits by address are off.
	args := append([]string{"serve", "--dir", b.dir, "--listen", b.address, "--watch", b.watch, "--log-level", "warn", "--set", "limits.address_rate=0"}, flags...)
	if b.url != "" {
		args = append(args, "--database", b.url)
	}
	path, err := product.Find()
	if err != nil {
		return err
	}
	if b.server, err = product.Start(command(context.WithoutCancel(ctx), path, args...), b.log()); err != nil { // until stop
		return err
	}
	if err := product.Ready(ctx, b.watch, b.server.Done()); err != nil {
		return b.because(fmt.Errorf("the server did not start: %w", err))
	}
	return nil
}

func (b *testbed) log() string { return filepath.Join(b.dir, "serve.log") }

// because adds the last lines of the server's log to an error.
func (b *testbed) because(err error) error {
	log, _ := os.ReadFile(b.log())
	log = bytes.TrimSpace(log[max(len(log)-2000, 0):])
	if len(log) == 0 {
		return err
	}
	return fmt.Errorf("%w; the end of the server's log:\n%s", err, log)
}

// stop ends the server's process.
func (b *testbed) stop() {
	if b.server == nil {
		return
	}
	_ = b.server.Stop(syscall.SIGTERM, 30*time.Second) // the results have been checked
	b.server = nil
}

func (b *testbed) close() {
	if b.fleet != nil {
		b.fleet.Close()
	}
	b.stop()
	if b.bare != nil {
		b.bare.close()
	}
	b.drop()
	if b.dir != "" {
		os.RemoveAll(b.dir)
	}
}

func (b *testbed) start(ctx context.Context, plan string, agents int) (run string, err error) {
	if err := b.fleet.Connect(ctx); err != nil {
		return "", b.because(err)
	}
	r, err := b.operator.StartRun(ctx, &v1.StartRunRequest{Plan: plan, Clients: int64(agents)})
	if err != nil {
		return "", fmt.Errorf("start the run: %w", err)
	}
	return r.Run, nil
}

// end stops the given run on the server.
func (b *testbed) end(ctx context.Context, run string) error {
	if _, err := b.operator.StopRun(ctx, &v1.StopRunRequest{Run: run}); err != nil {
		return fmt.Errorf("stop the run: %w", err)
	}
	return nil
}

// await waits until the server's metrics meet a condition. It returns an error if the condition
// is not met in time.
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
		if err := product.Sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// rest pauses the fleet and waits until all its results are counted.
func (b *testbed) rest(ctx context.Context) error {
	b.fleet.Rest()
	return b.await(ctx, "counting what has come", time.Minute, func(m map[string]float64) bool { return m["loadstar_gateway_waiting"] == 0 })
}

func (b *testbed) metrics(ctx context.Context) (map[string]float64, error) {
	m, err := product.Metrics(ctx, b.watch)
	if err != nil {
		return nil, b.because(err)
	}
	return m, nil
}

func (b *testbed) usage() (proc.Usage, error) { return proc.UsageOf(b.server.Pid()) }
