package main

import (
	"errors"
	"os"
	"path/filepath"
	"sync"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
)

const database = "loadstar"

// postgres is a part of the system that runs PostgreSQL.
type postgres struct {
	mu     sync.Mutex
	server *pgtest.Server
	log    string
	runs   bool
}

// startDatabase starts PostgreSQL, opens the ledger in it, and returns the address for the
// servers.
func (s *system) startDatabase() (string, error) {
	if s.standbys {
		at, err := s.replicated()
		if err == nil {
			s.ledger, err = postgresLedger(at + "&target_session_attrs=read-write&connect_timeout=2")
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
	port, err := testkit.FreePort()
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
