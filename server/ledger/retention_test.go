package ledger

import (
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/sqlstore"
)

// TestPrune checks that receipts of merged rounds and old events are deleted after their time,
// while receipts of unmerged rounds are kept. A result whose receipt was deleted does not count
// again.
func TestPrune(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		s := plant(t, at, 3)
		s.ask(0, 0, 0, 1, 2)
		s.count(one("agent", 0, 0, "c00000", "c00001", "c00002"))
		rows := func(table string) (n int) {
			t.Helper()
			testkit.Must(t, s.Store.DB.QueryRow("SELECT count(*) FROM "+table).Scan(&n))
			return n
		}
		keep := Retention{Receipts: 24 * time.Hour, Audit: 48 * time.Hour}
		prune := func(now time.Time, receipts, members int) {
			t.Helper()
			_, err := s.Prune(t.Context(), keep, now)
			testkit.Must(t, err)
			pgtest.Equal(t, "receipts", rows("receipts"), receipts)
			pgtest.Equal(t, "members", rows("members"), members)
		}
		prune(after(47*time.Hour), 3, 3) // the round is open
		_, err := s.Store.Write.Exec("UPDATE rounds SET state = $1, closed = $2, last_batch = 1", RoundMerged, sqlstore.ToMillis(after(time.Hour)))
		testkit.Must(t, err)
		resum(t, s.Ledger)
		prune(after(24*time.Hour), 3, 3)
		events := rows("audit")
		if _, err := s.Prune(t.Context(), Retention{}, after(10000*time.Hour)); err != nil || rows("receipts") != 3 || rows("audit") != events {
			t.Errorf("pruned without settings: %v", err)
		}
		// In a region, the hub has decided on one sum and not on the other.
		_, err = s.Store.Write.Exec("INSERT INTO relayed (run, batch, client, sending, outcome) SELECT id, 1, '', 'one', 'counted' FROM runs UNION ALL SELECT id, 2, '', 'two', '' FROM runs")
		testkit.Must(t, err)
		prune(after(26*time.Hour), 0, 3)
		pgtest.Equal(t, "sums for the hub", rows("relayed"), 2)
		pgtest.Equal(t, "events", rows("audit"), events)
		if got := s.count(one("agent", 0, 0, "c00000")); len(got) > 0 {
			t.Error("a result was counted twice")
		}
		_, err = s.Store.Write.Exec("UPDATE runs SET finished = $1", sqlstore.ToMillis(after(time.Hour)))
		testkit.Must(t, err)
		resum(t, s.Ledger)
		prune(after(49*time.Hour), 0, 0)
		pgtest.Equal(t, "sums for the hub", rows("relayed"), 1)
		pgtest.Equal(t, "events", rows("audit"), 0)
	})
}

// TestCostOfReceipts measures the bytes of a counted update, which docs/scale.md reports.
func TestCostOfReceipts(t *testing.T) {
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		const n = 20_000
		s := plant(t, at, 1)
		size := func() (bytes int64) {
			t.Helper()
			text := "SELECT sum(pgsize) FROM dbstat WHERE name LIKE '%receipts%'"
			if !s.Store.SQLite {
				text = "SELECT pg_total_relation_size('receipts')"
			}
			testkit.Must(t, s.Store.DB.QueryRow(text).Scan(&bytes))
			return bytes
		}
		before := size()
		_, err := s.Store.Write.Exec(`WITH RECURSIVE numbers (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM numbers WHERE i + 1 < 20000)
			INSERT INTO receipts (run, round, client, no, version, batch, examples, steps, train_loss, counted, norm, control_norm)
			SELECT '0123456789abcdef', i / 1000, 'meter_' || (100000 + i % 1000), i % 1000, i / 1000, i / 64, 4000, 30, 0.123456 + i, 1700000000000 + i, 1.5 + i, 0 FROM numbers`)
		testkit.Must(t, err)
		per := float64(size()-before) / n
		t.Logf("%.0f bytes for each update", per)
		if per < 80 || per > 330 {
			t.Errorf("%.0f bytes for each update; state it in docs/scale.md", per)
		}
	})
}
