package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"loadstar/rig/patroni"
	"loadstar/rig/product"
)

// replicated starts PostgreSQL on three machines under Patroni, and returns an address that
// names all of them.
func (s *system) replicated() (string, error) {
	dir := filepath.Join(s.dir, "pg")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	all, err := patroni.Start(dir, s.replication)
	if err != nil {
		return "", err
	}
	s.machines = all
	s.servers = append(s.servers, machinesPart{all})
	return all.URL(database), all.Create(database)
}

// machinesPart is a part that ends all machines of a database.
type machinesPart struct{ *patroni.Cluster }

func (p machinesPart) Kind() string { return kindPostgres }
func (p machinesPart) Name() string { return kindPostgres }
func (p machinesPart) Start() error { return nil }
func (p machinesPart) Kill() error  { return p.Crash() }
func (p machinesPart) Stop() error  { return p.Crash() }

// These are the ways in which a database fails.
const (
	postgresKilled = "PostgreSQL killed"
	patroniKilled  = "Patroni killed"
	machineKilled  = "machine killed"
	machinePaused  = "machine paused"
	machineCut     = "machine cut off"
	etcdKilled     = "etcd leader killed"
)

var failures = []string{postgresKilled, patroniKilled, machineKilled, machinePaused, machineCut, etcdKilled}

const (
	// awayLeast and awayMost limit the time for which a machine stays broken. Another machine
	// takes over after about 20 seconds, so some machines return before that.
	awayLeast, awayMost = 5 * time.Second, 45 * time.Second
	// wholeAgain is the maximum time until a cluster has all standbys again.
	wholeAgain = 5 * time.Minute
)

// failover breaks the primary of a PostgreSQL cluster, or the etcd that elects it.
type failover struct {
	*repeated
	changes int             // number of times that another machine became the primary
	whole   []time.Duration // times from the fault until all standbys follow
}

func newFailover(t *trial, log io.Writer) *failover {
	f := &failover{repeated: newRepeated(t, log, failures...)}
	f.once = f.fail
	return f
}

// fail injects failure i.
func (f *failover) fail(ctx context.Context, i int) error {
	all := f.system.machines
	primary, kind := all.Primary(ctx), failures[i%len(failures)]
	hit := primary
	if kind == etcdKilled {
		hit = all.EtcdLeader(ctx)
	}
	if hit == "" {
		return errors.New("the database has no primary")
	}
	away := awayLeast + time.Duration(f.rng.Int64N(int64(awayMost-awayLeast)))
	if f.rng.IntN(3) == 0 {
		away = 2 * awayMost // long enough for another machine to take over
	}
	f.begin(kind, "on %s for %d s", hit, int(away.Seconds()))
	begun := time.Now()
	strike := map[string]func(string) error{
		postgresKilled: all.KillPostgres, patroniKilled: all.KillPatroni, machineKilled: all.Kill, machinePaused: all.Pause, machineCut: all.Cut, etcdKilled: all.KillEtcd,
	}[kind]
	if err := strike(hit); err != nil {
		return err
	}
	if kind != postgresKilled { // Patroni restarts it
		_ = product.Sleep(ctx, away) // the code below ends with the context too
	}
	if err := all.Repair(hit); err != nil { // even if the test ends, because it examines the database afterwards
		return err
	}
	if err := all.Whole(context.WithoutCancel(ctx), wholeAgain); err != nil {
		return err
	}
	f.whole = append(f.whole, time.Since(begun))
	if all.Primary(ctx) != primary {
		f.changes++
	}
	return nil
}

func (f *failover) print(out io.Writer) {
	f.note("another machine became the primary %d times; all standbys followed again after a median of %.0f s (max %.0f s)",
		f.changes, quantile(f.whole, 0.5).Seconds(), quantile(f.whole, 1).Seconds())
	f.repeated.print(out)
}
