package sqlstore

import (
	"context"
	"errors"
	"os"
	"time"
)

// OpenForBackup opens a SQLite ledger without changing its schema, because a server of another
// version may be using it. Only Backup and Close may be called. It refuses a ledger whose
// schema this program does not know.
func OpenForBackup(ctx context.Context, path string) (_ *Store, err error) {
	defer Wrap(&err, "opening the database")
	return openDatabase(ctx, "sqlite:"+path, time.Now, func(s *Store, ctx context.Context) error {
		if err := s.connect(ctx); err != nil {
			return err
		}
		_, _, err := s.schema(ctx)
		return err
	})
}

// Backup writes a consistent copy of a SQLite ledger to a new file while the server is
// running.
func (s *Store) Backup(ctx context.Context, path string) (err error) {
	defer Wrap(&err, "backing up to", path)
	if !s.SQLite {
		return errors.New("back up PostgreSQL with its own tools, such as pg_dump")
	}
	// Create an empty file for SQLite to write to, because a file that SQLite creates would be
	// readable by other users.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	_, err = s.DB.ExecContext(ctx, "VACUUM INTO $1", path)
	return err
}

// WithNewest calls do with the copy of a SQLite ledger at path, which it does not change. If
// the copy's schema is not the newest, it migrates a second copy, passes that to do and removes
// it afterwards.
func WithNewest(ctx context.Context, path string, do func(*Store) error) (err error) {
	s, err := OpenForBackup(ctx, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p, version, err := s.schema(ctx)
	if err != nil {
		return err
	}
	if version == newestOf(p) {
		return do(s)
	}
	second := path + ".migrated"
	defer os.Remove(second)
	if err := s.Backup(ctx, second); err != nil {
		return err
	}
	migrated, err := Open(ctx, "sqlite:"+second)
	if err != nil {
		return err
	}
	return errors.Join(do(migrated), migrated.Close())
}
