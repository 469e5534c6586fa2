package server

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"loadstar/server/blob"
	"loadstar/server/ledger"
)

// The files and folders in a backup. The bus is not included: a result that waits there is
// still on its agent's disk, and the agent resends it.
const (
	ledgerFile = "ledger.db"
	blobsDir   = "blobs"
	pkiDir     = "pki"
)

// Backup writes a backup of a server's folder as a tar file: a consistent snapshot of the
// ledger, the blobs that it refers to, and the certificate authority with its key. The
// server may be running.
func Backup(ctx context.Context, dir string, to io.Writer) error {
	l, err := openLedger(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // an error loses nothing, because the ledger was only read
	store, err := blob.Files(filepath.Join(dir, blobsDir))
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "loadstar-backup-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	// If a blob is deleted after the ledger's snapshot and before it is copied, take a new
	// snapshot.
	for range 10 {
		if err = snapshot(ctx, l, store, temp); !errors.Is(err, blob.ErrNotFound) {
			break
		}
	}
	if err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(temp, pkiDir), os.DirFS(filepath.Join(dir, pkiDir))); err != nil {
		return err
	}
	w := tar.NewWriter(to)
	if err := w.AddFS(os.DirFS(temp)); err != nil {
		return err
	}
	return w.Close()
}

func openLedger(ctx context.Context, dir string) (*ledger.Ledger, error) {
	path := filepath.Join(dir, ledgerFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s has no %s: back up PostgreSQL and S3 with their own tools", dir, ledgerFile)
	}
	return ledger.Open(ctx, "sqlite:"+path)
}

// snapshot copies the ledger and the blobs that it refers to.
func snapshot(ctx context.Context, l *ledger.Ledger, from blob.Store, to string) error {
	path := filepath.Join(to, ledgerFile)
	os.Remove(path)
	if err := l.Backup(ctx, path); err != nil {
		return err
	}
	copied, err := ledger.Open(ctx, "sqlite:"+path)
	if err != nil {
		return err
	}
	blobs, err := copied.Blobs(ctx)
	if err := errors.Join(err, copied.Close()); err != nil {
		return err
	}
	store, err := blob.Files(filepath.Join(to, blobsDir))
	if err != nil {
		return err
	}
	for _, hash := range blobs {
		b, err := from.Get(ctx, hash)
		if err != nil {
			return err
		}
		if _, err := store.Put(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// Restore creates a server's folder from a backup. The folder must not exist.
func Restore(ctx context.Context, from io.Reader, dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s already exists: restore a backup into a new folder", dir)
	}
	temp := dir + ".restoring"
	if err := os.RemoveAll(temp); err != nil {
		return err
	}
	if err := os.MkdirAll(temp, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(temp)
	if err != nil {
		return err
	}
	defer root.Close()
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = unpack(root, h, r)
		}
		if err != nil {
			return fmt.Errorf("not a complete backup: %w", err)
		}
	}
	l, err := openLedger(ctx, temp)
	if err != nil {
		return err
	}
	if err := l.Close(); err != nil {
		return err
	}
	return os.Rename(temp, dir)
}

func unpack(root *os.Root, h *tar.Header, r io.Reader) error {
	name := strings.TrimSuffix(h.Name, "/")
	if h.Typeflag == tar.TypeDir {
		return root.MkdirAll(name, 0o700)
	}
	if h.Typeflag != tar.TypeReg {
		return fmt.Errorf("%s in the backup is not a regular file", h.Name)
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, r); err != nil {
		f.Close()
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
