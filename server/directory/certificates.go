package directory

import (
	"context"
	"database/sql"
	"time"

	"loadstar/server/sqlstore"
)

// RenewCertificate stores the successor of the user's certificate with the given serial number.
// The old certificate stays valid, because the user may never receive the new one. A revocation
// of either certificate revokes both. Certificates that were replaced by earlier renewals
// become invalid now. Certificates of the user local are an exception, because gateways may
// have them in their folders and would store them again.
func (us *Users) RenewCertificate(ctx context.Context, old string, c Certificate, actor string) (err error) {
	defer sqlstore.Wrap(&err, "renewing the certificate of", c.User)
	return us.store.Update(ctx, func(tx *sqlstore.Txn) error {
		if _, err := us.userFor(ctx, tx, c.User); err != nil {
			return err
		}
		var first string
		err := tx.QueryRowContext(ctx, "SELECT CASE WHEN renews = '' THEN serial ELSE renews END FROM certificates WHERE serial = $1 AND person = $2 AND revoked = 0 AND expires > $3",
			old, c.User, sqlstore.ToMillis(c.Issued)).Scan(&first)
		if err != nil {
			return sqlstore.OrNotFound(err, "certificate "+old)
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM certificates WHERE (serial = $1 OR renews = $1) AND serial <> $2 AND revoked = 0 AND person <> $3", first, old, LocalUser); err != nil {
			return err
		}
		if err := insertCertificate(ctx, tx, c); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE certificates SET renews = $2 WHERE serial = $1", c.Serial, first); err != nil {
			return err
		}
		return us.log.Record(ctx, tx, c.Issued, actor, "renew certificate", c.User, "serial "+c.Serial+", until "+c.Expires.UTC().Format(time.RFC3339))
	})
}

// renewals returns the serial numbers of a certificate, and of all valid certificates that it
// was renewed from or to.
func renewals(ctx context.Context, tx *sqlstore.Txn, serial string) (all []string, err error) {
	err = sqlstore.Query(ctx, tx, func(r *sql.Rows) error {
		var s string
		err := r.Scan(&s)
		all = append(all, s)
		return err
	}, `SELECT x.serial FROM certificates x, certificates c WHERE c.serial = $1 AND x.revoked = 0
		AND CASE WHEN x.renews = '' THEN x.serial ELSE x.renews END = CASE WHEN c.renews = '' THEN c.serial ELSE c.renews END ORDER BY x.serial`, serial)
	return all, err
}
