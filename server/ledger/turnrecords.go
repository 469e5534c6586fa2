package ledger

import (
	"context"
	"database/sql"
	"time"

	"loadstar/server/sqlstore"
)

// TurnRecord is a turn as it is displayed.
type TurnRecord struct {
	Turn
	Agent string // ID of the agent; empty if not known
	// State is asked, counted, declined or lost.
	State   string
	Version int64 // version from which it trains; not set if it was declined or lost
	// Reason is the reason why the turn was declined or lost.
	Reason string
	At     time.Time // time at which it was counted, declined or lost; zero if not known
	// These fields are set if the turn is counted.
	Examples, Steps int64
	TrainLoss, Norm float64
}

// scan reads the columns of a turn after those in first.
func (t *TurnRecord) scan(r *sql.Rows, first any) error {
	var at int64
	err := r.Scan(first, &t.Agent, &t.State, &t.Version, &t.Reason, &at, &t.Examples, &t.Steps, &t.TrainLoss, &t.Norm)
	t.At = sqlstore.FromMillis(at)
	return err
}

// Turns returns up to limit turns of a round, in the order of clients, starting after the
// given client.
func (ct *Counter) Turns(ctx context.Context, run string, round int64, after string, limit int) (all []TurnRecord, err error) {
	defer sqlstore.Wrap(&err, "reading the turns of run", run)
	const these = "run = $1 AND round = $2 AND client > $3"
	err = sqlstore.Query(ctx, ct.store.DB, func(r *sql.Rows) error {
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

// TurnsOf returns the turns of a client in the given rounds of a run, in any order. It finds
// each of them by its key.
func (ct *Counter) TurnsOf(ctx context.Context, run, client string, rounds []int64) (all []TurnRecord, err error) {
	defer sqlstore.Wrap(&err, "reading the turns of client", client)
	for _, text := range []string{
		"SELECT r.round, '', " + turnCounted + " FROM receipts r WHERE r.run = $1 AND r.client = $2 AND r.round IN ",
		"SELECT round, agent, " + turnAsked + " FROM leases WHERE run = $1 AND client = $2 AND until <> 0 AND round IN ",
		"SELECT round, agent, " + turnDeclined + " FROM declines WHERE run = $1 AND client = $2 AND round IN ",
	} {
		err := sqlstore.QueryIn(ctx, ct.store, func(r *sql.Rows) error {
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

// The columns of a turn that follow its client or round, in receipts, leases and declines.
const (
	turnCounted  = "'counted' AS state, r.version AS version, '' AS reason, r.counted AS at, r.examples AS examples, r.steps AS steps, r.train_loss AS train_loss, r.norm AS norm"
	turnAsked    = "'asked', version, '', CAST(0 AS BIGINT), CAST(0 AS BIGINT), CAST(0 AS BIGINT), CAST(0 AS DOUBLE PRECISION), CAST(0 AS DOUBLE PRECISION)"
	turnDeclined = "CASE WHEN code = 'lost' THEN 'lost' ELSE 'declined' END, CAST(0 AS BIGINT), reason, at, CAST(0 AS BIGINT), CAST(0 AS BIGINT), CAST(0 AS DOUBLE PRECISION), CAST(0 AS DOUBLE PRECISION)"
)
