package ledger

import (
	"context"
	"database/sql"

	"loadstar/server/sqlstore"
)

// BlobsOf returns the blobs that the copy of a SQLite ledger refers to. It does not change
// the copy.
func BlobsOf(ctx context.Context, path string) (all []string, err error) {
	err = sqlstore.WithNewest(ctx, path, func(s *sqlstore.Store) (err error) {
		all, err = blobs(ctx, s.DB)
		return err
	})
	return all, err
}

// Blobs returns the hashes of all blobs that the ledger refers to.
func (l *Ledger) Blobs(ctx context.Context) (all []string, err error) {
	return blobs(ctx, l.Store.DB)
}

func blobs(ctx context.Context, q sqlstore.Querier) (all []string, err error) {
	defer sqlstore.Wrap(&err, "listing blobs")
	err = sqlstore.Query(ctx, q, func(r *sql.Rows) error {
		var b string
		err := r.Scan(&b)
		all = append(all, b)
		return err
	}, `SELECT b FROM (SELECT weights AS b FROM versions UNION SELECT control FROM versions UNION SELECT plan_blob FROM runs UNION SELECT server FROM runs UNION SELECT server FROM versions
		UNION SELECT plan_blob FROM releases UNION SELECT weights FROM releases) AS named
		WHERE b <> '' ORDER BY b`)
	return all, err
}
