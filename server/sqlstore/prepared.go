package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"modernc.org/sqlite" // also registers the driver
)

// openPrepared opens connections to SQLite that keep their prepared statements, because SQLite
// takes longer to parse most statements than to run them.
func openPrepared(dsn string) (*sql.DB, error) {
	c, err := sqlite.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(liteConnector{c}), nil
}

type liteConnector struct{ driver.Connector }

func (c liteConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &preparedConn{conn.(liteConn), map[string]driver.Stmt{}}, nil
}

// liteConn contains the methods of a SQLite connection that package sql uses.
type liteConn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// maxPrepared limits a connection's idle statements. Statements longer than maxText insert many
// rows. There is a separate statement for each number of rows, and each takes much memory.
const (
	maxPrepared = 256
	maxText     = 4 << 10
)

// preparedConn is a connection with its idle statements, by their text. Package sql calls it and its
// rows from one goroutine at a time.
type preparedConn struct {
	liteConn
	idle map[string]driver.Stmt
}

var (
	_ driver.QueryerContext = (*preparedConn)(nil)
	_ driver.ExecerContext  = (*preparedConn)(nil)
)

// take returns a statement that is not in use. Rows of a statement with the same text may still
// be open.
func (c *preparedConn) take(ctx context.Context, text string) (driver.Stmt, error) {
	if s, ok := c.idle[text]; ok {
		delete(c.idle, text)
		return s, nil
	}
	return c.PrepareContext(ctx, text)
}

// putBack stores a statement for its next use.
func (c *preparedConn) putBack(text string, s driver.Stmt) error {
	if _, ok := c.idle[text]; ok || len(text) > maxText {
		return s.Close()
	}
	for other, old := range c.idle {
		if len(c.idle) < maxPrepared {
			break
		}
		delete(c.idle, other)
		if err := old.Close(); err != nil {
			return errors.Join(err, s.Close())
		}
	}
	c.idle[text] = s
	return nil
}

func (c *preparedConn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	s, err := c.take(ctx, text)
	if err != nil {
		return nil, err
	}
	rows, err := s.(driver.StmtQueryContext).QueryContext(ctx, args)
	if err != nil {
		_ = s.Close() // reports the same error
		return nil, err
	}
	return &preparedRows{rows, c, text, s}, nil
}

func (c *preparedConn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	s, err := c.take(ctx, text)
	if err != nil {
		return nil, err
	}
	r, err := s.(driver.StmtExecContext).ExecContext(ctx, args)
	if err != nil {
		_ = s.Close() // reports the same error
		return nil, err
	}
	return r, c.putBack(text, s)
}

func (c *preparedConn) Close() (err error) {
	for _, s := range c.idle {
		err = errors.Join(err, s.Close())
	}
	return errors.Join(err, c.liteConn.Close())
}

// preparedRows are rows that put their statement back.
type preparedRows struct {
	driver.Rows
	conn *preparedConn
	text string
	s    driver.Stmt
}

func (r *preparedRows) Close() error {
	if err := r.Rows.Close(); err != nil {
		return errors.Join(err, r.s.Close())
	}
	return r.conn.putBack(r.text, r.s)
}
