package directory

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"loadstar/server/sqlstore"
)

// setFindings replaces the findings of a client.
func setFindings(ctx context.Context, tx *sqlstore.Txn, client string, codes []string) error {
	if _, err := tx.ExecContext(ctx, "DELETE FROM findings WHERE client = $1", client); err != nil {
		return err
	}
	for _, code := range codes {
		if _, err := tx.ExecContext(ctx, "INSERT INTO findings (code, client) VALUES ($1, $2) ON CONFLICT (code, client) DO NOTHING", code, client); err != nil {
			return err
		}
	}
	return nil
}

// setFindingsOf replaces the findings of a client if the client belongs to the agent.
func setFindingsOf(ctx context.Context, tx *sqlstore.Txn, agent string, r Report) error {
	var one int
	err := tx.QueryRowContext(ctx, "SELECT 1 FROM clients WHERE name = $1 AND agent = $2", r.Client, agent).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	} else if err != nil {
		return err
	}
	return setFindings(ctx, tx, r.Client, r.Findings)
}

// FindingsOf counts, for each agent, the clients whose newest report has findings. Agents
// without such a client are not in the result.
func (p *Reports) FindingsOf(ctx context.Context, agents []string) (count map[string]int64, err error) {
	defer sqlstore.Wrap(&err, "counting findings")
	count = map[string]int64{}
	err = sqlstore.QueryIn(ctx, p.store, func(r *sql.Rows) error {
		var agent, client string
		err := r.Scan(&agent, &client)
		count[agent]++
		return err
	}, "SELECT DISTINCT c.agent, f.client FROM clients c JOIN findings f ON f.client = c.name WHERE c.agent IN ", nil, agents)
	return count, err
}

// FindingDay is the number of clients that reported a finding on a day.
type FindingDay struct {
	Code         string
	Day, Clients int64
}

// FindingsNow returns the number of clients that currently have each finding, most frequent
// first. Day is 0.
func (p *Reports) FindingsNow(ctx context.Context) (all []FindingDay, err error) {
	defer sqlstore.Wrap(&err, "reading findings")
	err = sqlstore.Query(ctx, p.store.DB, func(r *sql.Rows) error {
		var f FindingDay
		err := r.Scan(&f.Code, &f.Clients)
		all = append(all, f)
		return err
	}, "SELECT code, CAST(COUNT(*) AS BIGINT) FROM findings GROUP BY code ORDER BY COUNT(*) DESC, code")
	return all, err
}

// FindingDays returns the number of clients with each finding on the newest days with reports.
// It sorts by day, newest first, and then by number of clients.
func (p *Reports) FindingDays(ctx context.Context, days int) (all []FindingDay, err error) {
	defer sqlstore.Wrap(&err, "reading findings")
	args := []any{days}
	begins := p.store.PrefixClause("metric", metricFinding, &args)
	err = sqlstore.Query(ctx, p.store.DB, func(r *sql.Rows) error {
		var f FindingDay
		err := r.Scan(&f.Code, &f.Day, &f.Clients)
		f.Code = strings.TrimPrefix(f.Code, metricFinding)
		all = append(all, f)
		return err
	}, `SELECT metric, day, CAST(SUM(clients) AS BIGINT) FROM report_days WHERE day IN (SELECT DISTINCT day FROM report_days ORDER BY day DESC LIMIT $1) AND `+begins+`
		GROUP BY day, metric ORDER BY day DESC, SUM(clients) DESC, metric`, args...)
	return all, err
}
