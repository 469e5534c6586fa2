package sqlstore

import (
	sqldriver "database/sql/driver"
	"errors"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
)

// Unreachable reports whether an error means that the database is unreachable or starting, so
// that a retry may help.
func Unreachable(err error) bool {
	if _, wrong := errors.AsType[*pgconn.ParseConfigError](err); wrong {
		return false
	}
	if said := (*pgconn.PgError)(nil); errors.As(err, &said) {
		switch said.Code[:min(2, len(said.Code))] {
		case "08", "53", "57": // connection errors, lack of resources, and start or stop by an operator
			return true
		}
		return false
	}
	var refused *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &refused) || errors.As(err, &network) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, sqldriver.ErrBadConn) ||
		pgconn.SafeToRetry(err) // for instance if the connection was closed before the query was sent
}
