package fleet

import (
	"context"
	"database/sql"
)

// syncs counts how often the server, and PostgreSQL for it, wait for a disk.
type syncs struct {
	process processSyncs
	db      *sql.DB // nil unless the server uses PostgreSQL
	before  float64
}

// countSyncs starts counting. PostgreSQL must have no other users.
func (b *testbed) countSyncs(ctx context.Context) (*syncs, error) {
	s := &syncs{process: syncsOf(b.server.Pid())}
	if b.url == "" {
		return s, nil
	}
	db, err := sql.Open("pgx", b.url)
	if err != nil {
		return nil, err
	}
	s.db = db
	s.before, err = s.postgres(ctx)
	return s, err
}

// postgres returns the number of times that PostgreSQL has synced its log.
func (s *syncs) postgres(ctx context.Context) (n float64, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT wal_sync FROM pg_stat_wal").Scan(&n)
	return n, err
}

// read returns the number of syncs so far, or -1 if the system does not report it.
func (s *syncs) read(ctx context.Context) (float64, error) {
	n, ok := s.process.read()
	if !ok {
		return -1, nil
	}
	if s.db != nil {
		now, err := s.postgres(ctx)
		if err != nil {
			return 0, err
		}
		n += now - s.before
	}
	return n, nil
}

func (s *syncs) close() {
	s.process.close()
	if s.db != nil {
		s.db.Close()
	}
}
