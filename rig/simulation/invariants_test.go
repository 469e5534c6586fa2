package simulation

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"loadstar/agent/state"
	v1 "loadstar/proto/loadstar/v1"
)

// turn is a client's part of a round.
type turn struct {
	round  int64
	client string
}

func (t turn) String() string { return fmt.Sprintf("round %d of %s", t.round+1, t.client) }

// marks contains what the checks have recorded about the run so far.
type marks struct {
	receipts map[turn]int64 // at the hub, with their batch
	counted  map[turn]bool  // an agent was told that it is counted
	closed   map[turn]bool  // an agent was told that it is closed
	state    string         // of the run
	ended    bool
	restores int
}

func newMarks() marks {
	return marks{receipts: map[turn]int64{}, counted: map[turn]bool{}, closed: map[turn]bool{}}
}

// restored drops records that a restored ledger does not contain.
func (m *marks) restored(*site) {
	*m = marks{receipts: map[turn]int64{}, counted: map[turn]bool{}, closed: map[turn]bool{}, restores: m.restores + 1}
}

func (at *site) restores() int {
	at.w.mu.Lock()
	defer at.w.mu.Unlock()
	return at.w.marks.restores
}

// heard records a verdict that an agent has received. The verdict must stay true, because the
// agent acts on it.
func (at *site) heard(o v1.Outcome, round int64, clients []string) {
	at.w.mu.Lock()
	defer at.w.mu.Unlock()
	for _, c := range clients {
		switch o {
		case v1.Outcome_OUTCOME_COUNTED:
			at.w.marks.counted[turn{round, c}] = true
		case v1.Outcome_OUTCOME_CLOSED:
			at.w.marks.closed[turn{round, c}] = true
		}
	}
}

// given checks that an agent gets no task for a turn that is known to be counted. Otherwise,
// the agent would mistake the verdict on its first result for a verdict on the second.
func (at *site) given(round int64, clients []string) {
	at.w.mu.Lock()
	i := slices.IndexFunc(clients, func(c string) bool { return at.w.marks.counted[turn{round, c}] })
	at.w.mu.Unlock()
	if i >= 0 {
		at.w.violate("%s gives %v, which is counted", at.name, turn{round, clients[i]})
	}
}

// committed records that a part has committed a transaction, for the next check.
func (at *site) committed(p *part) {
	at.w.mu.Lock()
	defer at.w.mu.Unlock()
	at.wrote = append(at.wrote, p)
}

// check checks the ledgers that have changed.
func (w *world) check() {
	for _, at := range w.sites {
		w.mu.Lock()
		wrote := at.wrote
		at.wrote = nil
		w.mu.Unlock()
		if len(wrote) == 0 {
			continue
		}
		if err := at.checkLedger(wrote); err != nil {
			w.violate("%s: %v", at.name, err)
			return
		}
		if at.name == hubName {
			if err := w.checkRun(at); err != nil {
				w.violate("%v", err)
				return
			}
		}
	}
}

// checkLedger checks the invariants of every ledger.
func (at *site) checkLedger(wrote []*part) error {
	if both, err := at.list(`SELECT 'round ' || l.round || ' of ' || l.client FROM leases l JOIN receipts r ON r.run = l.run AND r.round = l.round AND r.client = l.client`); err != nil || len(both) > 0 {
		return fmt.Errorf("counted and still leased: %v (%w)", both, orNone(err))
	}
	if many, err := at.list(`SELECT client FROM leases GROUP BY client HAVING count(*) > 1`); err != nil || len(many) > 0 {
		return fmt.Errorf("clients with several leases: %v (%w)", many, orNone(err))
	}
	// Only the holder of the lead may drive runs.
	for _, p := range wrote {
		if p.kind != "coordinator" && p.kind != "relay" || p.ctx.Err() != nil { // a part that ends resigns, even without the lead
			continue
		}
		if holder, err := at.list("SELECT holder FROM leaders WHERE role = 'coordinator'"); err != nil || len(holder) != 1 || holder[0] != p.name {
			return fmt.Errorf("%s has written while %v had the lead (%w)", p.name, holder, orNone(err))
		}
	}
	missing, err := at.list(`SELECT 'version ' || l.version || ' of ' || l.client FROM leases l LEFT JOIN versions v ON v.run = l.run AND v.version = l.version WHERE v.version IS NULL AND l.until > 0`)
	if err != nil || len(missing) > 0 {
		return fmt.Errorf("leases refer to deleted versions: %v (%w)", missing, orNone(err))
	}
	needed, err := at.list(`SELECT weights FROM versions UNION SELECT control FROM versions WHERE control <> '' UNION SELECT plan_blob FROM runs WHERE plan_blob <> '' UNION SELECT server FROM runs WHERE server <> ''`)
	if err != nil {
		return err
	}
	at.w.mu.Lock()
	defer at.w.mu.Unlock()
	for _, hash := range needed {
		if _, ok := at.blobs[hash]; !ok {
			return fmt.Errorf("blob %.8s is needed and gone", hash)
		}
	}
	return nil
}

// closedRounds selects the closed rounds whose number of counted updates differs from the
// number of their receipts.
const closedRounds = `SELECT round + 1 FROM rounds o WHERE state <> 'open' AND counted <> (SELECT count(*) FROM receipts r WHERE r.run = o.run AND r.batch <= o.last_batch
	AND r.batch > COALESCE((SELECT max(last_batch) FROM rounds p WHERE p.run = o.run AND p.round < o.round), 0))`

func (w *world) checkRun(hub *site) error {
	m := &w.marks
	var reason string
	run, err := hub.list("SELECT state || ' ' || reason FROM runs")
	if err != nil {
		return err
	}
	if len(run) == 0 {
		return nil // the run does not exist yet
	}
	if err := w.checkReleases(hub); err != nil {
		return err
	}
	m.state, reason, _ = strings.Cut(run[0], " ")
	ended := m.ended
	m.ended = m.state == "finished" || m.state == "stopped" || m.state == "failed"
	all, err := hub.readReceipts()
	if err != nil {
		return err
	}
	now := map[turn]int64{}
	for _, r := range all {
		now[r.turn] = r.batch
	}
	for t, b := range m.receipts {
		if now[t] != b {
			return fmt.Errorf("the receipt of %v was in batch %d and is in %d", t, b, now[t])
		}
	}
	if ended && len(now) != len(m.receipts) {
		return fmt.Errorf("%d updates were counted after the run had ended", len(now)-len(m.receipts))
	}
	if elapsed := time.Since(w.start); w.outage != nil && len(now) > len(m.receipts) {
		switch end := w.outageEnd(); {
		case end == 0:
			w.outageBegan = max(elapsed, 1)
		case elapsed > end && w.resumed == 0 && len(now)%w.cohort == 0:
			w.resumed = elapsed - end
		}
	}
	m.receipts = now
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range sorted(m.counted) {
		if now[t] == 0 {
			return fmt.Errorf("somebody heard that %v is counted, and it has no receipt", t)
		}
	}
	for _, t := range sorted(m.closed) {
		if now[t] != 0 && m.restores == 0 { // a restored server may ask for a turn again
			return fmt.Errorf("somebody heard that %v is closed, and it is counted", t)
		}
	}
	if wrong, err := hub.list(closedRounds); err != nil || len(wrong) > 0 {
		return fmt.Errorf("rounds were closed with other updates than they have receipts for: %v (%w)", wrong, orNone(err))
	}
	if m.state == "failed" && w.exact {
		return fmt.Errorf("the run failed: %s", reason)
	}
	return nil
}

func sorted(set map[turn]bool) []turn {
	return slices.SortedFunc(maps.Keys(set), func(a, b turn) int { return int(a.round - b.round) })
}

// query prepares a query once, because SQLite takes longer to parse it than to run it.
func (at *site) query(text string) (*sql.Rows, error) {
	s := at.prepared[text]
	if s == nil {
		var err error
		if s, err = at.watch.Prepare(text); err != nil {
			return nil, err
		}
		at.prepared[text] = s
	}
	return s.Query()
}

// list returns the strings that a query selects.
func (at *site) list(query string) (all []string, err error) {
	rows, err := at.query(query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, rows.Err()
}

// receipt is a counted turn.
type receipt struct {
	turn
	version, batch int64
}

func (at *site) readReceipts() (all []receipt, err error) {
	rows, err := at.query("SELECT round, client, version, batch FROM receipts")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r receipt
		if err := rows.Scan(&r.round, &r.client, &r.version, &r.batch); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// orNone returns err, or errNone if err is nil, for messages that always contain an error.
func orNone(err error) error {
	if err == nil {
		return errNone
	}
	return err
}

var errNone = fmt.Errorf("no other error")

// final checks the final state of the fleet, after all parts have ended. It returns a hash of
// the weights and of all personal layers.
func (w *world) final() string {
	hub, ctx := w.sites[0], context.Background()
	for _, k := range w.keepers {
		k.probe(-1, false)
		if w.begun {
			k.probe(-1, true)
		}
	}
	if left, err := hub.list("SELECT 'batch ' || batch FROM partials UNION ALL SELECT 'batch ' || batch FROM updates"); err != nil || w.marks.state == "finished" && len(left) > 0 && w.kind != asynchronous {
		w.violate("counted updates are left over: %v (%v)", left, err)
	}
	var version, fleet int64
	if err := hub.watch.QueryRow("SELECT version, fleet FROM runs").Scan(&version, &fleet); err != nil {
		w.violate("reading the run: %v", err)
		return ""
	}
	if fleet == 0 {
		return "" // the run ended before it began
	}
	if w.exact && version != int64(w.rounds) {
		w.violate("the run has ended at version %d of %d", version, w.rounds)
	}
	v, err := hub.ledger.Version(ctx, runID, version)
	if err != nil {
		w.violate("reading the weights: %v", err)
		return ""
	}
	var r *replay
	if w.marks.restores == 0 { // agents know more turns than a restored server
		if r, err = w.replay(hub, fleet); err != nil {
			w.violate("replaying the receipts: %v", err)
			return ""
		}
	}
	result := sha256.New()
	fmt.Fprintln(result, v.Weights, v.Control)
	for _, h := range w.agents {
		if !h.revoked.IsZero() {
			continue
		}
		store, err := state.Open(filepath.Join(w.dir, h.name))
		if err != nil {
			w.violate("the state of %s: %v", h.name, err)
			return ""
		}
		if open, err := store.Results(); err != nil || len(open) > 0 {
			w.violate("%s still has %d results (%v)", h.name, len(open), err)
		}
		for _, m := range h.meters {
			values, err := w.checkPersonal(store, m.ID)
			if err != nil {
				w.violate("%s: %v", h.name, err)
			} else if r != nil && values != nil && !slices.Equal(values, r.clients[m.ID].Kept) {
				w.violate("%s: the personal layers of %s are not those of its counted turns", h.name, m.ID)
			}
			for _, x := range values {
				_ = binary.Write(result, binary.LittleEndian, math.Float32bits(x)) // a hash does not fail
			}
		}
		if err := store.Close(); err != nil {
			w.violate("the state of %s: %v", h.name, err)
		}
	}
	return fmt.Sprintf("%x", result.Sum(nil)[:8])
}

// checkPersonal checks that a client's personal layers are those of its last counted round.
func (w *world) checkPersonal(store *state.Store, client string) ([]float32, error) {
	last := int64(-1)
	for t := range w.marks.receipts {
		if t.client == client {
			last = max(last, t.round)
		}
	}
	values, _, found, err := store.Read(runID, client)
	if err != nil {
		return nil, err
	}
	kept := int64(-1)
	if found {
		r, err := store.Load(runID, client, make([]float32, len(values)))
		if err != nil {
			return nil, err
		}
		kept = r.Round
	}
	// After a restore, agents may have trained in later rounds than the server knows.
	if kept != last && (w.marks.restores == 0 || kept < last) {
		return nil, fmt.Errorf("%s was last counted in round %d and keeps the layers of round %d", client, last+1, kept+1)
	}
	return values, nil
}
