package sqlstore

import (
	"cmp"
	"context"
	sqldriver "database/sql/driver"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// avoidFor is the time after a host's failure during which connections try the other hosts
// first.
const avoidFor = 30 * time.Second

// hosts records the hosts of a PostgreSQL cluster that failed recently, and the newest
// timeline.
//
// When a standby takes over, the former primary may still run and accept writes that no standby
// confirms, for instance if only its supervisor died. Requiring a host that accepts writes is
// therefore not enough, because connections would return to the former primary and wait there.
type hosts struct {
	mu       sync.Mutex
	failed   map[string]time.Time // time of the last failure, by address with the host's name if it is known
	names    map[string]string    // names of hosts by their addresses
	current  string               // address of the newest connection
	timeline int64                // the highest timeline of a connection
	doubted  time.Time            // connections that were opened earlier are not used again
}

// madeKey is the key under which a connection's custom data contains the time when it was
// opened.
const madeKey = "loadstar.made"

// maxAddresses is the maximum number of addresses whose names are remembered. A cluster's
// addresses may change indefinitely.
const maxAddresses = 1000

// lookup returns the addresses of a host and remembers its name, because connections know only
// addresses and the configuration contains names.
func (h *hosts) lookup(ctx context.Context, host string) ([]string, error) {
	all, err := net.DefaultResolver.LookupHost(ctx, host)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.names == nil || len(h.names) > maxAddresses {
		h.names = map[string]string{}
	}
	for _, ip := range all {
		h.names[ip] = host
	}
	return all, err
}

// fail records that a connection to an address failed.
func (h *hosts) fail(address string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ip, port, err := net.SplitHostPort(address); err == nil && h.names[ip] != "" {
		address = net.JoinHostPort(h.names[ip], port)
	}
	if h.failed == nil {
		h.failed = map[string]time.Time{}
	}
	h.failed[address] = time.Now()
}

// doubt closes the pool's idle connections, and makes new connections try another host first.
// Call it if the database does not respond although the connection is open.
func (h *hosts) doubt() {
	h.mu.Lock()
	current := h.current
	h.doubted = time.Now()
	h.mu.Unlock()
	h.fail(current)
}

// reuse returns an error if a connection from the pool must not be used again.
func (h *hosts) reuse(_ context.Context, c *pgx.Conn) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if made, _ := c.PgConn().CustomData()[madeKey].(time.Time); made.Before(h.doubted) {
		return sqldriver.ErrBadConn
	}
	return nil
}

// order makes a connection try hosts that failed recently after the others.
func (h *hosts) order(_ context.Context, c *pgx.ConnConfig) error {
	all := append([]*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port, TLSConfig: c.TLSConfig}}, c.Fallbacks...)
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	when := func(f *pgconn.FallbackConfig) int64 {
		_, address := pgconn.NetworkAddress(f.Host, f.Port)
		if at := h.failed[address]; now.Sub(at) < avoidFor {
			return at.UnixNano()
		}
		return 0
	}
	slices.SortStableFunc(all, func(a, b *pgconn.FallbackConfig) int { return cmp.Compare(when(a), when(b)) })
	c.Host, c.Port, c.TLSConfig, c.Fallbacks = all[0].Host, all[0].Port, all[0].TLSConfig, all[1:]
	return nil
}

// validate refuses a connection to a former primary, whose timeline is older than that of an
// earlier connection. A standby has no timeline of its own; next decides whether to accept it.
func (h *hosts) validate(next pgconn.ValidateConnectFunc) pgconn.ValidateConnectFunc {
	return func(ctx context.Context, c *pgconn.PgConn) error {
		if next != nil {
			if err := next(ctx, c); err != nil {
				return err
			}
		}
		made := time.Now()
		r := c.ExecParams(ctx, "SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE pg_walfile_name(pg_current_wal_lsn()) END", nil, nil, nil, nil).Read()
		if r.Err != nil || len(r.Rows) == 0 || len(r.Rows[0][0]) < 8 {
			return r.Err
		}
		n, err := strconv.ParseInt(string(r.Rows[0][0][:8]), 16, 64)
		if err != nil {
			return err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if n < h.timeline {
			return fmt.Errorf("this PostgreSQL has timeline %d, but another one had %d, so it was the primary before a failover. If it was restored from a backup, restart this server", n, h.timeline)
		}
		if n > h.timeline { // another host has taken over
			h.timeline, h.doubted = n, made
		}
		h.current = c.Conn().RemoteAddr().String()
		c.CustomData()[madeKey] = made
		return nil
	}
}
