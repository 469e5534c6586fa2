package ledger

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"loadstar/server/sqlstore"
)

// Mask identifies the mask of a counted result of a private plan. The keepers compute the mask
// from the nonce and the agent's key.
type Mask struct {
	Agent string
	// Part numbers the agent's results in the round. Clients is the number of clients in the
	// result.
	Part, Clients int64
	Nonce         string // hexadecimal
}

// Name identifies the result in its round.
func (m *Mask) Name() string { return fmt.Sprintf("%s/%d", m.Agent, m.Part) }

// PrivateRound holds the parts of a private plan's round that never change once they are
// stored: the privacy settings of its tasks, and the request to the keepers.
type PrivateRound struct {
	Privacy []byte // encoded v1.Privacy
	Request []byte // encoded; nil until the round has closed
	Refused string // the rule by which a keeper refused the request, or empty
}

// maskTypes are the types of sqlstore.MaskColumns and the checksum.
var maskTypes = []string{"text", "bigint", "text", "bigint", "bigint", "bigint", "text", "bigint"}

// withFreshMasks returns those of the counted arrivals whose masks are unused. It removes the
// leases of the other arrivals from used. Honest agents never use a part twice in a round.
func (ct *Counter) withFreshMasks(ctx context.Context, tx *sqlstore.Txn, run string, arrivals []Arrival, counted []int, used map[Turn]leaseRow) ([]int, error) {
	rounds := map[int64][]Mask{}
	for _, i := range counted {
		if a := &arrivals[i]; len(a.Masks) > 0 {
			rounds[a.Round] = append(rounds[a.Round], a.Masks...)
		}
	}
	if len(rounds) == 0 {
		return counted, nil
	}
	taken := map[int64]map[part]bool{}
	for round, masks := range rounds {
		var err error
		if taken[round], err = ct.partsOf(ctx, tx, run, round, masks); err != nil {
			return nil, err
		}
	}
	fresh := counted[:0]
	for _, i := range counted {
		a := &arrivals[i]
		has := taken[a.Round]
		if slices.ContainsFunc(a.Masks, func(m Mask) bool { return has[part{m.Agent, m.Part}] }) {
			for _, s := range a.Shares {
				delete(used, Turn{run, a.Round, s.Client})
			}
			continue
		}
		for _, m := range a.Masks {
			has[part{m.Agent, m.Part}] = true
		}
		fresh = append(fresh, i)
	}
	return fresh, nil
}

// part identifies a masked result in its round.
type part struct {
	agent string
	part  int64
}

// partsOf returns the stored parts of a round that belong to the agents of masks.
func (ct *Counter) partsOf(ctx context.Context, q sqlstore.Querier, run string, round int64, masks []Mask) (has map[part]bool, err error) {
	agents := make([]string, len(masks))
	for i, m := range masks {
		agents[i] = m.Agent
	}
	slices.Sort(agents)
	has = map[part]bool{}
	err = sqlstore.Query(ctx, q, func(r *sql.Rows) error {
		var p part
		err := r.Scan(&p.agent, &p.part)
		has[p] = true
		return err
	}, "SELECT agent, part FROM masks WHERE run = $1 AND round = $2 AND agent "+ct.store.AnyOf(3), run, round, sqlstore.List(ct.store, slices.Compact(agents)))
	return has, err
}

// addMasks stores the masks of counted arrivals.
func (ct *Counter) addMasks(ctx context.Context, tx *sqlstore.Txn, run string, batch int64, arrivals []Arrival, counted []int) error {
	var rows []any
	for _, i := range counted {
		for _, m := range arrivals[i].Masks {
			rows = append(rows, sqlstore.WithSum("masks", run, arrivals[i].Round, m.Agent, m.Part, batch, m.Clients, m.Nonce)...)
		}
	}
	for part := range slices.Chunk(rows, len(maskTypes)*sqlstore.MaxRows) {
		text, args := ct.store.InsertRows("INSERT INTO masks ("+sqlstore.MaskColumns+", checksum)", maskTypes, part)
		if _, err := tx.ExecContext(ctx, text, args...); err != nil {
			return err
		}
	}
	return nil
}

// Masks returns the masks in the stored sums of a run up to a batch, in the order of agent and
// part.
func (ct *Counter) Masks(ctx context.Context, run string, batch int64) (all []Mask, err error) {
	defer sqlstore.Wrap(&err, "reading the masks of run", run)
	return masks(ctx, ct.store.DB, "SELECT "+sqlstore.MaskColumns+", checksum FROM masks WHERE run = $1 AND batch <= $2", run, batch)
}

// masks returns the masks that a query selects, in the order of agent and part.
func masks(ctx context.Context, q sqlstore.Querier, query string, args ...any) (all []Mask, err error) {
	err = sqlstore.Query(ctx, q, func(r *sql.Rows) error {
		var run string
		var m Mask
		var round, batch, checksum int64
		if err := r.Scan(&run, &round, &m.Agent, &m.Part, &batch, &m.Clients, &m.Nonce, &checksum); err != nil {
			return err
		}
		all = append(all, m)
		return sqlstore.CheckRow("masks", checksum, run, round, m.Agent, m.Part, batch, m.Clients, m.Nonce)
	}, query, args...)
	slices.SortFunc(all, func(a, b Mask) int { return cmp.Or(cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Part, b.Part)) })
	return all, err
}

// Used returns the first of some masks whose part is that of a counted result of the round, or nil.
func (ct *Counter) Used(ctx context.Context, run string, round int64, masks []Mask) (used *Mask, err error) {
	defer sqlstore.Wrap(&err, "reading masks of run", run)
	has, err := ct.partsOf(ctx, ct.store.DB, run, round, masks)
	for i, m := range masks {
		if has[part{m.Agent, m.Part}] {
			return &masks[i], err
		}
	}
	return nil, err
}

// PrivateRound returns the fixed parts of a private plan's round. It returns ErrNotFound until
// a client has been asked.
func (l *Ledger) PrivateRound(ctx context.Context, run string, round int64) (p PrivateRound, err error) {
	defer sqlstore.Wrap(&err, "reading a private round of run", run)
	p, err = scanPrivateRound(l.Store.DB.QueryRowContext(ctx, selectPrivate, run, round))
	return p, sqlstore.OrNotFound(err, "the private round")
}

const selectPrivate = "SELECT " + sqlstore.PrivateColumns + ", checksum FROM private_rounds WHERE run = $1 AND round = $2"

func scanPrivateRound(row interface{ Scan(...any) error }) (p PrivateRound, err error) {
	var run string
	var round, checksum int64
	if err := row.Scan(&run, &round, &p.Privacy, &p.Request, &p.Refused, &checksum); err != nil {
		return p, err
	}
	return p, sqlstore.CheckRow("private_rounds", checksum, run, round, p.Privacy, p.Request, p.Refused)
}

// storePrivate stores the fixed parts of a round.
func storePrivate(ctx context.Context, tx *sqlstore.Txn, run string, round int64, p PrivateRound) error {
	values := sqlstore.WithSum("private_rounds", run, round, notNil(p.Privacy), notNil(p.Request), p.Refused)
	_, err := tx.ExecContext(ctx, "INSERT INTO private_rounds ("+sqlstore.PrivateColumns+", checksum) VALUES "+sqlstore.Placeholders(0, 1, len(values))+
		" ON CONFLICT (run, round) DO UPDATE SET privacy = excluded.privacy, request = excluded.request, refused = excluded.refused, checksum = excluded.checksum", values...)
	return err
}

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// OpenPrivate fixes the tasks of a round, unless they are already fixed.
func (d *Drive) OpenPrivate(round int64, privacy []byte) (err error) {
	defer sqlstore.Wrap(&err, "opening a private round of run", d.Run.ID)
	return openPrivate(d.ctx, d.tx, d.Run.ID, round, privacy)
}

func openPrivate(ctx context.Context, tx *sqlstore.Txn, run string, round int64, privacy []byte) error {
	_, err := scanPrivateRound(tx.QueryRowContext(ctx, selectPrivate, run, round))
	if errors.Is(err, sql.ErrNoRows) {
		return storePrivate(ctx, tx, run, round, PrivateRound{Privacy: privacy})
	}
	return err
}

// FixRequest stores a closed round's request to its keepers unless one is already stored, and
// returns the stored request. Keepers answer only one request for a round.
func (d *Drive) FixRequest(round int64, request []byte) (fixed []byte, err error) {
	defer sqlstore.Wrap(&err, "storing the request of a private round of run", d.Run.ID)
	p, err := scanPrivateRound(d.tx.QueryRowContext(d.ctx, selectPrivate, d.Run.ID, round))
	if err != nil || len(p.Request) > 0 {
		return p.Request, err
	}
	p.Request = request
	return request, storePrivate(d.ctx, d.tx, d.Run.ID, round, p)
}

// Refuse abandons a closed round that a keeper has refused because of a rule, and deletes its
// sums. It stores the state of the machine, which has already opened the next round from the
// same version. It returns the number of rounds refused since the last merge.
func (d *Drive) Refuse(round Round, why, machine string) (inARow int64, err error) {
	defer sqlstore.Wrap(&err, "abandoning a refused round of run", d.Run.ID)
	r, err := d.round(round.Round, RoundMerging)
	if err != nil {
		return 0, err
	}
	r.State = RoundAbandoned
	if err := storeRound(d.ctx, d.tx, d.Run.ID, r); err != nil {
		return 0, err
	}
	if err := d.deleteSums(round.LastBatch); err != nil {
		return 0, err
	}
	if err := storePrivate(d.ctx, d.tx, d.Run.ID, round.Round, PrivateRound{Refused: why}); err != nil {
		return 0, err
	}
	if err := d.saveMachine(machine); err != nil {
		return 0, err
	}
	err = d.tx.QueryRowContext(d.ctx, "SELECT count(*) FROM private_rounds WHERE run = $1 AND refused <> ''", d.Run.ID).Scan(&inARow)
	return inARow, err
}

// Unmasked stores the loss and the evaluation of a closed round, which are known once the round's
// sum is unmasked. Call it before Publish. It deletes the fixed parts of this round and of
// earlier ones.
func (d *Drive) Unmasked(round Round) (err error) {
	defer sqlstore.Wrap(&err, "storing the sums of a private round of run", d.Run.ID)
	r, err := d.round(round.Round, RoundMerging)
	if err != nil {
		return err
	}
	r.Loss, r.Evaluation = round.Loss, round.Evaluation
	if err := storeRound(d.ctx, d.tx, d.Run.ID, r); err != nil {
		return err
	}
	_, err = d.tx.ExecContext(d.ctx, "DELETE FROM private_rounds WHERE run = $1 AND round <= $2", d.Run.ID, round.Round)
	return err
}

// KeeperEpoch stores an epoch that a keeper has signed and the time of this answer. It returns the
// newest epoch that the keeper has ever signed.
func (l *Ledger) KeeperEpoch(ctx context.Context, identity string, epoch int64) (newest int64, err error) {
	defer sqlstore.Wrap(&err, "storing the epoch of a keeper")
	err = l.Store.Write.QueryRowContext(ctx, `INSERT INTO keepers (identity, epoch, answered) VALUES ($1, $2, $3)
		ON CONFLICT (identity) DO UPDATE SET answered = excluded.answered, epoch = CASE WHEN excluded.epoch > keepers.epoch THEN excluded.epoch ELSE keepers.epoch END
		RETURNING epoch`, identity, epoch, sqlstore.ToMillis(l.Now())).Scan(&newest)
	return newest, err
}

// KeeperAnswered returns the time of the last answer of a keeper to a process of this server, or the
// zero time if it has never answered.
func (l *Ledger) KeeperAnswered(ctx context.Context, identity string) (at time.Time, err error) {
	defer sqlstore.Wrap(&err, "reading the last answer of a keeper")
	var ms int64
	err = l.Store.DB.QueryRowContext(ctx, "SELECT answered FROM keepers WHERE identity = $1", identity).Scan(&ms)
	if errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, nil
	}
	return sqlstore.FromMillis(ms), err
}

// KeepersKey returns the key by which keepers recognise this server. All processes of the
// server have the same key.
func (l *Ledger) KeepersKey(ctx context.Context) (ed25519.PrivateKey, error) {
	seed, err := l.Store.Secret(ctx, "keepers")
	if err != nil {
		return nil, err
	}
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("%w: the key for keepers has %d bytes", sqlstore.ErrDamaged, len(seed))
	}
	return ed25519.NewKeyFromSeed(seed), nil
}
