package ledger

import (
	"context"
	"errors"
	"os"
	"time"
)

// OpenForBackup opens a SQLite ledger without a change to its schema, because a server of
// another version may be running on it. Only Backup and Close may be called. It
// refuses a schema that this program does not know.
func OpenForBackup(ctx context.Context, path string) (_ *Ledger, err error) {
	defer wrap(&err, "opening the database")
	return openDatabase(ctx, "sqlite:"+path, time.Now, func(l *Ledger, ctx context.Context) error {
		if err := l.connect(ctx); err != nil {
			return err
		}
		_, _, err := l.schema(ctx)
		return err
	})
}

// Backup writes a consistent copy of a SQLite ledger to a new file while the server is
// running.
func (l *Ledger) Backup(ctx context.Context, path string) (err error) {
	defer wrap(&err, "backing up to", path)
	if !l.sqlite {
		return errors.New("back up PostgreSQL with its own tools, such as pg_dump")
	}
	// SQLite writes to an empty file, and would create one that others can read.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	_, err = l.db.ExecContext(ctx, "VACUUM INTO $1", path)
	return err
}

// BlobsOf returns the blobs that the copy of a SQLite ledger refers to. It does not change
// the copy: if the schema is old, it migrates a second copy and removes it.
func BlobsOf(ctx context.Context, path string) (all []string, err error) {
	l, err := OpenForBackup(ctx, path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	p, version, err := l.schema(ctx)
	if err != nil {
		return nil, err
	}
	if sources := p.ListSources(); version == sources[len(sources)-1].Version {
		return l.Blobs(ctx)
	}
	second := path + ".migrated"
	defer os.Remove(second)
	if err := l.Backup(ctx, second); err != nil {
		return nil, err
	}
	migrated, err := Open(ctx, "sqlite:"+second)
	if err != nil {
		return nil, err
	}
	all, err = migrated.Blobs(ctx)
	return all, errors.Join(err, migrated.Close())
}
