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

	"loadstar/internal/freeport"
	"loadstar/internal/pgtest"
)

// natsNodes starts three NATS nodes.
func (s *system) natsNodes() error {
	for range 3 {
		port, err := freeport.Take()
		if err != nil {
			return err
		}
		s.routes = append(s.routes, loopback(port))
	}
	for i := range 3 {
		p, at, err := s.natsNode(fmt.Sprintf("nats-%d", i+1), s.routes[i])
		if err != nil {
			return err
		}
		s.servers, s.nats = append(s.servers, p), append(s.nats, at)
		if err := p.Start(); err != nil {
			return err
		}
	}
	return nil
}

// systemPassword is the password of the user who may remove a lost NATS node.
const systemPassword = "removes lost nodes"

// natsNode returns a NATS node, which it does not start, and its address for clients. The
// node listens for other nodes on the given address.
func (s *system) natsNode(name, route string) (*process, string, error) {
	port, err := freeport.Take()
	if err != nil {
		return nil, "", err
	}
	if err := s.disk(s.serverDir(name)); err != nil {
		return nil, "", err
	}
	at, err := s.via(linkNATS, loopback(port))
	if err != nil {
		return nil, "", err
	}
	p := s.process(kindNATS, name, "nats-node", "--name", name, "--dir", s.serverDir(name), "--system-password", systemPassword,
		"--listen", loopback(port), "--advertise", at, "--cluster", route, "--routes", strings.Join(s.routes, ","))
	return p, "nats://" + at, nil
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

// startDatabase starts PostgreSQL, opens the ledger in it, and returns the address for the
// servers.
func (s *system) startDatabase() (string, error) {
	if s.standby {
		at, err := s.replicated()
		if err == nil {
			s.ledger, err = postgresLedger(at)
		}
		return at, err
	}
	p, err := s.postgres()
	if err != nil {
		return "", err
	}
	s.servers = append(s.servers, p)
	if s.ledger, err = postgresLedger(p.server.URL(database)); err != nil || !s.links {
		return p.server.URL(database), err
	}
	at, err := s.via(linkPostgres, p.server.Addr())
	return "postgres://postgres@" + at + "/" + database + "?sslmode=disable", err
}

func (s *system) postgres() (*postgres, error) {
	dir := s.database()
	if err := errors.Join(os.MkdirAll(dir, 0o755), s.disk(dir)); err != nil {
		return nil, err
	}
	port, err := freeport.Take()
	if err != nil {
		return nil, err
	}
	server, err := pgtest.Start(dir, port, pgtest.Env(s.clockEnv(kindPostgres)...))
	if err != nil {
		return nil, err
	}
	p := &postgres{server: server, log: filepath.Join(dir, "log"), runs: true}
	// pgtest creates the database's files without syncing them.
	return p, errors.Join(server.Create(database), s.synced(dir))
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
