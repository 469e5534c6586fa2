package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"loadstar/internal/disk"
)

type files struct{ dir string }

var _ Store = files{}

// Files stores each blob as a file in a folder, which it creates if necessary. Only the owner
// can read the folder; Files changes the permissions of an existing folder. It removes
// unfinished files that are older than an hour.
func Files(dir string) (Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("blob: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("blob: %w", err)
	}
	f := files{dir}
	if err := errors.Join(disk.SyncDir(filepath.Dir(dir)), f.sweep()); err != nil {
		return nil, fmt.Errorf("blob: %w", err)
	}
	return f, nil
}

// path returns the file of a blob. It spreads blobs over many folders, because some file
// systems are slow with large folders.
func (f files) path(hash string) string {
	return filepath.Join(f.dir, filepath.FromSlash(Name(hash)))
}

// Name returns the path of a blob's file in the folder of Files, with slashes.
func Name(hash string) string { return hash[:2] + "/" + hash[2:4] + "/" + hash }

func (f files) Put(ctx context.Context, data []byte) (string, error) {
	hash, err := hashOf(data)
	if err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := f.put(f.path(hash), data); err != nil {
		return "", fmt.Errorf("blob: keeping %s: %w", hash, err)
	}
	return hash, nil
}

func (f files) put(path string, data []byte) error {
	lower := filepath.Dir(path)
	upper := filepath.Dir(lower)
	if !holds(path, data) {
		if err := os.MkdirAll(lower, 0o700); err != nil {
			return err
		}
		err := disk.WritePrivate(path, func(w *os.File) error {
			_, err := w.Write(data)
			return err
		})
		if err != nil {
			return err
		}
	}
	// Sync the folders even if the file already existed, because the process that wrote the file
	// may not have synced them yet.
	return errors.Join(disk.SyncDir(lower), disk.SyncDir(upper), disk.SyncDir(f.dir))
}

// holds reports whether a file exists with exactly this content.
func holds(path string, data []byte) bool {
	info, err := os.Stat(path)
	if err != nil || info.Size() != int64(len(data)) {
		return false
	}
	before, err := os.ReadFile(path)
	return err == nil && bytes.Equal(before, data)
}

func (f files) Get(ctx context.Context, hash string) ([]byte, error) {
	if err := errors.Join(checkHash(hash), ctx.Err()); err != nil {
		return nil, err
	}
	path := f.path(hash)
	if info, err := os.Stat(path); err == nil && info.Size() > maxSize {
		return nil, fmt.Errorf("blob: %s %w: it has %d bytes", hash, ErrDamaged, info.Size())
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, hash)
	} else if err != nil {
		return nil, fmt.Errorf("blob: %w", err)
	}
	return verified(hash, data)
}

func (f files) Delete(ctx context.Context, hash string) error {
	if err := errors.Join(checkHash(hash), ctx.Err()); err != nil {
		return err
	}
	// After a power loss, the file may reappear, but it only takes up space.
	if err := os.Remove(f.path(hash)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("blob: %w", err)
	}
	return nil
}

// sweep removes the unfinished files of killed processes. It keeps recent files, which another
// process may be writing.
func (f files) sweep() error {
	left, err := filepath.Glob(filepath.Join(f.dir, "??", "??", ".*"))
	if err != nil {
		return err
	}
	for _, path := range left {
		info, err := os.Stat(path)
		if err == nil && time.Since(info.ModTime()) > time.Hour {
			err = os.Remove(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
