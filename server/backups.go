package server

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"loadstar/internal/disk"
	"loadstar/server/examine"
	"loadstar/server/ledger"
	"loadstar/server/sqlstore"
)

// A backup in a folder is called loadstar-TIME.tar, so that sorting by name sorts by age.
const (
	backupPrefix, backupSuffix = "loadstar-", ".tar"
	backupTime                 = "20060102T150405Z"
)

// BackupInto writes a backup of a server's folder into a folder of backups, verifies it, and
// removes the oldest backups until keep are left. It copies the list of revocations, which a
// restore needs, to the same folder, and records the outcome in the server's folder. An
// incomplete backup never gets its final name, and BackupInto then removes no other backup.
func BackupInto(ctx context.Context, dir, into, revocations string, keep int, now time.Time) (b examine.Backup, err error) {
	if err := hasLedger(dir); err != nil {
		return b, err
	}
	b, err = backupInto(ctx, dir, into, revocations, keep, now)
	if err != nil {
		return b, errors.Join(err, examine.RecordBackup(dir, examine.Backup{Failed: err.Error(), FailedAt: now}))
	}
	return b, examine.RecordBackup(dir, b)
}

func backupInto(ctx context.Context, dir, into, revocations string, keep int, now time.Time) (b examine.Backup, err error) {
	if err := os.MkdirAll(into, 0o700); err != nil {
		return b, err
	}
	b = examine.Backup{At: now, File: filepath.Join(into, backupPrefix+now.UTC().Format(backupTime)+backupSuffix)}
	err = disk.WritePrivate(b.File, func(f *os.File) error {
		if err := Backup(ctx, dir, f); err != nil {
			return err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		info, err := f.Stat()
		if err != nil {
			return err
		}
		b.Bytes = info.Size()
		return VerifyBackup(ctx, f, into)
	})
	if err != nil {
		return b, err
	}
	revocations = cmp.Or(revocations, filepath.Join(dir, revocationsFile))
	_, list, _, err := readRevocations(revocations) // omits a line that the server is writing
	if err == nil {
		err = writeRevocations(into, list)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a server that never ran has no list
		return b, err
	}
	return b, removeOld(into, keep)
}

// removeOld removes the oldest backups until keep are left.
func removeOld(into string, keep int) error {
	all, err := filepath.Glob(filepath.Join(into, backupPrefix+"*"+backupSuffix))
	if err != nil {
		return err
	}
	slices.Sort(all)
	for _, old := range all[:max(0, len(all)-keep)] {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(old), backupPrefix), backupSuffix)
		if _, err := time.Parse(backupTime, name); err != nil {
			continue // not a file of BackupInto
		}
		if err := os.Remove(old); err != nil {
			return err
		}
	}
	return nil
}

// VerifyBackup reads a backup and checks that it can be restored. It checks the ledger's
// pages, the hashes of all blobs that the ledger refers to, and the certificate authority. It
// needs space for the ledger in the folder temp.
func VerifyBackup(ctx context.Context, from io.Reader, temp string) error {
	work, err := os.MkdirTemp(temp, ".verify.*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() // a remaining copy only takes up space
	copied := filepath.Join(work, ledgerFile)
	has, issuer := map[string]bool{}, false
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("not a complete backup: %w", err)
		}
		body := contentsOf(h, r)
		switch {
		case h.Name == ledgerFile:
			err = disk.WritePrivate(copied, func(f *os.File) error {
				_, err := io.Copy(f, body)
				return err
			})
		case strings.HasPrefix(h.Name, blobsDir+"/"):
			sum := sha256.New()
			if _, err = io.Copy(sum, body); err == nil {
				hash := hex.EncodeToString(sum.Sum(nil))
				if hash != path.Base(h.Name) {
					err = fmt.Errorf("%s in the backup is damaged: it has the hash %s", h.Name, hash)
				}
				has[hash] = true
			}
		case strings.HasPrefix(h.Name, pkiDir+"/"):
			issuer = true
			fallthrough
		default:
			_, err = io.Copy(io.Discard, body)
		}
		if err != nil {
			return err
		}
	}
	if !issuer {
		return errors.New("the backup has no certificate authority")
	}
	if err := sqlstore.VerifyFile(ctx, copied); err != nil {
		return fmt.Errorf("the ledger in the backup: %w", err)
	}
	hashes, err := ledger.BlobsOf(ctx, copied)
	if err != nil {
		return fmt.Errorf("the ledger in the backup: %w", err)
	}
	for _, hash := range hashes {
		if !has[hash] {
			return fmt.Errorf("the backup lacks the blob %s, to which its ledger refers", hash)
		}
	}
	return nil
}
