package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"loadstar/rig/product"
)

// retentions lists the attacks by growth.
func retentions() []Attack {
	return []Attack{{ID: "M8a", Name: "receipts of ended runs are kept forever", Run: endlessReceipts}}
}

// endlessReceipts succeeds if the receipts of a finished run still exist after the server
// was told to keep them for only a second.
func endlessReceipts(ctx context.Context, f *Fleet) (Result, error) {
	s, r := scripted(ctx, f, 2, harmless)
	if r.Run.State != "finished" {
		return Result{}, fmt.Errorf("the run is %s %s", r.Run.State, r.Run.Reason)
	}
	before, err := s.receipts(ctx)
	if err != nil || before == 0 {
		return Result{}, fmt.Errorf("%d receipts: %w", before, err)
	}
	check(errors.Join(s.Kill(), product.Sleep(ctx, 2*time.Second)))
	if s, err = f.Serve(ctx, "--set", "store.keep_receipts=1s"); err != nil { // a server deletes when it starts
		return Result{}, err
	}
	after := before
	ok := must(product.Eventually(ctx, 15*time.Second, func() (bool, error) {
		after, err = s.receipts(ctx)
		return after == 0, err
	}))
	if !ok {
		return succeeded("%d of %d receipts are kept", after, before), nil
	}
	return repelled("%d receipts are deleted", before), nil
}

func (s *Server) receipts(ctx context.Context) (n int, err error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(s.Dir, "ledger.db")+"?mode=ro&_pragma=busy_timeout(5000)")
	if err != nil {
		return 0, err
	}
	err = db.QueryRowContext(ctx, "SELECT COUNT(*) FROM receipts").Scan(&n)
	return n, errors.Join(err, db.Close())
}
