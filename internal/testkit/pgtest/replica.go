package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"loadstar/internal/testkit"
)

// Pair is a primary and a standby that follows it. Like a Server, it is not safe for
// concurrent use.
type Pair struct {
	servers [2]*Server
	primary int
}

// StartPair starts two servers in folders below dir. If synchronous is set, a commit on the
// primary waits until the standby has it on disk.
func StartPair(dir string, synchronous bool, options ...Option) (*Pair, error) {
	p := &Pair{}
	var ports [2]int
	for i := range ports {
		var err error
		if ports[i], err = testkit.FreePort(); err != nil {
			return nil, err
		}
	}
	for i, port := range ports {
		at := filepath.Join(dir, strconv.Itoa(i+1))
		if err := os.MkdirAll(at, 0o755); err != nil {
			return nil, err
		}
		own := append([]Option{With("hot_standby=on", "wal_receiver_timeout=10s",
			"primary_conninfo=host=127.0.0.1 user=postgres application_name="+standbyName+" port="+strconv.Itoa(ports[1-i]), "wal_retrieve_retry_interval=100ms")}, options...)
		if synchronous {
			own = append(own, With("synchronous_standby_names="+standbyName, "synchronous_commit=on"))
		}
		s, err := prepare(at, port, own)
		if err != nil {
			return nil, err
		}
		p.servers[i] = s
	}
	first := p.servers[0]
	// pg_rewind needs checksums.
	if err := first.create(); err != nil {
		return nil, err
	}
	// pg_rewind needs the log since the last failover, which pg_rewind's own recovery of the
	// files must not delete. The recovery reads only this configuration file.
	conf, err := os.OpenFile(filepath.Join(first.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	_, err = conf.WriteString("wal_keep_size = 512MB\n")
	if err = errors.Join(err, conf.Close()); err != nil {
		return nil, err
	}
	if err := first.Start(); err != nil {
		return nil, err
	}
	return p, p.Rebuild(true)
}

const standbyName = "standby"

// Primary returns the server that accepts writes.
func (p *Pair) Primary() *Server { return p.servers[p.primary] }

// Standby returns the other server.
func (p *Pair) Standby() *Server { return p.servers[1-p.primary] }

// URL returns the address of a database on both servers.
func (p *Pair) URL(database string) string {
	return fmt.Sprintf("postgres://postgres@%s,%s/%s?sslmode=disable&target_session_attrs=read-write", p.servers[0].Addr(), p.servers[1].Addr(), database)
}

// Promote makes the standby the primary. A former primary that is still running does not notice
// the promotion.
func (p *Pair) Promote() error {
	s := p.Standby()
	if err := s.run("pg_ctl", "promote", "-D", s.data(), "-w", "-t", "60"); err != nil {
		return err
	}
	p.primary = 1 - p.primary
	// Until the first checkpoint, the new primary's files name the old timeline, so pg_rewind
	// would find nothing to do.
	return s.run("psql", "-X", "-q", "-h", s.dir, "-p", strconv.Itoa(s.port), "-U", "postgres", "-c", "CHECKPOINT")
}

// Rebuild makes the server that is down a standby of the primary, and returns when it
// follows. It rewinds the server's files, or copies all files if whole is set.
func (p *Pair) Rebuild(whole bool) error {
	s, from := p.Standby(), p.Primary()
	source := "host=127.0.0.1 user=postgres dbname=postgres port=" + strconv.Itoa(from.port)
	if whole {
		if err := os.RemoveAll(s.data()); err != nil {
			return err
		}
		if err := s.run("pg_basebackup", "-D", s.data(), "-d", source, "-X", "stream", "-c", "fast", "--no-sync"); err != nil {
			return err
		}
	} else if err := s.run("pg_rewind", "-D", s.data(), "--source-server="+source); err != nil {
		return err
	}
	signal := filepath.Join(s.data(), "standby.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		return err
	}
	if s.as != nil {
		if err := os.Chown(signal, int(s.as.Uid), int(s.as.Gid)); err != nil {
			return err
		}
	}
	if err := s.Start(); err != nil {
		return err
	}
	return p.Follows(context.Background(), time.Minute)
}

// Follows waits until the standby receives everything that the primary writes.
func (p *Pair) Follows(ctx context.Context, limit time.Duration) error {
	from := p.Primary()
	for end := time.Now().Add(limit); ; {
		out, err := from.command("psql", "-X", "-A", "-t", "-h", from.dir, "-p", strconv.Itoa(from.port), "-U", "postgres", "-c",
			"SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND application_name = '"+standbyName+"'").CombinedOutput()
		if err == nil && string(bytes.TrimSpace(out)) == "1" {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("pgtest: the standby does not follow: %w\n%s", err, out)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Crash kills both servers.
func (p *Pair) Crash() error { return errors.Join(p.servers[0].Crash(), p.servers[1].Crash()) }
