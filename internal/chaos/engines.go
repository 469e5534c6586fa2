package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"loadstar/internal/pgtest"
)

// natsNodes starts three NATS nodes.
func (s *system) natsNodes() error {
	var ports [6]int
	for i := range ports {
		var err error
		if ports[i], err = freePort(); err != nil {
			return err
		}
	}
	routes := []string{loopback(ports[3]), loopback(ports[4]), loopback(ports[5])}
	for i := range 3 {
		name := fmt.Sprintf("nats-%d", i+1)
		p := s.process(kindNATS, name, "nats-node", "--name", name, "--dir", filepath.Join(s.dir, "servers", name),
			"--listen", loopback(ports[i]), "--cluster", routes[i], "--routes", strings.Join(routes, ","))
		s.servers = append(s.servers, p)
		s.nats = append(s.nats, "nats://"+loopback(ports[i]))
		if err := p.Start(); err != nil {
			return err
		}
	}
	return nil
}

// whole waits until every NATS node has all messages. Only then may the next node be
// killed.
func (s *system) whole(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	last := errors.New("no answer")
	for {
		if last = s.lag(ctx, last); last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the NATS nodes are not in sync within %s: %w", limit, last)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// lag returns nil if every NATS node has all messages. Otherwise the error names a node or
// stream that is not complete.
func (s *system) lag(ctx context.Context, before error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := nats.Connect(strings.Join(s.nats, ","), nats.Timeout(time.Second))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	streams := js.ListStreams(ctx)
	n := 0
	for info := range streams.Info() {
		n++
		if info.Cluster == nil || info.Cluster.Leader == "" || len(info.Cluster.Replicas) != len(s.nats)-1 {
			return fmt.Errorf("stream %s has no leader", info.Config.Name)
		}
		for _, r := range info.Cluster.Replicas {
			if r.Offline || !r.Current {
				return fmt.Errorf("%s lags by %d in %s", r.Name, r.Lag, info.Config.Name)
			}
		}
	}
	if err := streams.Err(); err != nil {
		return errors.Join(err, before)
	}
	if n == 0 {
		return errors.New("there is no stream")
	}
	return nil
}

const database = "loadstar"

// postgres is the part of the system that runs PostgreSQL.
type postgres struct {
	mu     sync.Mutex
	server *pgtest.Server
	log    string
	runs   bool
}

func (s *system) postgres() (*postgres, error) {
	dir := filepath.Join(s.dir, "pg")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	server, err := pgtest.Start(dir, port)
	if err != nil {
		return nil, err
	}
	p := &postgres{server: server, log: filepath.Join(dir, "log"), runs: true}
	return p, server.Create(database)
}

func (p *postgres) Kind() string     { return kindPostgres }
func (p *postgres) Name() string     { return kindPostgres }
func (p *postgres) Log(n int) string { return tail(p.log, n) }

func (p *postgres) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runs {
		return nil
	}
	p.runs = true
	return p.server.Start()
}

func (p *postgres) Kill() error { return p.end(p.server.Crash) }
func (p *postgres) Stop() error { return p.end(p.server.Stop) }

func (p *postgres) end(how func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs = false
	return how()
}
