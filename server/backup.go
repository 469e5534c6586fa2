package server

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"loadstar/internal/disk"
	"loadstar/server/blob"
	"loadstar/server/directory"
	"loadstar/server/ledger"
	"loadstar/server/sqlstore"
)

// The files and folders in a backup. Results that are not counted yet stay on their agents'
// disks.
const (
	ledgerFile = "ledger.db"
	blobsDir   = "blobs"
	pkiDir     = "pki"
)

// Backup writes a backup of a server's folder as a tar file: a consistent snapshot of the
// ledger, the blobs that it refers to, and the certificate authority with its key. The server
// may be running, and may have another version, because Backup does not change the ledger.
func Backup(ctx context.Context, dir string, to io.Writer) error {
	if err := hasLedger(dir); err != nil {
		return err
	}
	l, err := sqlstore.OpenForBackup(ctx, filepath.Join(dir, ledgerFile))
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // the ledger was only read, so an error loses nothing
	store, err := blob.Files(filepath.Join(dir, blobsDir))
	if err != nil {
		return err
	}
	temp, unlock, err := snapshotDir(dir)
	if err != nil {
		return err
	}
	defer unlock()
	b := &backup{Writer: tar.NewWriter(to), written: map[string]bool{}}
	// If a blob is deleted after the ledger's snapshot was taken but before the blob was
	// copied, take a new snapshot. Write the snapshot last, after all its blobs.
	path := filepath.Join(temp, ledgerFile)
	for range 10 {
		if err = os.RemoveAll(path); err == nil {
			err = l.Backup(ctx, path)
		}
		if err == nil {
			err = b.addBlobs(ctx, path, store)
		}
		if !errors.Is(err, blob.ErrNotFound) {
			break
		}
	}
	if err != nil {
		return err
	}
	if err := b.addFile(ledgerFile, path); err != nil {
		return err
	}
	if err := b.addFolder(pkiDir, filepath.Join(dir, pkiDir)); err != nil {
		return err
	}
	return b.Close()
}

// snapshotDir creates a folder for the ledger's snapshot in the server's folder. Only its owner
// can read it. snapshotDir also removes the files of a killed backup. Only one backup can run
// at a time.
func snapshotDir(dir string) (temp string, done func(), err error) {
	temp = filepath.Join(dir, "backup")
	lock, err := os.OpenFile(filepath.Join(dir, "backup.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", nil, err
	}
	if err := disk.TryLock(lock); err != nil {
		_ = lock.Close() // nothing was written to it
		return "", nil, fmt.Errorf("another backup of %s is running; wait for it", dir)
	}
	done = func() {
		_ = os.RemoveAll(temp) // the next backup tries again
		_ = lock.Close()       // nothing was written to it
	}
	if err := os.RemoveAll(temp); err != nil {
		done()
		return "", nil, err
	}
	if err := os.Mkdir(temp, 0o700); err != nil {
		done()
		return "", nil, err
	}
	return temp, done, nil
}

// backup is a tar file that is being written. Only the owner can read the files in it.
type backup struct {
	*tar.Writer
	written map[string]bool // blobs
}

// sumRecord is the name of the PAX record with the SHA-256 of a file. The record is needed
// because a ledger's own checksums do not cover all its bytes.
const sumRecord = "LOADSTAR.sha256"

func (b *backup) add(name string, size int64, modified time.Time, data io.ReadSeeker) error {
	sum := sha256.New()
	if _, err := io.CopyN(sum, data, size); err != nil {
		return err
	}
	if _, err := data.Seek(0, io.SeekStart); err != nil {
		return err
	}
	records := map[string]string{sumRecord: hex.EncodeToString(sum.Sum(nil))}
	if err := b.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: modified, PAXRecords: records}); err != nil {
		return err
	}
	_, err := io.CopyN(b, data, size)
	return err
}

// contents reads a file in a backup. At the end of the file, it returns an error if the content
// has changed.
type contents struct {
	*tar.Header
	from io.Reader
	sum  hash.Hash
}

func contentsOf(h *tar.Header, from io.Reader) *contents { return &contents{h, from, sha256.New()} }

func (c *contents) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.sum.Write(p[:n])
	if want := c.PAXRecords[sumRecord]; err == io.EOF && want != "" && want != hex.EncodeToString(c.sum.Sum(nil)) {
		err = fmt.Errorf("%s in the backup is damaged: its SHA-256 is not %s", c.Name, want)
	}
	return n, err
}

func (b *backup) addFile(name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return b.add(name, info.Size(), info.ModTime(), f)
}

// addFolder adds the regular files of a folder.
func (b *backup) addFolder(name, dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		inside, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return b.addFile(name+"/"+filepath.ToSlash(inside), path)
	})
}

// addBlobs adds the blobs of a ledger's snapshot that are not in the backup yet.
func (b *backup) addBlobs(ctx context.Context, snapshot string, from blob.Store) error {
	hashes, err := ledger.BlobsOf(ctx, snapshot)
	if err != nil {
		return err
	}
	for _, hash := range hashes {
		if b.written[hash] {
			continue
		}
		data, err := from.Get(ctx, hash)
		if err != nil {
			return err
		}
		if err := b.add(blobsDir+"/"+blob.Name(hash), int64(len(data)), time.Now(), bytes.NewReader(data)); err != nil {
			return err
		}
		b.written[hash] = true
	}
	return nil
}

func hasLedger(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, ledgerFile)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s has no %s: back up PostgreSQL and S3 with their own tools", dir, ledgerFile)
	}
	return nil
}

// Restored describes the changes that a restore has made to the ledger.
type Restored struct {
	// Revocations is the number of later revocations that were repeated. Tokens is the
	// number of join tokens that were revoked, because their uses since the backup are
	// unknown.
	Revocations, Tokens int
}

// Restore creates a server's folder from a backup. The folder must not exist. revocations is
// the path of the original server's list of revocations. Without it, revocations after the
// backup are lost.
func Restore(ctx context.Context, from io.Reader, dir, revocations string) (done Restored, err error) {
	var revoked []directory.Event
	var list []byte
	if revocations != "" {
		var torn []byte
		if revoked, list, torn, err = readRevocations(revocations); err != nil {
			return done, err
		}
		if len(torn) > 0 {
			return done, fmt.Errorf("%s: the last line is cut off, so the newest revocation would be undone; note what it names, remove the line, restore, and revoke it again", revocations)
		}
	}
	return done, restore(ctx, from, dir, func(temp string, l *ledger.Ledger) (err error) {
		if done.Revocations, err = l.Directory.Reapply(ctx, revoked, time.Now()); err != nil {
			return err
		}
		if done.Tokens, err = l.Directory.RevokeTokens(ctx, "restore", time.Now()); err != nil || revocations == "" {
			return err
		}
		return writeRevocations(temp, list)
	})
}

func restore(ctx context.Context, from io.Reader, dir string, then func(temp string, l *ledger.Ledger) error) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s already exists; restore a backup into a new folder", dir)
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
			err = unpack(root, h, contentsOf(h, r))
		}
		if err != nil {
			return fmt.Errorf("not a complete backup: %w", err)
		}
	}
	if err := hasLedger(temp); err != nil {
		return err
	}
	if err := sqlstore.VerifyFile(ctx, filepath.Join(temp, ledgerFile)); err != nil {
		return fmt.Errorf("the backup is damaged, use an older one: %w", err)
	}
	l, err := ledger.Open(ctx, "sqlite:"+filepath.Join(temp, ledgerFile))
	if err != nil {
		return err
	}
	if err := errors.Join(then(temp, l), l.Close()); err != nil {
		return err
	}
	if err := syncFolders(temp); err != nil {
		return err
	}
	if err := os.Rename(temp, dir); err != nil {
		return err
	}
	return disk.SyncDir(filepath.Dir(dir))
}

// syncFolders makes the names in a folder and in the folders below it durable. The files are
// synced when they are written.
func syncFolders(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return disk.SyncDir(path)
	})
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
