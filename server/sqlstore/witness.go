package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
)

// WitnessFile is the suffix of the name of a file next to a SQLite ledger. The file names a
// batch that was counted recently. It reveals whether a ledger has lost its newest
// transactions: a ledger that was copied without its log is valid, but older. The file is
// written after the commit and not synced. After a power loss, it can name an older batch, but
// never one that the ledger did not have.
const WitnessFile = "-counted"

// ErrOlder means that a SQLite ledger lacks updates that were counted in it.
var ErrOlder = errors.New("the database lacks updates that were counted")

// checkWitness returns an error if the ledger lacks the batch that the file names.
func (s *Store) checkWitness(ctx context.Context) error {
	path := s.path + WitnessFile
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var run string
	var batch, has int64
	var sum uint32
	if _, err := fmt.Sscanf(string(text), "%s %d %x\n", &run, &batch, &sum); err != nil || sum != witnessSum(run, batch) {
		return nil // nothing was counted, or a power loss has damaged the file
	}
	err = s.DB.QueryRowContext(ctx, "SELECT COALESCE(max(batch), 0) FROM (SELECT batch FROM runs WHERE id = $1 UNION ALL SELECT batch FROM counters WHERE run = $1) AS newest", run).Scan(&has)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if has < batch {
		return fmt.Errorf("%w: batch %d of run %s is the newest in %s; batch %d was counted. If its log %s-wal was removed or not copied, put it back. To continue with this older ledger, remove %s",
			ErrOlder, has, run, s.path, batch, s.path, path)
	}
	return nil
}

func witnessSum(run string, batch int64) uint32 {
	return crc32.Checksum(fmt.Appendf(nil, "%s %d", run, batch), castagnoli)
}

// NoteCounted records that a batch was counted. Errors do not matter, because the batch is
// counted, and the file still names an older batch.
func (s *Store) NoteCounted(run string, batch int64) {
	if !s.SQLite {
		return
	}
	s.witness.Lock()
	defer s.witness.Unlock()
	if s.witness.File == nil {
		s.witness.File, _ = os.OpenFile(s.path+WitnessFile, os.O_WRONLY|os.O_CREATE, 0o600)
	}
	_, _ = s.witness.WriteAt(fmt.Appendf(nil, "%s %d %08x\n", run, batch, witnessSum(run, batch)), 0)
}
