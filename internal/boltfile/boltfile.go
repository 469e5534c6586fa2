// Package boltfile opens bbolt files that must not lose data. It turns damage into errors,
// checks the file's length, and opens the file again after a failed write.
package boltfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"loadstar/internal/disk"
)

// Errors that callers distinguish.
var (
	// ErrLocked means that another process uses the file.
	ErrLocked = errors.New("another process is using it")
	// ErrDamaged means that the file's content differs from what was written.
	ErrDamaged = errors.New("the file is damaged")
)

// File is an open bbolt file. It is safe for concurrent use.
type File struct {
	path string

	mu sync.RWMutex // held for writing while the file is opened again
	db *bolt.DB
	// failed is the error of a write whose effect is unknown.
	failed error
}

// Open opens a file, and creates it and its folder if necessary.
func Open(path string) (*File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f := &File{path: path}
	var err error
	if f.db, err = OpenDB(path); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// OpenDB opens a database for packages that handle failed writes themselves. The file must
// be at least as long as the database. Readers must use [Guard].
func OpenDB(path string) (db *bolt.DB, err error) {
	var file *os.File
	options := &bolt.Options{
		Timeout: 200 * time.Millisecond, FreelistType: bolt.FreelistMapType,
		OpenFile: func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
			file, err = os.OpenFile(name, flag, mode)
			return file, err
		},
	}
	err = Guard(func() (err error) {
		db, err = bolt.Open(path, 0o600, options)
		return err
	})
	switch {
	case errors.Is(err, ErrDamaged): // bbolt's mapping holds the lock even after the file is closed
		_ = disk.Unlock(file) // open already returns an error
		file.Close()
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, ErrLocked
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err == nil {
		err = checkMetas(file, db)
	}
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err == nil {
		err = Guard(func() error {
			return db.View(func(tx *bolt.Tx) error {
				if tx.Size() > info.Size() {
					return fmt.Errorf("%w: it has %d bytes, want %d", ErrDamaged, info.Size(), tx.Size())
				}
				return nil
			})
		})
	}
	if err != nil {
		_ = db.Close() // nothing was written
		return nil, err
	}
	return db, nil
}

// checkMetas returns an error if one of the two meta pages is damaged. bbolt would use the
// other page, which belongs to the previous transaction, and thus lose a transaction.
func checkMetas(file *os.File, db *bolt.DB) error {
	const header, size, magic = 16, 64, 0xED0CDAED
	meta := make([]byte, size)
	for i := range int64(2) {
		if _, err := file.ReadAt(meta, i*int64(db.Info().PageSize)+header); err != nil {
			return errors.Join(err, db.Close())
		}
		sum := fnv.New64a()
		_, _ = sum.Write(meta[:size-8]) // a hash cannot fail
		if binary.NativeEndian.Uint32(meta) != magic || binary.NativeEndian.Uint64(meta[size-8:]) != sum.Sum64() {
			return errors.Join(fmt.Errorf("%w: one of its two first pages is wrong", ErrDamaged), db.Close())
		}
	}
	return nil
}

// Guard turns panics and faults into errors. bbolt does not validate what it reads, so a
// damaged file can make it follow invalid pointers.
func Guard(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if x := recover(); x != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, x)
		}
	}()
	return do()
}

// Close closes the file. All writes are already on disk.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.db.Close()
}

// View runs a read transaction. The data that look reads is valid until look returns.
func (f *File) View(look func(tx *bolt.Tx) error) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.named(Guard(func() error { return f.db.View(look) }))
}

// Update runs a write transaction. When it returns nil, the change is on disk. After a failed
// write, the content of the disk is unknown, so the next Update reopens the file. Updates fail
// for as long as reopening fails.
func (f *File) Update(change func(tx *bolt.Tx) error) error {
	if err := f.reopen(); err != nil {
		return f.named(err)
	}
	f.mu.RLock()
	var refused error
	err := Guard(func() error {
		return f.db.Update(func(tx *bolt.Tx) error {
			refused = change(tx)
			return refused
		})
	})
	f.mu.RUnlock()
	if err != nil && refused == nil {
		f.mu.Lock()
		f.failed = err
		f.mu.Unlock()
	}
	return f.named(err)
}

// reopen reopens the file if the last write failed.
func (f *File) reopen() error {
	f.mu.RLock()
	failed := f.failed
	f.mu.RUnlock()
	if failed == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed == nil {
		return nil
	}
	if err := Guard(f.db.Close); err != nil {
		return err
	}
	db, err := OpenDB(f.path)
	if err != nil {
		return fmt.Errorf("reopen after a failed write (%w): %w", f.failed, err)
	}
	f.db, f.failed = db, nil
	return nil
}

func (f *File) named(err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(f.path), err)
	}
	return nil
}
