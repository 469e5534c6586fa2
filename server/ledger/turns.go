package ledger

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"time"

	"loadstar/server/sqlstore"
)

// Turn is one client's part of one round.
type Turn struct {
	Run    string
	Round  int64
	Client string
}

// Task is the lease of a turn, with the version to train from.
type Task struct {
	Turn
	Version int64
	Until   time.Time
}

// Counter contains the leases, and counts the results that have a lease.
type Counter struct {
	store *sqlstore.Store
	slot  int64 // slot of this process in the table counters

	// The queries that agents' calls make most often.
	tasks       sqlstore.Coalescer[string, []Task]
	asked, over sqlstore.Coalescer[turnsOf, map[string]Standing]
}

func newCounter(s *sqlstore.Store) *Counter {
	ct := &Counter{store: s}
	ct.slot = ct.newSlot()
	ct.tasks.Start(s, ct.tasksOf)
	ct.asked.Start(s, ct.standingsQuery(askedTurns))
	ct.over.Start(s, ct.standingsQuery(overTurns))
	return ct
}

// Tasks returns an agent's open leases in the order of run, round and client. It includes
// expired leases, but not declined ones.
func (ct *Counter) Tasks(ctx context.Context, agent string) (all []Task, err error) {
	defer sqlstore.Wrap(&err, "reading the tasks of agent", agent)
	return ct.tasks.Get(ctx, agent)
}

func (ct *Counter) tasksOf(ctx context.Context, agents []string) ([][]Task, error) {
	byAgent := make(map[string][]Task, len(agents))
	err := sqlstore.QueryIn(ctx, ct.store, func(r *sql.Rows) error {
		x, err := scanLease(r)
		byAgent[x.agent] = append(byAgent[x.agent], x.task())
		return err
	}, selectLeases+" WHERE until <> 0 AND agent IN ", nil, agents)
	all := make([][]Task, len(agents))
	for i, a := range agents {
		// Sort a copy for each caller, because an agent may be in the batch twice.
		all[i] = slices.SortedFunc(slices.Values(byAgent[a]), func(a, b Task) int {
			return cmp.Or(cmp.Compare(a.Run, b.Run), cmp.Compare(a.Round, b.Round), cmp.Compare(a.Client, b.Client))
		})
	}
	return all, err
}

// Asked returns the number of open leases of all agents.
func (ct *Counter) Asked(ctx context.Context) (n int64, err error) {
	defer sqlstore.Wrap(&err, "counting leases")
	err = ct.store.DB.QueryRowContext(ctx, "SELECT count(*) FROM leases").Scan(&n)
	return n, err
}

const (
	storedLease  = sqlstore.LeaseColumns + ", until, checksum" // the columns that scanLease reads
	selectLeases = "SELECT " + storedLease + " FROM leases"
)

func (x *leaseRow) task() Task { return Task{x.Turn, x.version, sqlstore.FromMillis(x.until)} }

func scanTasks(into *[]Task) func(*sql.Rows) error {
	return func(r *sql.Rows) error {
		x, err := scanLease(r)
		*into = append(*into, x.task())
		return err
	}
}

// Extend extends an agent's leases in a round at least until the given time, but not
// beyond their own latest time.
func (ct *Counter) Extend(ctx context.Context, agent, run string, round int64, clients []string, until time.Time) (err error) {
	defer sqlstore.Wrap(&err, "extending leases of agent", agent, "in run", run)
	return ct.store.Update(ctx, func(tx *sqlstore.Txn) error {
		_, err := ct.setExpiry(ctx, tx, "until <> 0 AND +until < $4 AND (latest = 0 OR +until < latest)", "CASE WHEN latest <> 0 AND latest < $4 THEN latest ELSE $4 END", agent, run, round, clients, until)
		return err
	})
}

// setExpiry sets the expiry of leases, and returns their clients. It selects the leases by client,
// because the index on the column until would make the database scan all leases of the run. It
// skips leases that are being counted or withdrawn, because they are about to be deleted, and
// waiting for them could deadlock.
func (ct *Counter) setExpiry(ctx context.Context, tx *sqlstore.Txn, which, to, agent, run string, round int64, clients []string, until time.Time) (set []string, err error) {
	for part := range slices.Chunk(clients, ct.store.Chunk) {
		args := []any{agent, run, round, sqlstore.ToMillis(until)}
		for _, c := range part {
			args = append(args, c)
		}
		these := "run = $2 AND round = $3 AND client IN " + sqlstore.InList(4, len(part))
		text := "WITH free AS MATERIALIZED (SELECT client FROM leases WHERE agent = $1 AND " + which + " AND " + these + ct.store.LockClause("UPDATE SKIP LOCKED") +
			") UPDATE leases SET until = " + to + " WHERE " + these + " AND client IN (SELECT client FROM free) RETURNING client"
		err := sqlstore.Query(ctx, tx, func(r *sql.Rows) error {
			var client string
			err := r.Scan(&client)
			set = append(set, client)
			return err
		}, text, args...)
		if err != nil {
			return nil, err
		}
	}
	return set, nil
}

// TurnState is the state of a turn.
type TurnState int

// The states of a turn. Closed means that the turn has no lease and was not counted. Asked
// means that it has a lease. Held means that a region has counted it and the hub has not
// decided on it yet.
const (
	Closed TurnState = iota
	Asked
	Held
	Counted
)

// Standing is the state of a turn and its version.
type Standing struct {
	State   TurnState
	Version int64 // version that the client trains from
}

// turnStates maps the state names that askedTurns and overTurns return to states.
var turnStates = map[string]TurnState{"asked": Asked, "": Held, outcomeCounted: Counted, outcomeClosed: Closed}

// turnsOf identifies the turns of an agent's clients in a round.
type turnsOf struct {
	agent, run string
	round      int64
	clients    []string
}

// Standings returns the states of the clients' turns in a round. The turn of a client that
// is missing from the result, or belongs to another agent, is Closed.
func (ct *Counter) Standings(ctx context.Context, agent, run string, round int64, clients []string) (_ map[string]Standing, err error) {
	defer sqlstore.Wrap(&err, "reading the standings of agent", agent, "in run", run)
	// Read leases before receipts. If a turn is counted in between, it appears as asked, never
	// as closed.
	all, err := ct.standings(ctx, &ct.asked, turnsOf{agent, run, round, clients})
	if err != nil || len(all) == len(clients) {
		return all, err
	}
	left := slices.DeleteFunc(slices.Clone(clients), func(c string) bool { _, found := all[c]; return found })
	over, err := ct.Outcomes(ctx, agent, run, round, left)
	if err != nil {
		return nil, err
	}
	maps.Copy(all, over)
	return all, nil
}

// Outcomes is like Standings, but reads only receipts. Use it for turns that no longer have a
// lease.
func (ct *Counter) Outcomes(ctx context.Context, agent, run string, round int64, clients []string) (_ map[string]Standing, err error) {
	defer sqlstore.Wrap(&err, "reading the outcomes of agent", agent, "in run", run)
	return ct.standings(ctx, &ct.over, turnsOf{agent, run, round, clients})
}

func (ct *Counter) standings(ctx context.Context, where *sqlstore.Coalescer[turnsOf, map[string]Standing], q turnsOf) (map[string]Standing, error) {
	if len(q.clients) <= ct.store.Chunk {
		return where.Get(ctx, q)
	}
	return where.Alone(ctx, q) // the query is long
}

// askedTurns and overTurns select the turns of clients in a round of a run. They return
// client, agent, version and state.
const (
	askedTurns = "SELECT client, agent, version, 'asked' FROM leases WHERE run = $1 AND round = $2 AND until <> 0 AND client IN "
	overTurns  = `SELECT r.client, c.agent, r.version,
		CASE WHEN EXISTS (SELECT 1 FROM runs u WHERE u.id = r.run AND u.remote = 0) THEN 'counted' ELSE COALESCE(
			(SELECT x.outcome FROM relayed x WHERE x.run = r.run AND x.batch = r.batch AND (x.client = '' OR x.client = r.client) LIMIT 1), '') END
		FROM receipts r JOIN clients c ON c.name = r.client WHERE r.run = $1 AND r.round = $2 AND r.client IN `
)

// standingsQuery returns a function that runs askedTurns or overTurns for several agents.
func (ct *Counter) standingsQuery(text string) func(context.Context, []turnsOf) ([]map[string]Standing, error) {
	type round struct {
		run   string
		round int64
	}
	type owned struct {
		round
		agent, client string
	}
	return func(ctx context.Context, these []turnsOf) ([]map[string]Standing, error) {
		clients := map[round][]string{}
		for _, q := range these {
			r := round{q.run, q.round}
			clients[r] = append(clients[r], q.clients...)
		}
		has := map[owned]Standing{}
		for in, these := range clients {
			err := sqlstore.QueryIn(ctx, ct.store, func(r *sql.Rows) error {
				var is string
				var s Standing
				o := owned{round: in}
				if err := r.Scan(&o.client, &o.agent, &s.Version, &is); err != nil {
					return err
				}
				state, known := turnStates[is]
				if !known {
					return fmt.Errorf("%w: table relayed: run %s, round %d, client %s: the outcome %q does not exist", sqlstore.ErrDamaged, in.run, in.round+1, o.client, is)
				}
				s.State = state
				has[o] = s
				return nil
			}, text, []any{in.run, in.round}, these)
			if err != nil {
				return nil, err
			}
		}
		if len(has) > 0 && text == overTurns {
			if err := ct.confirm(ctx); err != nil {
				return nil, err
			}
		}
		all := make([]map[string]Standing, len(these))
		for i, q := range these {
			all[i] = make(map[string]Standing, len(q.clients))
			for _, c := range q.clients {
				if s, ok := has[owned{round{q.run, q.round}, q.agent, c}]; ok {
					all[i][c] = s
				}
			}
		}
		return all, nil
	}
}

// confirm waits until all data that was read is on the standbys for which commits wait. If
// PostgreSQL crashes while a commit waits for a standby, the commit is visible after the
// restart, although the standby may lack it. A failover would then undo a verdict that an agent
// has already received.
func (ct *Counter) confirm(ctx context.Context) error {
	if ct.store.SQLite {
		return nil
	}
	return ct.store.Update(ctx, func(tx *sqlstore.Txn) error {
		// Any write suffices. This one changes no table.
		_, err := tx.ExecContext(ctx, "SELECT pg_logical_emit_message(true, 'loadstar', '')")
		return err
	})
}

// Share is one client's part of an arrival.
type Share struct {
	Client          string
	Examples, Steps int64
	TrainLoss       float64
	// Norm and ControlNorm are the norms of the update and of the change of its control
	// variate.
	Norm, ControlNorm float64
}

// Arrival is a result from an agent: one client's update, or the sum of several clients'
// updates, which count together or not at all.
type Arrival struct {
	Agent          string
	Round, Version int64
	Bytes          int64
	Shares         []Share
	Masks          []Mask // masks of a result of a private plan
}

// Evaluation is a sum of validation errors: the number of clients, and the sum of their
// relative MAE in millionths.
type Evaluation struct{ Clients, RelativeMAE int64 }

// Add adds another sum.
func (e *Evaluation) Add(x Evaluation) {
	e.Clients += x.Clients
	e.RelativeMAE += x.RelativeMAE
}

// Mean returns the mean relative MAE. There must be at least one client.
func (e Evaluation) Mean() float64 { return float64(e.RelativeMAE) / 1e6 / float64(e.Clients) }

// Partial is the sum of those updates of one batch that were trained from one version.
type Partial struct {
	Version    int64
	Numbers    []byte
	Evaluation Evaluation
}

// Single is an update that is stored unchanged until it is merged.
type Single struct {
	Client                   string
	Version, Examples, Steps int64
	Loss                     float64
	Numbers                  []byte
	Evaluation               Evaluation
}

// Fold returns the sums or individual updates to store for the counted arrivals. It
// receives their indices in ascending order.
type Fold func(counted []int) ([]Partial, []Single, error)

// Count counts the arrivals of one run that have a lease. In the same transaction, it stores
// the sums and updates that fold returns for them. Each arrival counts once, even if it is
// passed repeatedly. Count returns the indices of the arrivals that it counted. After an error,
// it is unknown whether anything was counted, and the caller must pass all arrivals again.
func (ct *Counter) Count(ctx context.Context, run string, arrivals []Arrival, fold Fold) (counted []int, err error) {
	defer sqlstore.Wrap(&err, "counting results of run", run)
	ctx, done := ct.store.Promptly(ctx)
	defer done()
	batch := int64(0)
	err = ct.store.Update(ctx, func(tx *sqlstore.Txn) error {
		if err := ct.store.LockRun(ctx, tx, run, true); err != nil {
			return err
		}
		r, err := scanRun(tx.QueryRowContext(ctx, selectRuns+" WHERE id = $1", run))
		if err != nil {
			return sqlstore.OrNotFound(err, "run "+run)
		}
		if r.State != Running {
			return nil
		}
		var used map[Turn]leaseRow
		if counted, used, err = ct.countable(ctx, tx, run, arrivals); err != nil {
			return err
		}
		if counted, err = ct.withFreshMasks(ctx, tx, run, arrivals, counted, used); err != nil || len(counted) == 0 {
			return err
		}
		partials, singles, err := fold(counted)
		if err != nil {
			return err
		}
		if batch, err = ct.nextBatch(ctx, tx, &r); err != nil {
			return err
		}
		if err := ct.addReceipts(ctx, tx, run, batch, arrivals, counted, used); err != nil {
			return err
		}
		if err := ct.addMasks(ctx, tx, run, batch, arrivals, counted); err != nil {
			return err
		}
		for _, p := range partials {
			values := sqlstore.WithSum("partials", p.values(run, batch)...)
			if _, err := tx.ExecContext(ctx, "INSERT INTO partials ("+sqlstore.PartialColumns+", checksum) VALUES "+sqlstore.Placeholders(0, 1, len(values)), values...); err != nil {
				return err
			}
		}
		for _, s := range singles {
			values := sqlstore.WithSum("updates", s.values(run, batch)...)
			if _, err := tx.ExecContext(ctx, "INSERT INTO updates ("+sqlstore.UpdateColumns+", checksum) VALUES "+sqlstore.Placeholders(0, 1, len(values)), values...); err != nil {
				return err
			}
		}
		bytes := int64(0)
		for _, i := range counted {
			bytes += arrivals[i].Bytes
		}
		open := r.Round
		if r.Remote { // several rounds of the hub are open at the same time
			open = arrivals[counted[0]].Round
		}
		return ct.note(ctx, tx, run, open, batch, int64(len(used)), bytes)
	})
	if err != nil {
		return nil, err
	}
	if batch > 0 {
		ct.store.NoteCounted(run, batch)
	}
	return counted, nil
}

// countable returns the arrivals whose clients all have a lease, and these leases. If
// several arrivals need the same lease, only the first one counts. Declined leases and
// leases of revoked agents or clients do not count.
func (ct *Counter) countable(ctx context.Context, tx *sqlstore.Txn, run string, arrivals []Arrival) (due []int, used map[Turn]leaseRow, err error) {
	rounds := map[int64][]string{}
	for _, a := range arrivals {
		for _, s := range a.Shares {
			rounds[a.Round] = append(rounds[a.Round], s.Client)
		}
	}
	held := map[Turn]leaseRow{}
	for _, round := range slices.Sorted(maps.Keys(rounds)) {
		// Another process may count the same turns. Both lock them in the same order.
		clients := rounds[round]
		slices.Sort(clients)
		err := sqlstore.Query(ctx, tx, func(r *sql.Rows) error {
			x, err := scanLease(r)
			held[x.Turn] = x
			return err
		}, selectLeases+" WHERE run = $1 AND round = $2 AND until <> 0 AND client "+ct.store.AnyOf(3)+ct.store.LockOrder("client"), run, round, sqlstore.List(ct.store, clients))
		if err != nil {
			return nil, nil, err
		}
	}
	used = map[Turn]leaseRow{}
	for i, a := range arrivals {
		lacks := func(s Share) bool {
			h, ok := held[Turn{run, a.Round, s.Client}]
			return !ok || h.agent != a.Agent || h.version != a.Version
		}
		if len(a.Shares) == 0 || slices.ContainsFunc(a.Shares, lacks) {
			continue
		}
		for _, s := range a.Shares {
			t := Turn{run, a.Round, s.Client}
			used[t] = held[t]
			delete(held, t)
		}
		due = append(due, i)
	}
	return due, used, nil
}

// addReceipts replaces the leases of counted arrivals with receipts.
func (ct *Counter) addReceipts(ctx context.Context, tx *sqlstore.Txn, run string, batch int64, arrivals []Arrival, counted []int, used map[Turn]leaseRow) error {
	const columns = 13
	rows := make([]any, 0, columns*len(used))
	now := sqlstore.ToMillis(time.Now()) // displayed only
	clients := map[int64][]string{}
	for _, i := range counted {
		a := &arrivals[i]
		for _, s := range a.Shares {
			no := used[Turn{run, a.Round, s.Client}].no
			rows = append(rows, sqlstore.WithSum("receipts", run, a.Round, s.Client, no, a.Version, batch, s.Examples, s.Steps, s.TrainLoss, now, s.Norm, s.ControlNorm)...)
			clients[a.Round] = append(clients[a.Round], s.Client)
		}
	}
	for part := range slices.Chunk(rows, columns*sqlstore.MaxRows) {
		text, args := ct.store.InsertRows("INSERT INTO receipts ("+sqlstore.ReceiptColumns+", checksum)", receiptTypes, part)
		if _, err := tx.ExecContext(ctx, text, args...); err != nil {
			return err
		}
	}
	for round, these := range clients {
		r, err := tx.ExecContext(ctx, "DELETE FROM leases WHERE run = $1 AND round = $2 AND client "+ct.store.AnyOf(3), run, round, sqlstore.List(ct.store, these))
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil {
			return err
		} else if n != int64(len(these)) {
			return fmt.Errorf("%d leases of round %d of run %s disappeared during the transaction", int64(len(these))-n, round+1, run)
		}
	}
	return nil
}

// receiptTypes are the types of receiptColumns and the checksum.
var receiptTypes = []string{"text", "bigint", "text", "bigint", "bigint", "bigint", "bigint", "bigint", "float8", "bigint", "float8", "float8", "bigint"}
