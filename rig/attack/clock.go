package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"loadstar/internal/testkit/pgtest"
	"loadstar/rig/product"
)

func clocks() []Attack {
	return []Attack{{ID: "M9", Name: "leases follow the clock of each machine", Run: wrongClock}}
}

// wrongClock succeeds if a lease ends by the clock of the server's machine, which is an hour
// behind its database's clock. Processes with different clocks would then withdraw each other's
// leases. The database's clock is changed by functions that hide PostgreSQL's own functions.
func wrongClock(ctx context.Context, f *Fleet) (Result, error) {
	const database = "loadstar"
	check(os.Mkdir(f.path("postgres"), 0o755))
	db := must(pgtest.Start(f.path("postgres"), 0))
	f.later(db.Stop)
	check(db.Create(database))
	conn := must(pgx.Connect(ctx, db.URL(database)))
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // the database stops next
	for _, name := range []string{"now", "clock_timestamp", "transaction_timestamp", "statement_timestamp"} {
		hide := "CREATE FUNCTION public.%[1]s() RETURNS timestamptz LANGUAGE sql AS $f$ SELECT pg_catalog.%[1]s() + interval '1 hour' $f$"
		must(conn.Exec(ctx, fmt.Sprintf(hide, name)))
	}
	must(conn.Exec(ctx, "ALTER DATABASE "+database+" SET search_path = public, pg_catalog"))
	s := must(f.Serve(ctx, "--database", db.URL(database), "--set", "rounds.lease=10m"))
	_, _, end, err := s.hold(ctx)
	check(err)
	var until *int64
	_, err = product.Eventually(ctx, 20*time.Second, func() (bool, error) {
		err := conn.QueryRow(ctx, "SELECT MAX(until) FROM public.leases").Scan(&until)
		return until != nil, err
	})
	if e := end(); err == nil {
		err = e
	}
	check(err)
	if until == nil {
		return Result{}, errors.New("there is no lease")
	}
	left := time.Until(time.UnixMilli(*until)).Round(time.Minute)
	if left < 30*time.Minute {
		return succeeded("a lease of 10 min ends in %s by the machine's clock", left), nil
	}
	return repelled("a lease of 10 min ends in %s by the machine's clock, which is an hour behind", left), nil
}
