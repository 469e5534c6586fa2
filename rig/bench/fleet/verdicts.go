package fleet

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/rig/fleetload"
)

type turnKey struct {
	round  int64
	client string
}

// compare returns an error if the verdicts that the agents received differ from the ledger.
// It reads the receipts itself, because the ledger's own code is under test. The fleet must
// be paused, and no result may be waiting.
func (b *testbed) compare(ctx context.Context, run string, counted int64) error {
	driver, at := "pgx", b.url
	if at == "" {
		driver, at = "sqlite", "file:"+filepath.Join(b.dir, "ledger.db")+"?mode=ro"
	}
	db, err := sql.Open(driver, at)
	if err != nil {
		return err
	}
	defer db.Close()
	receipts := map[turnKey]bool{}
	rows, err := db.QueryContext(ctx, "SELECT round, client FROM receipts WHERE run = $1", run)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var k turnKey
		if err := rows.Scan(&k.round, &k.client); err != nil {
			return err
		}
		receipts[k] = true
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if int64(len(receipts)) != counted {
		return fmt.Errorf("the server reports %d counted results, but the ledger has %d receipts", counted, len(receipts))
	}
	told := map[turnKey]v1.Outcome{}
	b.fleet.Told(func(t fleetload.Told) {
		if t.Run == run {
			told[turnKey{t.Round, t.Client}] = t.Outcome
		}
	})
	return agree(receipts, told)
}

// agree compares receipts with the latest verdicts that agents received for each of their
// turns.
func agree(receipts map[turnKey]bool, told map[turnKey]v1.Outcome) error {
	var err error
	wrong := func(k turnKey, what string) {
		err = errors.Join(err, fmt.Errorf("round %d, client %s: %s", k.round, k.client, what))
	}
	for k := range receipts {
		if _, pushed := told[k]; !pushed {
			wrong(k, "counted, but its agent sent no result")
		}
	}
	for k, outcome := range told {
		switch outcome {
		case v1.Outcome_OUTCOME_COUNTED:
			if !receipts[k] {
				wrong(k, "its agent was told that it is counted, but the ledger has no receipt")
			}
		case v1.Outcome_OUTCOME_CLOSED, v1.Outcome_OUTCOME_REJECTED:
			if receipts[k] {
				wrong(k, "its agent was told that it is not counted, but the ledger has a receipt")
			}
		}
	}
	return err
}
