package directory

import (
	"context"
	"database/sql"
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
	Protocol               int64 // version that its agent uses; 0 if not known
}

// ClientQuery selects clients. Empty fields select all.
type ClientQuery struct {
	After  string // last name of the previous page
	Prefix string // prefix of the name
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
func (d *Directory) Clients(ctx context.Context, q ClientQuery) (all []Client, err error) {
	defer sqlstore.Wrap(&err, "reading clients")
	// Every variant of the query starts from an index with few matching rows, or reads the names
	// in order.
	args := []any{q.After}
	text := "SELECT " + clientColumns + " FROM clients c JOIN agents a ON a.id = c.agent WHERE c.name > $1"
	if q.Agent != "" {
		args = append(args, q.Agent)
		text += fmt.Sprintf(" AND c.agent = $%d", len(args))
	}
	if q.Prefix != "" {
		text += " AND " + d.store.PrefixClause("c.name", q.Prefix, &args)
	}
	args = append(args, q.Limit)
	err = sqlstore.Query(ctx, d.store.DB, func(r *sql.Rows) error {
		c, err := scanClient(r)
		all = append(all, c)
		return err
	}, text+fmt.Sprintf(" ORDER BY c.name LIMIT $%d", len(args)), args...)
	return all, err
}

// Client returns a client.
func (d *Directory) Client(ctx context.Context, name string) (c Client, err error) {
	defer sqlstore.Wrap(&err, "reading client", name)
	c, err = scanClient(d.store.DB.QueryRowContext(ctx, "SELECT "+clientColumns+" FROM clients c JOIN agents a ON a.id = c.agent WHERE c.name = $1", name))
	return c, sqlstore.OrNotFound(err, "client "+name)
}

// AgentState is an agent and the data that it has announced.
type AgentState struct {
	Agent
	Joined, Seen, Revoked time.Time
	Clients               int64 // clients that are not revoked
	Version               string
	Protocol              int64          // 0 if not known
	Skew                  *time.Duration // nil if not known
	Generated             bool
	Token                 string    // ID of the token with which it last joined; empty if not known
	Copied                time.Time // time at which two machines were first seen with its identity
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
	Name  string // beginning of the name or the ID
	Token string // ID of the token with which they last joined; not together with Name
	// Findings selects agents with a client whose newest report has findings.
	Findings bool
	Limit    int
}

// AgentStates returns agents in the order of their ids.
func (d *Directory) AgentStates(ctx context.Context, q AgentQuery) (all []AgentState, err error) {
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
		// Use two queries, each with its own index, because a condition with OR would read all
		// agents.
		text = "SELECT * FROM (" + part(" AND "+d.store.PrefixClause("name", q.Name, &args)) + ") AS named UNION SELECT * FROM (" +
			part(" AND "+d.store.PrefixClause("id", q.Name, &args)) + ") AS identified ORDER BY id LIMIT $2"
	}
	err = sqlstore.Query(ctx, d.store.DB, func(r *sql.Rows) error {
		a, err := scanAgent(r)
		all = append(all, a)
		return err
	}, text, args...)
	return all, err
}

// AgentState returns an agent.
func (d *Directory) AgentState(ctx context.Context, id string) (a AgentState, err error) {
	defer sqlstore.Wrap(&err, "reading agent", id)
	a, err = scanAgent(d.store.DB.QueryRowContext(ctx, "SELECT "+agentColumns+" FROM agents WHERE id = $1", id))
	return a, sqlstore.OrNotFound(err, "agent "+id)
}

// FleetCounts holds the numbers of agents and clients in the fleet.
type FleetCounts struct {
	Agents, Clients int64 // only those that are not revoked
	Quiet           int64 // agents that were not seen since a given time
	Expiring        int64 // agents whose certificate expires before a given time
	Revoked         int64 // agents
	Generated       bool  // at least one agent has synthetic readings
}

// CountFleet counts agents. It reads all of them, so do not call it often for a large
// fleet.
func (d *Directory) CountFleet(ctx context.Context, quiet, expiring time.Time) (c FleetCounts, err error) {
	defer sqlstore.Wrap(&err, "counting the fleet")
	var generated int64
	err = d.store.DB.QueryRowContext(ctx, `SELECT COALESCE(SUM(CASE WHEN revoked = 0 THEN 1 ELSE 0 END), 0), CAST(COALESCE(SUM(CASE WHEN revoked = 0 THEN clients ELSE 0 END), 0) AS BIGINT),
		COALESCE(SUM(CASE WHEN revoked = 0 AND seen < $1 THEN 1 ELSE 0 END), 0), COALESCE(SUM(CASE WHEN revoked = 0 AND expires < $2 THEN 1 ELSE 0 END), 0),
		COALESCE(SUM(CASE WHEN revoked = 0 THEN 0 ELSE 1 END), 0), COALESCE(MAX(CASE WHEN revoked = 0 THEN generated ELSE 0 END), 0) FROM agents`,
		sqlstore.ToMillis(quiet), sqlstore.ToMillis(expiring)).Scan(&c.Agents, &c.Clients, &c.Quiet, &c.Expiring, &c.Revoked, &generated)
	c.Generated = generated != 0
	return c, err
}

// AgentVersions returns the number of unrevoked agents for each version of the agent's program.
func (d *Directory) AgentVersions(ctx context.Context) (all map[string]int64, err error) {
	defer sqlstore.Wrap(&err, "reading the versions of agents")
	all = map[string]int64{}
	err = sqlstore.Query(ctx, d.store.DB, func(r *sql.Rows) error {
		var version string
		var n int64
		err := r.Scan(&version, &n)
		all[version] = n
		return err
	}, "SELECT version, COUNT(*) FROM agents WHERE revoked = 0 GROUP BY version")
	return all, err
}
