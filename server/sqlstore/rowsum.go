package sqlstore

import (
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// summedTable is a table whose rows have a checksum, because they decide what is counted.
// Neither SQLite nor PostgreSQL without data_checksums detects a disk that returns bytes other
// than those that were written. The checksum covers the columns in this order; the first ones
// are the primary key. It does not cover numbers that statements increment, reason codes of
// runs, or the expiry of leases.
type summedTable struct {
	Columns string
	keys    int
}

// The columns of tables, in the order of their checksums.
const (
	RunColumns     = "id, name, plan, plan_blob, state, reason, wanted, fleet, created, started, finished, round, version, batch, server, remote, generated, left_out, receipts"
	ReleaseColumns = "id, name, number, run, version, role, plan_blob, weights, parent, actor, created, withdrawn"
	ReceiptColumns = "run, round, client, no, version, batch, examples, steps, train_loss, counted, norm, control_norm"
	LeaseColumns   = "run, round, client, no, agent, version, latest"
	PartialColumns = "run, batch, version, evaluated, relative_mae, numbers"
	UpdateColumns  = "run, batch, client, version, examples, steps, loss, evaluated, relative_mae, numbers"
	MaskColumns    = "run, round, agent, part, batch, clients, nonce"
	PrivateColumns = "run, round, privacy, request, refused"
	VersionColumns = "run, version, weights, control, limits, server, created, rolled_back"
)

// SummedTables returns the tables whose rows have checksums.
var SummedTables = map[string]summedTable{
	"runs":           {RunColumns, 1},
	"machines":       {"run, state", 1},
	"members":        {"run, no, client", 2},
	"versions":       {VersionColumns, 2},
	"rounds":         {"run, round, version, state, opened, closed, asked, CASE WHEN state = 'open' THEN 0 ELSE counted END, late, lost, loss, last_batch, evaluated, relative_mae", 2},
	"leases":         {LeaseColumns, 3},
	"receipts":       {ReceiptColumns, 3},
	"partials":       {PartialColumns, 3},
	"updates":        {UpdateColumns, 4},
	"server_data":    {"run, fingerprint, kept", 1},
	"releases":       {ReleaseColumns, 1},
	"counters":       {"run, slot, batch, receipts", 2},
	"masks":          {MaskColumns, 4},
	"private_rounds": {PrivateColumns, 2},
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// rowTexts contains buffers for RowSum, which is called for every row that is read or written.
var rowTexts sync.Pool // of *[]byte

// RowSum returns the checksum of a row. An empty text, an empty blob and NULL have the same
// checksum. Neither RowSum nor CheckRow passes values to package fmt, because callers would then
// have to allocate memory for each value.
func RowSum(table string, values ...any) int64 {
	buffer, ok := rowTexts.Get().(*[]byte)
	if !ok {
		buffer = new([]byte)
	}
	text := append((*buffer)[:0], table...)
	defer func() { *buffer = text; rowTexts.Put(buffer) }()
	sum := uint32(0)
	number := func(kind byte, n uint64) { text = binary.LittleEndian.AppendUint64(append(text, kind), n) }
	for _, value := range values {
		switch x := value.(type) {
		case int64:
			number('i', uint64(x))
		case *int64:
			if x == nil {
				number('s', 0)
			} else {
				number('i', uint64(*x))
			}
		case float64:
			if x == 0 {
				x = 0 // SQLite stores -0 as 0
			}
			number('f', math.Float64bits(x))
		case string:
			number('s', uint64(len(x)))
			text = append(text, x...)
		case []byte:
			number('s', uint64(len(x)))
			sum = crc32.Update(crc32.Update(sum, castagnoli, text), castagnoli, x)
			text = text[:0]
		case nil:
			number('s', 0)
		default:
			panic("no checksum of a " + reflect.TypeOf(value).String())
		}
	}
	return int64(crc32.Update(sum, castagnoli, text))
}

// WithSum returns the values of a row and its checksum, for an INSERT.
func WithSum(table string, values ...any) []any { return append(values, RowSum(table, values...)) }

// CheckRow returns an error if a row does not match its stored checksum.
func CheckRow(table string, stored int64, values ...any) error {
	if RowSum(table, values...) == stored {
		return nil
	}
	var keys []string
	for _, value := range values[:SummedTables[table].keys] {
		switch x := value.(type) {
		case int64:
			keys = append(keys, strconv.FormatInt(x, 10))
		case string:
			keys = append(keys, x)
		}
	}
	return fmt.Errorf("%w: table %s, row %s: its checksum is wrong", ErrDamaged, table, strings.Join(keys, " "))
}

// EachSummed calls each with every row of a table with checksums that a clause selects.
func EachSummed(ctx context.Context, q Querier, table, where string, each func(values []any, stored int64) error, args ...any) error {
	columns := SummedTables[table].Columns
	n := strings.Count(columns, ", ") + 1
	values, into := make([]any, n), make([]any, n+1)
	for i := range values {
		into[i] = &values[i]
	}
	var stored int64
	into[n] = &stored
	return Query(ctx, q, func(r *sql.Rows) error {
		if err := r.Scan(into...); err != nil {
			return err
		}
		return each(values, stored)
	}, "SELECT "+columns+", checksum FROM "+table+where, args...)
}

// CheckRows checks the checksums of rows, and that no receipt is missing. Most rows are
// receipts of merged rounds, which are no longer needed, so CheckRows checks these only if
// merged is set.
func CheckRows(ctx context.Context, q Querier, merged bool) error {
	check := func(table, where string, args ...any) error {
		return EachSummed(ctx, q, table, where, func(values []any, stored int64) error { return CheckRow(table, stored, values...) }, args...)
	}
	for _, table := range slices.Sorted(maps.Keys(SummedTables)) {
		if table == "receipts" && !merged {
			continue
		}
		if err := check(table, ""); err != nil {
			return err
		}
	}
	last := map[string]int64{} // the last merged batch of each active run
	if err := Query(ctx, q, func(r *sql.Rows) error {
		var run string
		var batch int64
		err := r.Scan(&run, &batch)
		last[run] = batch
		return err
	}, "SELECT id, (SELECT COALESCE(max(last_batch), 0) FROM rounds WHERE run = id AND state IN ('merged', 'abandoned')) FROM runs WHERE state = 'running'"); err != nil {
		return err
	}
	for run, batch := range last {
		if err := check("receipts", " WHERE run = $1 AND batch > $2", run, batch); err != nil {
			return err
		}
	}
	return Query(ctx, q, func(r *sql.Rows) error {
		var run string
		var want, has int64
		if err := r.Scan(&run, &want, &has); err != nil {
			return err
		}
		return fmt.Errorf("%w: run %s has counted %d updates, but %d receipts are stored; the others were deleted or lost", ErrDamaged, run, want, has)
	}, `SELECT id, counted, has FROM (SELECT id, receipts + CAST((SELECT COALESCE(sum(c.receipts), 0) FROM counters c WHERE c.run = runs.id) AS BIGINT) AS counted,
		(SELECT count(*) FROM receipts r WHERE r.run = runs.id) AS has FROM runs) AS counts WHERE counted <> has`)
}

// SumRows computes the checksums of all rows. Call it after changing rows or the columns that
// checksums cover, unless the change itself writes the checksums.
func SumRows(ctx context.Context, tx *sql.Tx) error {
	for table, t := range SummedTables {
		where := make([]string, t.keys)
		for i, key := range strings.SplitN(t.Columns, ", ", t.keys+1)[:t.keys] {
			where[i] = fmt.Sprintf("%s = $%d", key, i+2)
		}
		var all [][]any
		if err := EachSummed(ctx, tx, table, "", func(values []any, _ int64) error {
			all = append(all, append([]any{RowSum(table, values...)}, values[:t.keys]...))
			return nil
		}); err != nil {
			return err
		}
		for _, args := range all {
			if _, err := tx.ExecContext(ctx, "UPDATE "+table+" SET checksum = $1 WHERE "+strings.Join(where, " AND "), args...); err != nil {
				return err
			}
		}
	}
	return nil
}
