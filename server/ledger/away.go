package ledger

import (
	sqldriver "database/sql/driver"
	"errors"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
)

// Away says that an error is that of a database which cannot be reached, or is just
// coming up: waiting may help.
func Away(err error) bool {
	var wrong *pgconn.ParseConfigError
	if errors.As(err, &wrong) {
		return false
	}
	if said := (*pgconn.PgError)(nil); errors.As(err, &said) {
		switch said.Code[:min(2, len(said.Code))] {
		case "08", "53", "57": // of connections, of resources, and of operators who start and stop it
			return true
		}
		return false
	}
	var refused *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &refused) || errors.As(err, &network) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, sqldriver.ErrBadConn) ||
		pgconn.SafeToRetry(err) // among them those of a connection that was closed before anything was sent
}
