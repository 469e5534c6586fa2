package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"loadstar/server/sqlstore"
)

// Client is a registered meter or building.
type Client struct {
	Name, Agent, AgentName string
	Announced, Seen        time.Time
	Revoked                bool
	Inputs                 []string
	Step                   time.Duration
	Protocol               int64 // of its agent; 0 if it is not known
}

// ClientQuery selects clients. Empty fields select all.
type ClientQuery struct {
	After  string // last name of the previous page
	Prefix string // of the name
	Agent  string // id
	Limit  int
}

const clientColumns = "c.name, c.agent, a.name, c.announced, a.seen, c.revoked + a.revoked, c.inputs, c.step, a.protocol"

func scanClient(row interface{ Scan(...any) error }) (c Client, err error) {
	var announced, seen, revoked, step int64
	var inputs string
	err = row.Scan(&c.Name, &c.Agent, &c.AgentName, &announced, &seen, &revoked, &inputs, &step, &c.Protocol)
	c.Announced, c.Seen, c.Revoked = sqlstore.FromMillis(announced), sqlstore.FromMillis(seen), revoked != 0
	c.Inputs, c.Step = strings.Fields(inputs), time.Duration(step)*time.Second
	return c, err
}

// Clients returns clients in the order of their names.
func (l *Ledger) Clients(ctx context.Context, q ClientQuery) (all []Client, err error) {
	defer sqlstore.Wrap(&err, "reading clients")
	// Every form begins with an index that finds few rows, or walks the names in order.
	args := []any{q.After}
	text := "SELECT " + clientColumns + " FROM clients c JOIN agents a ON a.id = c.agent WHERE c.name > $1"
	if q.Agent != "" {
		args = append(args, q.Agent)
		text += fmt.Sprintf(" AND c.agent = $%d", len(args))
	}
	if q.Prefix != "" {
		text += " AND " + l.Store.PrefixClause("c.name", q.Prefix, &args)
	}
	args = append(args, q.Limit)
	err = sqlstore.Query(ctx, l.Store.DB, func(r *sql.Rows) error {
		c, err := scanClient(r)
		all = append(all, c)
		return err
	}, text+fmt.Sprintf(" ORDER BY c.name LIMIT $%d", len(args)), args...)
	return all, err
}

// Client returns a client.
func (l *Ledger) Client(ctx context.Context, name string) (c Client, err error) {
	defer sqlstore.Wrap(&err, "reading client", name)
	c, err = scanClient(l.Store.DB.QueryRowContext(ctx, "SELECT "+clientColumns+" FROM clients c JOIN agents a ON a.id = c.agent WHERE c.name = $1", name))
	return c, sqlstore.OrNotFound(err, "client "+name)
}

// AgentState is an agent and what it said about itself.
type AgentState struct {
	Agent
	Joined, Seen, Revoked time.Time
	Clients               int64 // that are not revoked
	Version               string
	Protocol              int64          // 0 if it is not known
	Skew                  *time.Duration // nil if it is not known
	Generated             bool
	Token                 string    // id of the token with which it joined last; empty if it is not known
	Copied                time.Time // when two machines were first seen with its identity
}

const agentColumns = "id, name, joined, expires, seen, revoked, clients, version, skew, generated, protocol, token, copied"

func scanAgent(row interface{ Scan(...any) error }) (a AgentState, err error) {
	var joined, expires, seen, revoked, generated, copied int64
	var skew sql.NullInt64
	err = row.Scan(&a.ID, &a.Name, &joined, &expires, &seen, &revoked, &a.Clients, &a.Version, &skew, &generated, &a.Protocol, &a.Token, &copied)
	a.Joined, a.Expires, a.Seen, a.Revoked, a.Generated = sqlstore.FromMillis(joined), sqlstore.FromMillis(expires), sqlstore.FromMillis(seen), sqlstore.FromMillis(revoked), generated != 0
	a.Copied = sqlstore.FromMillis(copied)
	if skew.Valid {
		d := time.Duration(skew.Int64) * time.Millisecond
		a.Skew = &d
	}
	return a, err
}

// AgentQuery selects agents. Empty fields select all.
type AgentQuery struct {
	After string // last id of the previous page
	Name  string // beginning of the name or the id
	Token string // id of the token with which they joined last; not together with Name
	// Findings selects agents with a client whose newest report has findings.
	Findings bool
	Limit    int
}

// AgentStates returns agents in the order of their ids.
func (l *Ledger) AgentStates(ctx context.Context, q AgentQuery) (all []AgentState, err error) {
	defer sqlstore.Wrap(&err, "reading agents")
	args := []any{q.After, q.Limit}
	part := func(where string) string {
		if q.Findings {
			where += " AND id IN (SELECT c.agent FROM findings f JOIN clients c ON c.name = f.client)"
		}
		return "SELECT " + agentColumns + " FROM agents WHERE id > $1" + where + " ORDER BY id LIMIT $2"
	}
	text := part("")
	switch {
	case q.Token != "":
		text, args = part(" AND token = $3"), append(args, q.Token)
	case q.Name != "":
		// Two queries with an index each, because OR would walk all agents.
		text = "SELECT * FROM (" + part(" AND "+l.Store.PrefixClause("name", q.Name, &args)) + ") AS named UNION SELECT * FROM (" +
			part(" AND "+l.Store.PrefixClause("id", q.Name, &args)) + ") AS identified ORDER BY id LIMIT $2"
	}
	err = sqlstore.Query(ctx, l.Store.DB, func(r *sql.Rows) error {
		a, err := scanAgent(r)
		all = append(all, a)
		return err
	}, text, args...)
	return all, err
}

// AgentState returns an agent.
func (l *Ledger) AgentState(ctx context.Context, id string) (a AgentState, err error) {
	defer sqlstore.Wrap(&err, "reading agent", id)
	a, err = scanAgent(l.Store.DB.QueryRowContext(ctx, "SELECT "+agentColumns+" FROM agents WHERE id = $1", id))
	return a, sqlstore.OrNotFound(err, "agent "+id)
}

// FleetCounts are numbers of agents, and the number of their clients.
type FleetCounts struct {
	Agents, Clients int64 // that are not revoked
	Quiet           int64 // agents that were not seen since a time
	Expiring        int64 // agents whose certificate ends before a time
	Revoked         int64 // agents
	Generated       bool  // an agent has synthetic readings
}

// CountFleet counts agents. It reads all of them, so it must not be called often if there
// are many.
func (l *Ledger) CountFleet(ctx context.Context, quiet, expiring time.Time) (c FleetCounts, err error) {
	defer sqlstore.Wrap(&err, "counting the fleet")
	var generated int64
	err = l.Store.DB.QueryRowContext(ctx, `SELECT COALESCE(SUM(CASE WHEN revoked = 0 THEN 1 ELSE 0 END), 0), CAST(COALESCE(SUM(CASE WHEN revoked = 0 THEN clients ELSE 0 END), 0) AS BIGINT),
		COALESCE(SUM(CASE WHEN revoked = 0 AND seen < $1 THEN 1 ELSE 0 END), 0), COALESCE(SUM(CASE WHEN revoked = 0 AND expires < $2 THEN 1 ELSE 0 END), 0),
		COALESCE(SUM(CASE WHEN revoked = 0 THEN 0 ELSE 1 END), 0), COALESCE(MAX(CASE WHEN revoked = 0 THEN generated ELSE 0 END), 0) FROM agents`,
		sqlstore.ToMillis(quiet), sqlstore.ToMillis(expiring)).Scan(&c.Agents, &c.Clients, &c.Quiet, &c.Expiring, &c.Revoked, &generated)
	c.Generated = generated != 0
	return c, err
}

// TurnRecord is a turn for people to see.
type TurnRecord struct {
	Turn
	Agent string // id; empty if it is not known
	// State is asked, counted, declined or lost.
	State   string
	Version int64 // that it trains from; not set if it was declined or lost
	// Reason says why the turn was declined or lost.
	Reason string
	At     time.Time // when it was counted, declined or lost; zero if it is not known
	// The rest is set if the turn is counted.
	Examples, Steps int64
	TrainLoss, Norm float64
}

// The columns of a turn after its client or round: of receipts, of leases and of declines.
const (
	turnCounted  = "'counted' AS state, r.version AS version, '' AS reason, r.counted AS at, r.examples AS examples, r.steps AS steps, r.train_loss AS train_loss, r.norm AS norm"
	turnAsked    = "'asked', version, '', CAST(0 AS BIGINT), CAST(0 AS BIGINT), CAST(0 AS BIGINT), CAST(0 AS DOUBLE PRECISION), CAST(0 AS DOUBLE PRECISION)"
	turnDeclined = "CASE WHEN code = 'lost' THEN 'lost' ELSE 'declined' END, CAST(0 AS BIGINT), reason, at, CAST(0 AS BIGINT), CAST(0 AS BIGINT), CAST(0 AS DOUBLE PRECISION), CAST(0 AS DOUBLE PRECISION)"
)

// scan reads the columns of a turn after those in first.
func (t *TurnRecord) scan(r *sql.Rows, first any) error {
	var at int64
	err := r.Scan(first, &t.Agent, &t.State, &t.Version, &t.Reason, &at, &t.Examples, &t.Steps, &t.TrainLoss, &t.Norm)
	t.At = sqlstore.FromMillis(at)
	return err
}

// Turns returns up to limit turns of a round, in the order of clients, starting after the
// given client.
func (l *Ledger) Turns(ctx context.Context, run string, round int64, after string, limit int) (all []TurnRecord, err error) {
	defer sqlstore.Wrap(&err, "reading the turns of run", run)
	const these = "run = $1 AND round = $2 AND client > $3"
	err = sqlstore.Query(ctx, l.Store.DB, func(r *sql.Rows) error {
		t := TurnRecord{Turn: Turn{Run: run, Round: round}}
		err := t.scan(r, &t.Client)
		all = append(all, t)
		return err
	}, `SELECT * FROM (
		SELECT * FROM (SELECT r.client AS client, COALESCE(c.agent, '') AS agent, `+turnCounted+` FROM receipts r LEFT JOIN clients c ON c.name = r.client
			WHERE r.run = $1 AND r.round = $2 AND r.client > $3 ORDER BY r.client LIMIT $4) AS done
		UNION ALL SELECT * FROM (SELECT client, agent, `+turnAsked+" FROM leases WHERE "+these+` AND until <> 0 ORDER BY client LIMIT $4) AS open
		UNION ALL SELECT * FROM (SELECT client, agent, `+turnDeclined+" FROM declines WHERE "+these+` ORDER BY client LIMIT $4) AS given_up
		) AS turns ORDER BY client LIMIT $4`, run, round, after, limit)
	return all, err
}

// TurnsOf returns the turns of a client in some rounds of a run, in any order. It finds each
// of them by its key.
func (l *Ledger) TurnsOf(ctx context.Context, run, client string, rounds []int64) (all []TurnRecord, err error) {
	defer sqlstore.Wrap(&err, "reading the turns of client", client)
	for _, text := range []string{
		"SELECT r.round, '', " + turnCounted + " FROM receipts r WHERE r.run = $1 AND r.client = $2 AND r.round IN ",
		"SELECT round, agent, " + turnAsked + " FROM leases WHERE run = $1 AND client = $2 AND until <> 0 AND round IN ",
		"SELECT round, agent, " + turnDeclined + " FROM declines WHERE run = $1 AND client = $2 AND round IN ",
	} {
		err := sqlstore.QueryIn(ctx, l.Store, func(r *sql.Rows) error {
			t := TurnRecord{Turn: Turn{Run: run, Client: client}}
			err := t.scan(r, &t.Round)
			all = append(all, t)
			return err
		}, text, []any{run, client}, rounds)
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

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

// setFindingsOf replaces the findings of a client, if it is the agent's.
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

// FindingsOf counts the clients of agents whose newest report has findings. Agents without one
// are not in the result.
func (l *Ledger) FindingsOf(ctx context.Context, agents []string) (count map[string]int64, err error) {
	defer sqlstore.Wrap(&err, "counting findings")
	count = map[string]int64{}
	err = sqlstore.QueryIn(ctx, l.Store, func(r *sql.Rows) error {
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

// FindingsNow counts the clients that have a finding now, the most frequent first. Day is 0.
func (l *Ledger) FindingsNow(ctx context.Context) (all []FindingDay, err error) {
	defer sqlstore.Wrap(&err, "reading findings")
	err = sqlstore.Query(ctx, l.Store.DB, func(r *sql.Rows) error {
		var f FindingDay
		err := r.Scan(&f.Code, &f.Clients)
		all = append(all, f)
		return err
	}, "SELECT code, CAST(COUNT(*) AS BIGINT) FROM findings GROUP BY code ORDER BY COUNT(*) DESC, code")
	return all, err
}

// FindingDays counts the clients with findings on the newest days on which a client
// reported: newest day first, then by the number of clients.
func (l *Ledger) FindingDays(ctx context.Context, days int) (all []FindingDay, err error) {
	defer sqlstore.Wrap(&err, "reading findings")
	args := []any{days}
	begins := l.Store.PrefixClause("metric", metricFinding, &args)
	err = sqlstore.Query(ctx, l.Store.DB, func(r *sql.Rows) error {
		var f FindingDay
		err := r.Scan(&f.Code, &f.Day, &f.Clients)
		f.Code = strings.TrimPrefix(f.Code, metricFinding)
		all = append(all, f)
		return err
	}, `SELECT metric, day, CAST(SUM(clients) AS BIGINT) FROM report_days WHERE day IN (SELECT DISTINCT day FROM report_days ORDER BY day DESC LIMIT $1) AND `+begins+`
		GROUP BY day, metric ORDER BY day DESC, SUM(clients) DESC, metric`, args...)
	return all, err
}

// AgentVersions counts the agents that are not revoked by the version of their program.
func (l *Ledger) AgentVersions(ctx context.Context) (all map[string]int64, err error) {
	defer sqlstore.Wrap(&err, "reading the versions of agents")
	all = map[string]int64{}
	err = sqlstore.Query(ctx, l.Store.DB, func(r *sql.Rows) error {
		var version string
		var n int64
		err := r.Scan(&version, &n)
		all[version] = n
		return err
	}, "SELECT version, COUNT(*) FROM agents WHERE revoked = 0 GROUP BY version")
	return all, err
}
