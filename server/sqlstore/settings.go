package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"loadstar/internal/disk"
	"loadstar/internal/finding"
)

// postgresConnections is the maximum number of a process's connections to PostgreSQL.
const postgresConnections = 24

// oldestPostgres is the oldest major version of PostgreSQL that still receives fixes.
const oldestPostgres = 14

// Schema contains the version of a database's schema, and the newest version that this program
// knows. Both are 0 if the database has none yet.
type Schema struct{ Version, Known int64 }

// OpenToLook opens a database for reading, even while servers use it, and changes nothing.
// Methods that need a schema may be called only if the database has the newest known schema. If
// a SQLite database does not exist, the error wraps fs.ErrNotExist.
func OpenToLook(ctx context.Context, at string) (l *Store, s Schema, err error) {
	defer Wrap(&err, "opening the database")
	if path, ok := strings.CutPrefix(at, "sqlite:"); ok {
		if _, err := os.Stat(path); err != nil {
			return nil, s, err // SQLite would create the file
		}
	}
	l, err = openDatabase(ctx, at, time.Now, func(l *Store, ctx context.Context) error {
		there := "SELECT to_regclass('goose_db_version') IS NOT NULL"
		if l.SQLite {
			there = "SELECT COUNT(*) > 0 FROM sqlite_master WHERE name = 'goose_db_version'"
		}
		var has bool
		if err := l.DB.QueryRowContext(ctx, there).Scan(&has); err != nil || !has {
			return err // goose would create its table
		}
		p, version, err := l.schema(ctx)
		if err != nil {
			return err
		}
		s = Schema{Version: version, Known: newestOf(p)}
		return nil
	})
	return l, s, err
}

// SQLitePath returns the file of a SQLite database, or an empty string for PostgreSQL.
func (s *Store) SQLitePath() string { return s.path }

// ClockOffset returns how far the machine's clock was ahead of the database's at the last
// measurement. For SQLite, which has no clock of its own, the offset is 0.
func (s *Store) ClockOffset() time.Duration {
	if r := s.clock.at.Load(); r != nil {
		return r.local.Sub(r.database)
	}
	return 0
}

// Settings checks the database settings on which the ledger's guarantee depends: a counted
// update is never lost and never counted twice. It reads the settings of this process's own
// session, so settings of its user and of its database are included.
func (s *Store) Settings(ctx context.Context) (all finding.List, err error) {
	defer Wrap(&err, "reading the database's settings")
	if s.SQLite {
		return s.settingsOfSQLite(ctx)
	}
	return s.settingsOfPostgres(ctx)
}

func (s *Store) settingsOfSQLite(ctx context.Context) (all finding.List, err error) {
	var mode string
	var sync int64
	if err := s.Write.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil {
		return nil, err
	}
	if err := s.Write.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&sync); err != nil {
		return nil, err
	}
	judgeSQLite(&all, mode, sync)
	disk.Kind(&all, "database's file system", filepath.Dir(s.path), true)
	return all, nil
}

func judgeSQLite(all *finding.List, mode string, sync int64) {
	const fullSync = 2 // SQLite's value for FULL
	switch {
	case mode != "wal":
		all.Fail("database's journal", "use a local file system, which can share memory between processes", "SQLite cannot use a write-ahead log here and fell back to journal_mode=%s", mode)
	case sync < fullSync:
		all.Fail("database's journal", "report this: the server asks for synchronous=FULL", "SQLite does not sync every commit (synchronous=%d)", sync)
	default:
		all.OK("database's journal", "SQLite syncs every commit to its write-ahead log")
	}
}

// postgres contains PostgreSQL's information about itself.
type postgres struct {
	fsync, fullPages, commit, standbyNames, checksums, isolation, text, ignore, zero string
	version, connections, reserved                                                   int
	recovering                                                                       bool
	// standbys is the number of standbys, and synchronous the number of standbys for which a
	// commit waits. visible is the number of standbys whose state is visible. Without the role
	// pg_monitor, a user sees only that standbys exist.
	standbys, synchronous, visible int
}

func (s *Store) settingsOfPostgres(ctx context.Context) (all finding.List, err error) {
	var p postgres
	err = s.DB.QueryRowContext(ctx, `SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
		current_setting('synchronous_standby_names'), current_setting('data_checksums'), current_setting('transaction_isolation'), current_setting('server_version'),
		current_setting('ignore_checksum_failure'), current_setting('zero_damaged_pages'), CAST(current_setting('server_version_num') AS INT),
		CAST(current_setting('max_connections') AS INT), CAST(current_setting('superuser_reserved_connections') AS INT), pg_is_in_recovery()`).
		Scan(&p.fsync, &p.fullPages, &p.commit, &p.standbyNames, &p.checksums, &p.isolation, &p.text, &p.ignore, &p.zero, &p.version, &p.connections, &p.reserved, &p.recovering)
	if err == nil {
		// pg_basebackup appears as a standby while it copies, but is not a standby.
		err = s.DB.QueryRowContext(ctx, `SELECT COUNT(*), COUNT(*) FILTER (WHERE sync_state IN ('sync', 'quorum')), COUNT(sync_state)
			FROM pg_stat_replication WHERE COALESCE(state, '') <> 'backup'`).Scan(&p.standbys, &p.synchronous, &p.visible)
	}
	if err == nil {
		p.judge(&all)
		s.judgePatroni(ctx, &all)
	}
	return all, err
}

const reload = " and reload PostgreSQL (SELECT pg_reload_conf())"

func (p *postgres) judge(all *finding.List) {
	switch major := p.version / 10_000; {
	case p.recovering:
		all.Fail("database", "name the primary in --database, or add target_session_attrs=read-write", "PostgreSQL %s is a standby, which cannot be written", p.text)
	case major < oldestPostgres:
		all.Warn("database", fmt.Sprintf("upgrade PostgreSQL to %d or newer", oldestPostgres), "PostgreSQL %s no longer receives corrections", p.text)
	default:
		all.OK("database", "PostgreSQL %s", p.text)
	}
	if p.fsync != "on" {
		all.Fail("database's fsync", "set fsync = on in postgresql.conf"+reload, "fsync is %s: a power loss can lose or damage everything in the database", p.fsync)
	} else {
		all.OK("database's fsync", "on")
	}
	if p.fullPages != "on" {
		all.Fail("database's full_page_writes", "set full_page_writes = on in postgresql.conf"+reload, "full_page_writes is %s: a power loss can leave half-written pages", p.fullPages)
	} else {
		all.OK("database's full_page_writes", "on")
	}
	p.judgeCommit(all)
	p.judgeStandbys(all)
	switch {
	case p.ignore == "on" || p.zero == "on":
		all.Fail("database's checksums", "set ignore_checksum_failure = off and zero_damaged_pages = off", "PostgreSQL is configured to continue with damaged pages (ignore_checksum_failure=%s, zero_damaged_pages=%s)", p.ignore, p.zero)
	case p.checksums != "on":
		all.Warn("database's checksums", "stop PostgreSQL and run pg_checksums --enable", "data_checksums is off, so damage of the disk is not detected")
	default:
		all.OK("database's checksums", "on")
	}
	if p.isolation != "read committed" {
		all.Fail("database's isolation", "connect to PostgreSQL without a pooler that shares sessions", "transactions run with %q, although the server asks for read committed", p.isolation)
	} else {
		all.OK("database's isolation", "read committed")
	}
	if usable := p.connections - p.reserved; usable < postgresConnections {
		all.Warn("database's connections", fmt.Sprintf("set max_connections to %d for each server process, and some more", postgresConnections), "PostgreSQL accepts %d connections of users, but one server process opens up to %d", usable, postgresConnections)
	} else {
		all.OK("database's connections", "up to %d for each server process, of %d", postgresConnections, usable)
	}
}

// judgeCommit describes how durable a commit is when the server receives its confirmation.
func (p *postgres) judgeCommit(all *finding.List) {
	const check = "database's synchronous_commit"
	replicated := p.standbyNames != ""
	set := "set synchronous_commit = on for this user and database (ALTER ROLE, ALTER DATABASE, postgresql.conf)"
	switch {
	case p.commit == "off":
		all.Fail(check, set, "off: a crash of PostgreSQL loses the updates that were counted in the last moments, although agents were told that they count")
	case p.commit == "local" && replicated:
		all.Warn(check, set, "local: a commit does not wait for the standbys of synchronous_standby_names, so a failover can lose counted updates")
	case p.commit == "remote_write" && replicated:
		all.Warn(check, set, "remote_write: a standby may not have synced a commit, so a failover can lose counted updates if the standby's machine fails too")
	case replicated:
		all.OK(check, "%s: a commit is on the disks of the primary and of the synchronous standbys", p.commit)
	default:
		all.OK(check, "%s: a commit is on the primary's disk", p.commit)
	}
}

func (p *postgres) judgeStandbys(all *finding.List) {
	const check = "database's standbys"
	switch {
	case p.standbys == 0 && p.standbyNames == "":
		all.OK(check, "none")
	case p.standbys > 0 && p.standbyNames == "":
		all.Warn(check, "set synchronous_standby_names, for example to 'ANY 1 (*)'"+reload, "%d standbys replicate, but none of them synchronously; a failover can lose counted updates", p.standbys)
	case p.visible < p.standbys:
		all.OK(check, "%d, with synchronous_standby_names=%q; grant pg_monitor to see their states", p.standbys, p.standbyNames)
	case p.synchronous == 0:
		all.Warn(check, "start a standby that synchronous_standby_names lists", "no standby is synchronous, although synchronous_standby_names is %q, so commits wait", p.standbyNames)
	default:
		all.OK(check, "%d, of which %d are synchronous", p.standbys, p.synchronous)
	}
}

// Timeline returns the number that PostgreSQL increments when a standby becomes the
// primary, and 0 for SQLite.
func (s *Store) Timeline(ctx context.Context) (n int64, err error) {
	defer Wrap(&err, "reading the database's timeline")
	if s.SQLite {
		return 0, nil
	}
	var file string
	if err := s.DB.QueryRowContext(ctx, "SELECT pg_walfile_name(pg_current_wal_lsn())").Scan(&file); err != nil {
		return 0, err
	}
	_, err = fmt.Sscanf(file, "%8x", &n)
	return n, err
}

// Integrity checks whether the database is damaged. With SQLite, Integrity reads the whole
// file, so do not call it often. PostgreSQL reports the number of damaged pages that it has
// encountered.
func (s *Store) Integrity(ctx context.Context) (all finding.List, err error) {
	defer Wrap(&err, "checking the database")
	const check, restore = "database's integrity", "stop the server, restore the newest backup, and replace the disk"
	if !s.SQLite {
		var failures sql.NullInt64
		if err := s.DB.QueryRowContext(ctx, "SELECT CAST(SUM(checksum_failures) AS BIGINT) FROM pg_stat_database").Scan(&failures); err != nil {
			return nil, err
		}
		switch {
		case failures.Int64 > 0:
			all.Fail(check, "restore from a standby or a backup, and replace the disk", "PostgreSQL has encountered %d pages with a wrong checksum", failures.Int64)
		case !failures.Valid:
			all.OK(check, "not known, because data_checksums is off")
		default:
			all.OK(check, "PostgreSQL has encountered no page with a wrong checksum")
		}
		return all, nil
	}
	switch err := checkIntegrity(ctx, s.DB, "quick_check"); {
	case err != nil && !errors.Is(err, ErrDamaged):
		return nil, err
	case err != nil:
		all.Fail(check, restore, "%s: %v", s.path, err)
	default:
		all.OK(check, "%s has no damage that SQLite can see", s.path)
	}
	return all, nil
}
