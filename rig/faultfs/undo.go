//go:build linux

package faultfs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	page = 4096
	// A kernel eventually writes unsynced data to disk. Up to mostBytes of a file and mostNames
	// of a disk can be undone. Older changes become durable.
	mostBytes = 32 << 20
	mostNames = 2000
)

// unsynced contains the changes of a file's content since its last sync.
type unsynced struct {
	fd     int // keeps the file open, even if it is deleted
	writes []write
	bytes  int
}

// write is a change of a file's content.
type write struct {
	off  int64
	n    int64  // number of bytes that were written
	old  []byte // content before; shorter than n if the file grew
	size int64  // the file's size before
}

// change is a created, renamed or deleted name.
type change struct {
	kind     string // create, mkdir, unlink, rmdir, rename
	path, to string // relative to the root; to is only for rename
	ino      uint64 // inode of a created file
	folders  [2]uint64
	grave    string // path of the deleted or replaced file
	stat     syscall.Stat_t
	// ordered means that the change is in the journal, and strict that its folder was synced.
	ordered, strict bool
}

// touches reports whether the change affects a name.
func (c *change) touches(path string) bool {
	return c.path == path || c.kind == "rename" && c.to == path
}

// noteWrite records a change of a file before it is carried out. The caller must hold the
// lock.
func (d *Disk) noteWrite(fd int, st *syscall.Stat_t, w write) error {
	u := d.files[st.Ino]
	if u == nil {
		own, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		u = &unsynced{fd: own}
		d.files[st.Ino] = u
	}
	w.size = st.Size
	if end := min(w.off+w.n, st.Size); end > w.off {
		w.old = make([]byte, end-w.off)
		if _, err := unix.Pread(fd, w.old, w.off); err != nil {
			return err
		}
	}
	u.writes, u.bytes = append(u.writes, w), u.bytes+len(w.old)+64
	for u.bytes > mostBytes {
		u.bytes -= len(u.writes[0].old) + 64
		u.writes = u.writes[1:]
	}
	return nil
}

// drop makes the content of a file durable. The caller must hold the lock.
func (d *Disk) drop(ino uint64) {
	if u := d.files[ino]; u != nil {
		_ = unix.Close(u.fd) // nothing is buffered
		delete(d.files, ino)
	}
}

// undoWrites undoes writes of a file. The caller must hold the lock.
func (d *Disk) undoWrites(u *unsynced, rng *rand.Rand) error {
	keep := 0
	var now []piece
	switch d.lost.Kind {
	case "prefix":
		keep = rng.IntN(len(u.writes) + 1)
	case "torn":
		var err error
		if now, err = u.pages(); err != nil {
			return err
		}
	}
	for _, w := range slices.Backward(u.writes[keep:]) {
		if err := unix.Ftruncate(u.fd, w.size); err != nil {
			return err
		}
		if len(w.old) == 0 {
			continue
		}
		if _, err := unix.Pwrite(u.fd, w.old, w.off); err != nil {
			return err
		}
	}
	d.lost.Writes += len(u.writes) - keep
	for _, p := range now {
		if rng.IntN(2) == 0 {
			continue
		}
		if _, err := unix.Pwrite(u.fd, p.data, p.off); err != nil {
			return err
		}
	}
	return nil
}

// piece is the content of a page.
type piece struct {
	off  int64
	data []byte
}

// pages returns the current content of all pages that were written.
func (u *unsynced) pages() (all []piece, err error) {
	seen := map[int64]bool{}
	for _, w := range u.writes {
		for off := w.off / page * page; off < w.off+w.n; off += page {
			if seen[off] {
				continue
			}
			seen[off] = true
			data := make([]byte, page)
			n, err := unix.Pread(u.fd, data, off)
			if err != nil {
				return nil, err
			}
			if n > 0 {
				all = append(all, piece{off, data[:n]})
			}
		}
	}
	return all, nil
}

// bury keeps a file that will be deleted or replaced. The caller must hold the lock.
func (d *Disk) bury(path string) (grave string, err error) {
	d.buried++
	grave = filepath.Join(d.dead, fmt.Sprint(d.buried))
	return grave, os.Link(filepath.Join(d.live, path), grave)
}

// noteName records a change of names after it was carried out. The caller must hold the lock.
func (d *Disk) noteName(c *change) {
	d.names = append(d.names, c)
	if len(d.names) > mostNames {
		for _, c := range d.names[:mostNames/2] {
			d.forget(c)
		}
		d.names = slices.Clone(d.names[mostNames/2:])
	}
}

// forget makes a change of names durable. The caller must hold the lock.
func (d *Disk) forget(c *change) {
	if c.grave == "" {
		return
	}
	var st syscall.Stat_t
	if syscall.Lstat(c.grave, &st) == nil && st.Nlink == 1 {
		d.drop(st.Ino) // after a cut, the content is not reachable
	}
	os.Remove(c.grave)
}

// syncNames makes names durable. On a journaled disk, these are all names. On a strict disk,
// they are only the matching names. The caller must hold the lock.
func (d *Disk) syncNames(match func(*change) bool) {
	d.names = slices.DeleteFunc(d.names, func(c *change) bool {
		c.ordered = true
		if c.strict = c.strict || match(c); c.strict {
			d.forget(c)
		}
		return c.strict
	})
}

// syncFile makes a file's content and its first name durable. The caller must hold the lock.
func (d *Disk) syncFile(ino uint64) {
	d.drop(ino)
	name := ""
	for _, c := range d.names {
		if c.kind == "create" && c.ino == ino {
			name = c.path
		}
	}
	d.syncNames(func(c *change) bool { return name != "" && c.touches(name) })
}

// undoNames undoes changes of names, starting with the newest. The caller must hold the lock.
func (d *Disk) undoNames(rng *rand.Rand) error {
	var open []*change
	for _, c := range d.names {
		if !c.ordered || d.lost.Strict && !c.strict {
			open = append(open, c)
		}
	}
	keep := 0
	if d.lost.Kind != "all" {
		keep = rng.IntN(len(open) + 1)
	}
	for _, c := range slices.Backward(open[keep:]) {
		d.lost.Names++
		err := d.undo(c)
		// Without a journal, a folder or name that a change needs may no longer exist, or may
		// be in use again.
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) {
			continue
		}
		if err != nil {
			return fmt.Errorf("undo %s %s: %w", c.kind, c.path, err)
		}
	}
	return nil
}

func (d *Disk) undo(c *change) error {
	path := filepath.Join(d.live, c.path)
	switch c.kind {
	case "create":
		return os.Remove(path)
	case "mkdir":
		return os.RemoveAll(path)
	case "unlink":
		return os.Link(c.grave, path)
	case "rmdir":
		if err := os.Mkdir(path, os.FileMode(c.stat.Mode&0o777)); err != nil {
			return err
		}
		return os.Chown(path, int(c.stat.Uid), int(c.stat.Gid))
	}
	to := filepath.Join(d.live, c.to)
	if err := unix.Renameat2(unix.AT_FDCWD, to, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE); err != nil {
		return err
	}
	if c.grave == "" {
		return nil
	}
	return os.Link(c.grave, to)
}
