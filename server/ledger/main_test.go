package ledger

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/directory"
)

// cluster is the PostgreSQL server of all tests that need one.
var cluster pgtest.Cluster

func TestMain(m *testing.M) {
	if at := os.Getenv("LEDGER_CHILD"); at != "" {
		if err := child(at, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	cluster.Main(m)
}

// t0 is the time at which all tests begin, in place of the real time.
var t0 = time.UnixMilli(1_700_000_000_000)

// after returns t0 plus d.
func after(d time.Duration) time.Time { return t0.Add(d) }

func open(t *testing.T, at string) *Ledger {
	t.Helper()
	l, err := Open(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func wantIs(t pgtest.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}

// join adds agents to the ledger.
func join(t pgtest.T, l *Ledger, agents ...string) {
	t.Helper()
	hash := []byte(fmt.Sprintf("token of %s and %d more", agents[0], len(agents)-1))
	testkit.Must(t, l.Directory.AddToken(context.Background(), hash, directory.Token{Uses: int64(len(agents)), Expires: after(time.Hour)}, "test", t0))
	for _, a := range agents {
		testkit.Must(t, l.Directory.Join(context.Background(), hash, directory.Agent{ID: a, Name: "name of " + a, Expires: after(time.Hour)}, t0))
	}
}

// machine returns the stored state of a run's round.Machine.
func machine(t pgtest.T, l *Ledger, run string) (state string) {
	t.Helper()
	testkit.Must(t, l.Store.DB.QueryRowContext(context.Background(), "SELECT COALESCE(max(state), '') FROM machines WHERE run = $1", run).Scan(&state))
	return state
}

func announce(t pgtest.T, l *Ledger, agent string, clients ...string) {
	t.Helper()
	refused, err := l.Directory.Announce(context.Background(), directory.Announcement{Agent: agent, Clients: clients, Inputs: []string{"load"}, Step: time.Hour, Most: 1 << 20}, t0)
	testkit.Must(t, err)
	if n := len(refused.Clients); n > 0 {
		t.Fatalf("%d clients of %s refused: %v", n, agent, refused)
	}
}

// named returns n numbered names. Their byte order is the order of the numbers.
func named(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s%05d", prefix, i)
	}
	return all
}

// site is a ledger with a run that has begun.
type site struct {
	*Ledger
	t    pgtest.T
	lead Lead
	run  string

	released int // number of releases in the test
}

// begin starts a run whose fleet consists of all clients in the ledger.
func begin(t pgtest.T, l *Ledger, run string) *site {
	t.Helper()
	lead, err := l.Lead(context.Background(), "test", 1000*time.Hour, t0)
	testkit.Must(t, err)
	testkit.Must(t, l.AddRun(context.Background(), Run{ID: run, Name: "name of " + run, Plan: "plan", Wanted: 1, Created: t0}, "operator"))
	s := &site{l, t, lead, run, 0}
	s.drive(func(d *Drive) error {
		_, err := d.Begin(Run{Plan: "settled", PlanBlob: "p", Server: "server"}, Version{Weights: "w0", Control: "c0"}, directory.Filter{}, t0)
		return err
	})
	return s
}

// plant starts a run with one agent that hosts the given number of clients.
func plant(t *testing.T, at string, clients int) *site {
	t.Helper()
	l := open(t, at)
	join(t, l, "agent")
	announce(t, l, "agent", named("c", clients)...)
	return begin(t, l, "run")
}

func (s *site) drive(do func(d *Drive) error) {
	s.t.Helper()
	testkit.Must(s.t, s.Drive(context.Background(), s.lead, s.run, do))
}

// ask opens a round and adds one-hour leases for the given members.
func (s *site) ask(round, version int64, members ...int64) {
	s.t.Helper()
	s.drive(func(d *Drive) error {
		if gone, _, err := d.Ask(Asking{Round: round, Version: version, Members: members, Until: after(time.Hour)}); err != nil || len(gone) > 0 {
			return fmt.Errorf("%v are gone: %w", gone, err)
		}
		return d.Save("machine", Round{Round: round, Version: version, Opened: t0, Asked: int64(len(members))})
	})
}

// upTo returns the numbers from 0 to n-1.
func upTo(n int) []int64 {
	all := make([]int64, n)
	for i := range all {
		all[i] = int64(i)
	}
	return all
}

// worth returns the number that a client's turn adds to the sums. It is pseudorandom, so that
// different sets of turns have different sums.
func worth(round int64, client string) int64 {
	h := uint64(round)*0x9e3779b97f4a7c15 + 1
	for _, b := range []byte(client) {
		h = (h ^ uint64(b)) * 0xff51afd7ed558ccd
		h ^= h >> 29
	}
	return int64(h >> 20)
}

// scored returns the evaluation that a client's turn adds to the sums.
func scored(round int64, client string) Evaluation {
	return Evaluation{Clients: 1, RelativeMAE: worth(round, client) % 1e6}
}

// sums returns a Fold that adds up arrivals into one partial per version.
func sums(arrivals []Arrival) Fold {
	return func(counted []int) (all []Partial, _ []Single, _ error) {
		of := map[int64]int64{}
		errors := map[int64]Evaluation{}
		for _, i := range counted {
			version := arrivals[i].Version
			for _, s := range arrivals[i].Shares {
				of[version] += worth(arrivals[i].Round, s.Client)
				e := errors[version]
				e.Add(scored(arrivals[i].Round, s.Client))
				errors[version] = e
			}
		}
		for version, sum := range of {
			all = append(all, Partial{Version: version, Numbers: binary.LittleEndian.AppendUint64(nil, uint64(sum)), Evaluation: errors[version]})
		}
		return all, nil, nil
	}
}

// one returns an arrival with one share for each given client.
func one(agent string, round, version int64, clients ...string) Arrival {
	a := Arrival{Agent: agent, Round: round, Version: version, Bytes: 100}
	for _, c := range clients {
		a.Shares = append(a.Shares, Share{Client: c, Examples: 10, Steps: 3, TrainLoss: 0.5})
	}
	return a
}

func (s *site) count(arrivals ...Arrival) []int {
	s.t.Helper()
	counted, err := s.Counter.Count(context.Background(), s.run, arrivals, sums(arrivals))
	testkit.Must(s.t, err)
	return counted
}

// receipts returns the receipts of all counted turns.
func (s *site) receipts() (all []Receipt) {
	s.t.Helper()
	s.drive(func(d *Drive) (err error) {
		all, _, err = d.Receipts(0)
		return err
	})
	return all
}

// balance checks the ledger's guarantee: the stored sums are exactly those of the turns with a
// receipt, no turn has both a lease and a receipt, and receipts and sums have the same batches.
// It must be called before the first merge. It returns the numbers of leases and receipts.
func (s *site) balance() (leases, receipts int) {
	s.t.Helper()
	ctx := context.Background()
	var how *sql.TxOptions // all queries must see the same state
	if !s.Store.SQLite {
		how = &sql.TxOptions{Isolation: sql.LevelRepeatableRead}
	}
	tx, err := s.Store.DB.BeginTx(ctx, how)
	testkit.Must(s.t, err)
	defer tx.Rollback() // nothing to commit, because the transaction only reads
	testkit.Must(s.t, tx.QueryRow("SELECT count(*) FROM leases WHERE run = $1", s.run).Scan(&leases))
	rows, err := tx.Query("SELECT round, client, batch FROM receipts WHERE run = $1", s.run)
	testkit.Must(s.t, err)
	defer rows.Close()
	var want int64
	var evaluation, evaluated Evaluation // wanted and stored
	var newest int64
	batches := map[int64]bool{}
	for rows.Next() {
		var round, batch int64
		var client string
		testkit.Must(s.t, rows.Scan(&round, &client, &batch))
		want += worth(round, client)
		evaluation.Add(scored(round, client))
		batches[batch], newest = true, max(newest, batch)
		receipts++
	}
	testkit.Must(s.t, rows.Err())
	rows, err = tx.Query("SELECT batch, numbers, evaluated, relative_mae FROM partials WHERE run = $1", s.run)
	testkit.Must(s.t, err)
	defer rows.Close()
	var got int64
	stored := map[int64]bool{}
	for rows.Next() {
		var batch int64
		var numbers []byte
		var e Evaluation
		testkit.Must(s.t, rows.Scan(&batch, &numbers, &e.Clients, &e.RelativeMAE))
		evaluated.Add(e)
		got += int64(binary.LittleEndian.Uint64(numbers))
		stored[batch] = true
	}
	testkit.Must(s.t, rows.Err())
	if got != want {
		s.t.Errorf("the sums are off by %d: %d receipts", got-want, receipts)
	}
	pgtest.Equal(s.t, "the evaluations of all receipts", evaluated, evaluation)
	var run int64
	testkit.Must(s.t, tx.QueryRow("SELECT COALESCE(max(batch), 0) FROM counters WHERE run = $1", s.run).Scan(&run))
	if newest != run || !maps.Equal(stored, batches) {
		s.t.Errorf("the run's newest batch is %d; the newest of receipts %d of %d; %d have sums", run, newest, len(batches), len(stored))
	}
	var both int
	testkit.Must(s.t, tx.QueryRow("SELECT count(*) FROM leases l JOIN receipts r ON r.run = l.run AND r.round = l.round AND r.client = l.client WHERE l.run = $1", s.run).Scan(&both))
	if both > 0 {
		s.t.Errorf("%d turns have a lease and a receipt", both)
	}
	return leases, receipts
}

// tables lists the tables of the schema.
var tables = []string{"tokens", "agents", "clients", "runs", "members", "versions", "rounds", "leases", "receipts", "partials", "updates", "relayed", "leaders", "audit", "releases", "reports", "report_days", "server_data", "held_out", "new_clients", "declines", "secrets", "heads", "counters", "masks", "private_rounds", "keepers"}

// unnumbered is the batch number of results that are not counted yet.
const unnumbered = -1

// newest returns the newest batch of a run.
func (l *Ledger) newest(t pgtest.T, run string) (batch int64) {
	t.Helper()
	testkit.Must(t, l.Store.DB.QueryRow("SELECT COALESCE(max(batch), 0) FROM counters WHERE run = $1", run).Scan(&batch))
	return batch
}
