package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"loadstar/internal/testkit/pgtest"
	"loadstar/rig/product"
	"loadstar/server"
	serverledger "loadstar/server/ledger"
)

// fixture trains with a fleet, kills it in the middle of a round, and returns the files that
// remain.
func fixture(ctx context.Context, o options) ([]*stored, error) {
	const meters, hosts = 50, 5
	data, err := generate(ctx, o.bin, o.dir, meters)
	if err != nil {
		return nil, err
	}
	s, err := start(ctx, o.bin, o.dir, layout{agents: hosts, data: data})
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }() // all processes are killed below
	token, err := s.insist(ctx, o.patience, "token", "create", "--uses", fmt.Sprint(hosts))
	if err != nil {
		return nil, err
	}
	for i := range hosts {
		if err := s.join(ctx, token, i, o.patience); err != nil {
			return nil, err
		}
	}
	if err := s.submit(ctx, o.dir, planOf(0, o.seed, 100, 30), meters, o.patience); err != nil {
		return nil, err
	}
	for end := time.Now().Add(o.patience); ; {
		if p, err := s.ledger.progress(ctx); err == nil && p.versions >= 4 {
			break
		}
		if time.Now().After(end) || product.Sleep(ctx, lookEvery) != nil {
			return nil, errors.New("the fleet does not train")
		}
	}
	home := s.serverDir("server")
	backup := filepath.Join(o.dir, "backup")
	if err := backUp(ctx, home, backup); err != nil {
		return nil, err
	}
	if err := s.servers[0].Kill(); err != nil { // the agents cannot send the results that they compute now
		return nil, err
	}
	_ = product.Sleep(ctx, time.Second) // the code below ends with the context too
	clients, err := hosted(s, 0)
	if err != nil {
		return nil, err
	}
	if err := s.hosts[0].Kill(); err != nil {
		return nil, err
	}
	runs, err := s.ledger.runs(ctx, "")
	if err != nil {
		return nil, err
	}
	lite := func(suffix string) func(string) bool {
		return func(path string) bool { return strings.HasSuffix(path, "ledger.db"+suffix) }
	}
	base := filepath.Join(o.dir, "ledger")
	if err := os.Mkdir(base, 0o700); err != nil {
		return nil, err
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := copyFile(filepath.Join(home, "ledger.db"+suffix), filepath.Join(base, "ledger.db"+suffix)); err != nil {
			return nil, err
		}
	}
	// Without its log, every page of the database file matters.
	closed := filepath.Join(o.dir, "closed")
	if err := copyTree(base, closed); err != nil {
		return nil, err
	}
	l, err := serverledger.Open(ctx, "sqlite:"+filepath.Join(closed, "ledger.db"))
	if err != nil {
		return nil, err
	}
	if err := l.Close(); err != nil {
		return nil, err
	}
	all := []*stored{
		{name: "SQLite database", dir: closed, files: lite(""), read: readLedger, share: 20, names: []string{"ledger"}},
		{name: "SQLite log", dir: base, files: lite("-wal"), read: readLedger, share: 15, names: []string{"ledger"}},
		{name: "blobs", dir: filepath.Join(home, "blobs"), read: readBlobs, share: 8, names: []string{"blob: "}},
		{name: "keys and certificates", dir: filepath.Join(home, "pki"), read: readAuthority, share: 8, names: []string{"pem"}},
		{name: "operator's folder", dir: filepath.Join(home, "operator"), read: readOperator(filepath.Join(home, "pki")), share: 8, names: []string{"operator", "copy"}},
		{name: "agent's state", dir: s.agentDir(0), files: func(path string) bool { return filepath.Base(path) == "agent.db" }, read: readState(runs[0].id, clients), share: 12, names: []string{"agent.db"}},
		{name: "agent's identity", dir: s.agentDir(0), files: func(path string) bool { return filepath.Base(path) == "identity.pem" }, read: readIdentity, share: 8, names: []string{"identity.pem"}},
		{name: "backup", dir: backup, read: readBackup, share: 8, names: []string{"backup", "blob", "pem"}},
	}
	pg, err := postgresFixture(o.dir)
	if errors.Is(err, pgtest.ErrMissing) {
		return all, nil
	} else if err != nil {
		return nil, err
	}
	return append(all, pg), nil
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o600)
}

func copyOwner(info fs.FileInfo, path string) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || os.Getuid() != 0 {
		return nil
	}
	return os.Chown(path, int(st.Uid), int(st.Gid))
}

// hosted returns the clients of an agent.
func hosted(s *system, i int) (all []string, err error) {
	err = s.ledger.rows(context.Background(), func(r *sql.Rows) error {
		var c string
		err := r.Scan(&c)
		all = append(all, c)
		return err
	}, "SELECT c.name FROM clients c JOIN agents a ON a.id = c.agent WHERE a.name = $1", s.hosts[i].name)
	return all, err
}

func backUp(ctx context.Context, dir, to string) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(to, "backup.tar"))
	if err != nil {
		return err
	}
	return errors.Join(server.Backup(ctx, dir, f), f.Close())
}

// postgresFixture creates a PostgreSQL ledger with rows.
func postgresFixture(dir string) (*stored, error) {
	at := filepath.Join(dir, "pgdata")
	if err := os.Mkdir(at, 0o755); err != nil {
		return nil, err
	}
	p, err := pgtest.Start(at, 0)
	if err != nil {
		return nil, err
	}
	l, err := serverledger.Open(context.Background(), p.URL("postgres"))
	if err == nil {
		err = l.Close()
	}
	if err == nil {
		err = withDB(p, func(db *sql.DB) error {
			for _, text := range []string{
				`INSERT INTO receipts (run, round, client, no, version, batch, examples, steps, train_loss) SELECT 'run', g / 50, 'client ' || g, g, g / 50, g, 100, 1, g FROM generate_series(1, 20000) g`,
				`INSERT INTO partials (run, batch, version, numbers) SELECT 'run', g, 1, decode(repeat(md5(g::text), 200), 'hex') FROM generate_series(1, 200) g`,
				`CHECKPOINT`,
			} {
				if _, err := db.Exec(text); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return &stored{
		name: "PostgreSQL", dir: at, read: readPostgres, share: 5, names: []string{"PostgreSQL", "pgtest", "invalid page", "database", "file", "relation"},
		files: func(path string) bool { return containsAny(path, []string{"/base/5/", "/global/", "/pg_xact/"}) },
	}, errors.Join(err, p.Stop())
}
