package ledger

import (
	"context"
	"database/sql"
	"errors"

	"loadstar/server/sqlstore"
)

// SetLeadersData stores the fingerprint of the leading coordinator's data, or the empty
// string if it has none.
func (l *Ledger) SetLeadersData(ctx context.Context, lead Lead, fingerprint string) (err error) {
	defer sqlstore.Wrap(&err, "storing what data the coordinator has")
	return l.Store.Update(ctx, func(tx *sqlstore.Txn) error {
		if err := l.checkLead(ctx, tx, lead); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE leaders SET data = $2 WHERE role = $1", coordinator, fingerprint)
		return err
	})
}

// LeadersData returns the fingerprint that the newest leading coordinator has stored, or
// false if no coordinator has ever led.
func (l *Ledger) LeadersData(ctx context.Context) (fingerprint string, known bool, err error) {
	defer sqlstore.Wrap(&err, "reading what data the coordinator has")
	err = l.Store.DB.QueryRowContext(ctx, "SELECT data FROM leaders WHERE role = $1 AND epoch > 0", coordinator).Scan(&fingerprint)
	if errors.Is(err, sql.ErrNoRows) {
		return "", false, nil
	}
	return fingerprint, err == nil, err
}

// ServerData is the state of the server's own data in a run.
type ServerData struct {
	// Fingerprint identifies the data with which the run began.
	Fingerprint string
	// Kept is the encoded state of the server's personal layers at the newest version. It
	// is empty at version 0.
	Kept []byte
}

// BeginServerData stores the identity of the server's data with which the run begins.
func (d *Drive) BeginServerData(fingerprint string) (err error) {
	defer sqlstore.Wrap(&err, "storing the server's data of run", d.Run.ID)
	_, err = d.tx.ExecContext(d.ctx, "INSERT INTO server_data (run, fingerprint, kept, checksum) VALUES ($1, $2, $3, $4)", sqlstore.WithSum("server_data", d.Run.ID, fingerprint, []byte{})...)
	return err
}

// KeepServerData stores the state of the server's personal layers. Call it in the transaction
// that stores the version that belongs to this state.
func (d *Drive) KeepServerData(kept []byte) (err error) {
	defer sqlstore.Wrap(&err, "storing the server's personal layers of run", d.Run.ID)
	has, err := d.ServerData()
	if err != nil {
		return err
	}
	_, err = d.tx.ExecContext(d.ctx, "UPDATE server_data SET kept = $2, checksum = $3 WHERE run = $1", d.Run.ID, kept, sqlstore.RowSum("server_data", d.Run.ID, has.Fingerprint, kept))
	return err
}

// ServerData returns the state of the server's own data.
func (d *Drive) ServerData() (s ServerData, err error) {
	defer sqlstore.Wrap(&err, "reading the server's data of run", d.Run.ID)
	var checksum int64
	err = d.tx.QueryRowContext(d.ctx, "SELECT fingerprint, kept, checksum FROM server_data WHERE run = $1", d.Run.ID).Scan(&s.Fingerprint, &s.Kept, &checksum)
	if err != nil {
		return s, sqlstore.OrNotFound(err, "the server's data of run "+d.Run.ID)
	}
	return s, sqlstore.CheckRow("server_data", checksum, d.Run.ID, s.Fingerprint, s.Kept)
}

// Explain stores the reason why a run does not advance. An empty code means that it advances.
func (d *Drive) Explain(code ReasonCode, reason string) (err error) {
	defer sqlstore.Wrap(&err, "explaining the state of run", d.Run.ID)
	if d.Run.Code == code && d.Run.Reason == reason {
		return nil
	}
	d.Run.Code, d.Run.Reason, d.now.Code, d.now.Reason = code, reason, code, reason
	return storeRun(d.ctx, d.tx, d.now)
}
