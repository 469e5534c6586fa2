// Package disk writes files that are complete or absent even after a crash, locks them against
// other processes, and maps them into memory. It also reports the free space and the kind of a
// file system, and whether a server can keep its data there.
package disk

import (
	"fmt"
	"os"
	"path/filepath"

	"loadstar/internal/finding"
)

// Space describes the file system of a folder.
type Space struct {
	Free     int64  // bytes that this user can still write
	Files    int64  // files that can still be created; -1 if there is no limit or it is not known
	ReadOnly bool   // nothing can be written
	Kind     string // name such as ext4 or nfs; empty if it is not known
}

// Thresholds for findings.
const (
	warnFree, failFree   = 2 << 30, 200 << 20
	warnFiles, failFiles = 10_000, 500
)

// Room checks the free space of a folder's disk, and whether the disk is writable.
func Room(l *finding.List, check, dir string) {
	s, err := Of(dir)
	const more = "delete what is not needed, or use another disk"
	text := fmt.Sprintf("%.1f GB free for %s", float64(s.Free)/1e9, dir)
	files := fmt.Sprintf("only %d more files can be made in %s", s.Files, dir)
	switch {
	case err != nil:
		l.Warn(check, "check the disk", "cannot determine the free space for %s: %v", dir, err)
	case s.ReadOnly:
		l.Fail(check, "look for errors of the disk in the kernel's log (dmesg), replace the disk or mount it for writing again", "%s is mounted read-only", dir)
	case s.Free < failFree:
		l.Fail(check, more, "%s", text)
	case s.Files >= 0 && s.Files < failFiles:
		l.Fail(check, "delete small files that are not needed, or use another disk", "%s", files)
	case s.Free < warnFree:
		l.Warn(check, more, "%s", text)
	case s.Files >= 0 && s.Files < warnFiles:
		l.Warn(check, "delete small files that are not needed, or use another disk", "%s", files)
	default:
		l.OK(check, "%s", text)
	}
}

// Writable creates and removes a file in a folder. It is needed because [Space] contains only
// the mount flag of the file system.
func Writable(l *finding.List, check, dir string) {
	f, err := os.CreateTemp(dir, ".probe.*")
	if err == nil {
		_, err = f.WriteString("probe")
		if err == nil {
			err = f.Sync()
		}
		_ = f.Close() // the file was synced, or an error is reported
		if gone := os.Remove(f.Name()); err == nil {
			err = gone
		}
	}
	if err != nil {
		l.Fail(check, "check the disk and the rights of "+dir, "cannot write: %v", err)
		return
	}
	l.OK(check, "a file was written to %s, synced and removed", filepath.Clean(dir))
}

// The kinds of file systems on which data is less durable than the server promises.
var (
	remote = map[string]bool{"nfs": true, "smb": true, "cifs": true, "afs": true, "ceph": true, "9p": true}
	memory = map[string]bool{"tmpfs": true, "ramfs": true}
)

// Kind checks whether the file system of a folder keeps data that a server has synced.
// strict is set for a database, whose locks and shared memory need a local file system.
func Kind(l *finding.List, check, dir string, strict bool) {
	s, err := Of(dir)
	kind(l, check, dir, s, err, strict)
}

func kind(l *finding.List, check, dir string, s Space, err error, strict bool) {
	switch {
	case err != nil:
		l.Warn(check, "check the disk", "cannot determine the kind of file system of %s: %v", dir, err)
	case remote[s.Kind] && strict:
		l.Fail(check, "use a folder on a local disk, or PostgreSQL (--database)", "%s is on the network file system %s, whose locks SQLite cannot trust: two processes can damage the ledger", dir, s.Kind)
	case remote[s.Kind]:
		l.Warn(check, "use a folder on a local disk, or an S3 store (--blobs)", "%s is on the network file system %s, so synced data can be lost if its server fails", dir, s.Kind)
	case s.Kind == "fuse":
		l.Warn(check, "use a folder on a local disk, unless you know that this one syncs", "%s is on a FUSE file system; whether a sync reaches a disk depends on the program behind it", dir)
	case memory[s.Kind]:
		l.Warn(check, "use a folder on a disk", "%s is in memory (%s), so a restart of the machine loses everything", dir, s.Kind)
	case s.Kind == "overlay":
		l.Warn(check, "mount a volume there", "%s is in the file system of a container (overlay) and ends with the container", dir)
	case s.Kind == "":
		l.OK(check, "%s is on a local file system", dir)
	default:
		l.OK(check, "%s is on %s", dir, s.Kind)
	}
}
