package directory

import (
	"context"
	"fmt"
	"strings"
	"time"

	"loadstar/server/sqlstore"
)

// IssuerCount counts the certificates of one issuer.
type IssuerCount struct {
	// Agents is the number of unrevoked agents whose last used certificate is from the issuer.
	// Expired is the number of these agents with an expired certificate.
	Agents, Expired int64
	// Certificates is the number of users' certificates that are neither revoked nor expired nor
	// renewed. It omits certificates of the user local, because each gateway renews its own.
	Certificates int64
}

// CountIssuers counts certificates by issuer. An issuer's id is a prefix of its serial numbers.
// The count for all other issuers has an empty id. CountIssuers reads all agents once.
func (d *Directory) CountIssuers(ctx context.Context, ids []string, now time.Time) (all map[string]IssuerCount, err error) {
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
	// Use a sum for each of the at most two issuers, because sums need no sorting, unlike GROUP
	// BY.
	var agents, certificates []string
	var intoAgents, intoCertificates []any
	for i, w := range which {
		agents = append(agents, "COALESCE(SUM(CASE WHEN "+w+" THEN 1 ELSE 0 END), 0)", "COALESCE(SUM(CASE WHEN expires <= $1 AND "+w+" THEN 1 ELSE 0 END), 0)")
		certificates = append(certificates, "COALESCE(SUM(CASE WHEN "+w+" THEN 1 ELSE 0 END), 0)")
		intoAgents, intoCertificates = append(intoAgents, &counts[i].Agents, &counts[i].Expired), append(intoCertificates, &counts[i].Certificates)
	}
	if err := d.store.DB.QueryRowContext(ctx, "SELECT "+strings.Join(agents, ", ")+" FROM agents WHERE revoked = 0", args...).Scan(intoAgents...); err != nil {
		return nil, err
	}
	err = d.store.DB.QueryRowContext(ctx, "SELECT "+strings.Join(certificates, ", ")+` FROM (SELECT c.serial FROM certificates c
		WHERE c.revoked = 0 AND c.expires > $1 AND c.person <> '`+LocalUser+`'
		AND NOT EXISTS (SELECT 1 FROM certificates n WHERE n.renews = CASE WHEN c.renews = '' THEN c.serial ELSE c.renews END AND n.issued > c.issued)) x`, args...).Scan(intoCertificates...)
	all = map[string]IssuerCount{"": counts[len(ids)]}
	for i, id := range ids {
		all[id] = counts[i]
	}
	return all, err
}
