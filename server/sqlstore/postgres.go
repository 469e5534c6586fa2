package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"net"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// Limits that turn a dead link or a dead machine into an error. Without them, a statement on a
// dead link waits until the kernel gives up, which takes a quarter of an hour, and a
// transaction of a dead machine keeps its locks for two hours.
const (
	// postgresConnect is the time limit for one attempt to connect to one host.
	postgresConnect = 5 * time.Second
	// deadAfter is how long the kernel waits for an answer to a probe or to data.
	deadAfter  = 25 * time.Second
	probeAfter = 10 * time.Second
	probeEvery = 5 * time.Second
	probes     = 3
	// silentFor is the time limit for a statement. A statement that waits longer for a lock
	// fails and is repeated.
	silentFor = time.Minute
	// commitFor is the time limit for a commit and for operations that use Promptly. A primary
	// that has lost its standby confirms no commits, and another host may have taken over.
	commitFor = 10 * time.Second
	// migrateFor replaces silentFor while the schema is migrated.
	migrateFor = time.Hour
)

// session contains the settings of every session. Every query is planned anew, because a plan
// that was cached when a table was empty scans the whole table when it is full. Transactions
// are written for the isolation level read committed, which is only a default in PostgreSQL and
// can be changed. The server ends a transaction whose machine is gone, or whose client is
// silent for longer than a call to the blob store takes, because its locks block other
// transactions. It sets no time limit on statements, because that would also cancel a commit
// that waits for a standby, and PostgreSQL then shows the commit before the standby has it.
const session = `SET plan_cache_mode = force_custom_plan;
	SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED;
	SET statement_timeout = 0;
	SET idle_in_transaction_session_timeout = '3min';
	SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3;
	SET tcp_user_timeout = 25000`

func (s *Store) openPostgres(at string) error {
	s.Chunk, s.commitFor = 64, commitFor
	config, err := postgresConfig(at)
	if err != nil {
		return err
	}
	s.limit.Store(int64(migrateFor))
	config.LookupFunc, config.DialFunc, config.ValidateConnect = s.hosts.lookup, s.dial, s.hosts.validate(config.ValidateConnect)
	s.listener = config
	c := stdlib.GetConnector(*config, stdlib.OptionBeforeConnect(s.hosts.order), stdlib.OptionResetSession(s.hosts.reuse), stdlib.OptionAfterConnect(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, session)
		return err
	}))
	s.DB = &Pool{DB: sql.OpenDB(connector{c}), work: new(work)}
	s.DB.SetMaxOpenConns(postgresConnections)
	s.DB.SetMaxIdleConns(postgresConnections)
	s.DB.SetConnMaxIdleTime(5 * time.Minute)
	s.Write, s.Ungated = s.DB, s.DB
	return nil
}

// postgresConfig reads the address of a database. If it names several hosts, only the one that
// accepts writes is used, unless the address specifies otherwise.
func postgresConfig(at string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(at)
	if err != nil {
		return nil, err
	}
	config.ConnectTimeout = cmp.Or(config.ConnectTimeout, postgresConnect)
	several := false
	for _, f := range config.Fallbacks {
		several = several || f.Host != config.Host || f.Port != config.Port
	}
	if u, err := url.Parse(at); several && config.ValidateConnect == nil && (err != nil || !u.Query().Has("target_session_attrs")) {
		config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	return config, nil
}

// connector opens connections. It marks the context of these connections, to distinguish them
// from connections with which the driver cancels statements.
type connector struct{ sqldriver.Connector }

type opening struct{}

func (c connector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	return c.Connector.Connect(context.WithValue(ctx, opening{}, true))
}

// errNoCancel is the reason why a statement is not cancelled at the server.
var errNoCancel = errors.New("statements are not cancelled")

// dial connects to PostgreSQL. It refuses connections that cancel a statement. If the statement
// is a commit that waits for a standby, PostgreSQL would end the wait and make the transaction
// visible to all others, although the standby does not have it. An agent could then receive the
// verdict that its update is counted, and a failover would lose the update. A statement whose
// caller has given up causes no harm.
func (s *Store) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if ctx.Value(opening{}) == nil {
		return nil, errNoCancel
	}
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probeAfter, Interval: probeEvery, Count: probes},
		Control:         giveUpAfter(deadAfter),
	}
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		s.hosts.fail(address)
		return nil, err
	}
	return &limitedConn{Conn: c, limit: func() time.Duration { return time.Duration(s.limit.Load()) }}, nil
}

// Promptly sets a time limit for a frequent operation that must not wait for an unresponsive
// host, such as counting, taking the lead, or reading stamps. Call done afterwards.
func (s *Store) Promptly(ctx context.Context) (limited context.Context, done func()) {
	if s.SQLite {
		return ctx, func() {}
	}
	limited, cancel := context.WithTimeout(ctx, s.commitFor)
	return limited, func() {
		if limited.Err() != nil && ctx.Err() == nil {
			s.hosts.doubt()
		}
		cancel()
	}
}

// adaptPostgres adds the parts of the schema that only PostgreSQL has.
//
// SQLite can use its ordinary indexes to find names by prefix, because it compares bytes.
// PostgreSQL compares strings by the rules of a language, so it needs separate indexes for
// this.
//
// Stored sums cannot be compressed, because they look like random bits, and are deleted after
// seconds. Without separate vacuum settings, their table would grow to a thousand times the
// size of its content.
func (s *Store) adaptPostgres(ctx context.Context) error {
	if s.SQLite {
		return nil
	}
	for _, text := range []string{
		"CREATE INDEX IF NOT EXISTS clients_prefix ON clients (name text_pattern_ops)",
		"CREATE INDEX IF NOT EXISTS agents_prefix ON agents (name text_pattern_ops)",
		"CREATE SEQUENCE IF NOT EXISTS batches",
		// In a database that was copied table by table, the sequence does not have its value.
		`SELECT setval('batches', newest) FROM batches, (SELECT GREATEST((SELECT max(batch) FROM runs), (SELECT max(batch) FROM counters)) AS newest) AS has WHERE newest >= last_value`,
	} {
		if _, err := s.Write.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	for _, table := range []string{"partials", "updates"} {
		// Altering a table waits for all transactions that use it.
		var adapted bool
		if err := s.DB.QueryRowContext(ctx, "SELECT attstorage = 'e' FROM pg_attribute WHERE attrelid = $1::regclass AND attname = 'numbers'", table).Scan(&adapted); err != nil {
			return err
		}
		if adapted {
			continue
		}
		if _, err := s.Write.ExecContext(ctx, "ALTER TABLE "+table+` ALTER COLUMN numbers SET STORAGE EXTERNAL,
			SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
			toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 1000, toast.autovacuum_vacuum_cost_delay = 0)`); err != nil {
			return err
		}
	}
	return nil
}
