package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"loadstar/server/sqlstore"
)

// IssuerCount counts the certificates of one issuer.
type IssuerCount struct {
	// Agents is the number of agents that are not revoked and used a certificate of the issuer
	// last. The certificates of Expired of them have expired.
	Agents, Expired int64
	// Certificates is the number of users' certificates that are neither revoked nor expired
	// nor renewed. Those of local are left out: each gateway renews its own.
	Certificates int64
}

// CountIssuers counts the certificates of issuers, whose ids are the beginnings of serial
// numbers. The count of all other issuers has an empty id. It reads all agents once.
func (l *Ledger) CountIssuers(ctx context.Context, ids []string, now time.Time) (all map[string]IssuerCount, err error) {
	defer sqlstore.Wrap(&err, "counting the certificates of issuers")
	args := []any{sqlstore.ToMillis(now)}
	which, other := make([]string, 0, len(ids)+1), "1 = 1"
	for _, id := range ids {
		args = append(args, id, len(id))
		which = append(which, fmt.Sprintf("substr(serial, 1, $%d) = $%d", len(args), len(args)-1))
		other += fmt.Sprintf(" AND substr(serial, 1, $%d) <> $%d", len(args), len(args)-1)
	}
	which = append(which, other)
	counts := make([]IssuerCount, len(which))
	// There are two issuers at most. Sums need no sorting, unlike groups.
	var agents, certificates []string
	var intoAgents, intoCertificates []any
	for i, w := range which {
		agents = append(agents, "COALESCE(SUM(CASE WHEN "+w+" THEN 1 ELSE 0 END), 0)", "COALESCE(SUM(CASE WHEN expires <= $1 AND "+w+" THEN 1 ELSE 0 END), 0)")
		certificates = append(certificates, "COALESCE(SUM(CASE WHEN "+w+" THEN 1 ELSE 0 END), 0)")
		intoAgents, intoCertificates = append(intoAgents, &counts[i].Agents, &counts[i].Expired), append(intoCertificates, &counts[i].Certificates)
	}
	if err := l.Store.DB.QueryRowContext(ctx, "SELECT "+strings.Join(agents, ", ")+" FROM agents WHERE revoked = 0", args...).Scan(intoAgents...); err != nil {
		return nil, err
	}
	err = l.Store.DB.QueryRowContext(ctx, "SELECT "+strings.Join(certificates, ", ")+` FROM (SELECT c.serial FROM certificates c
		WHERE c.revoked = 0 AND c.expires > $1 AND c.person <> '`+LocalUser+`'
		AND NOT EXISTS (SELECT 1 FROM certificates n WHERE n.renews = CASE WHEN c.renews = '' THEN c.serial ELSE c.renews END AND n.issued > c.issued)) x`, args...).Scan(intoCertificates...)
	all = map[string]IssuerCount{"": counts[len(ids)]}
	for i, id := range ids {
		all[id] = counts[i]
	}
	return all, err
}

// RenewCertificate stores the certificate that replaces a user's certificate of the given
// serial number. The old one stays valid, because the user may never get the new one; both are
// revoked together. Earlier certificates that were renewed before end now, except those of local,
// which gateways may have in their folders and would store again.
func (l *Ledger) RenewCertificate(ctx context.Context, old string, c Certificate, actor string) (err error) {
	defer sqlstore.Wrap(&err, "renewing the certificate of", c.User)
	return l.Store.Update(ctx, func(tx *sqlstore.Txn) error {
		if _, err := l.userFor(ctx, tx, c.User); err != nil {
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
		return l.audit(ctx, tx, c.Issued, actor, "renew certificate", c.User, "serial "+c.Serial+", until "+c.Expires.UTC().Format(time.RFC3339))
	})
}

// renewals returns the serial numbers of a certificate and of all valid ones that it was renewed
// from or to.
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
