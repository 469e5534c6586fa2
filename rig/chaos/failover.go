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

// replicated starts PostgreSQL on three machines under Patroni, and returns the address of all.
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

// machinesPart is the part that ends all machines of a database.
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
	// awayLeast and awayMost limit how long a machine stays broken. Another one takes over after
	// about 20 seconds, so some come back before.
	awayLeast, awayMost = 5 * time.Second, 45 * time.Second
	// wholeAgain is how long a cluster may take until it has all standbys.
	wholeAgain = 5 * time.Minute
)

// failover breaks the primary of a PostgreSQL cluster, or the etcd that decides which it is.
type failover struct {
	*repeated
	changes int             // how often another machine became the primary
	whole   []time.Duration // from the fault until all standbys follow
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
		away = 2 * awayMost // until another machine has taken over in any case
	}
	f.begin(kind, "on %s for %d s", hit, int(away.Seconds()))
	begun := time.Now()
	strike := map[string]func(string) error{
		postgresKilled: all.KillPostgres, patroniKilled: all.KillPatroni, machineKilled: all.Kill, machinePaused: all.Pause, machineCut: all.Cut, etcdKilled: all.KillEtcd,
	}[kind]
	if err := strike(hit); err != nil {
		return err
	}
	if kind != postgresKilled { // Patroni starts it again
		_ = product.Sleep(ctx, away) // what follows ends with the context too
	}
	if err := all.Repair(hit); err != nil { // also if the test ends: it looks at the database
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

// print implements injector.
func (f *failover) print(out io.Writer) {
	f.note("another machine became the primary %d times; all standbys followed again after a median of %.0f s (max %.0f s)",
		f.changes, quantile(f.whole, 0.5).Seconds(), quantile(f.whole, 1).Seconds())
	f.repeated.print(out)
}
