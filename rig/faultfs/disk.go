//go:build linux

// Package faultfs is a file system with the faults of real disks, for tests. It shows a
// folder at another path and can lose data that was not synced, like a machine that loses
// power. It can also be full, read-only or slow.
//
// The folder always has the content that programs see. The file system also stores what it
// needs to undo every change that was not synced. A power cut undoes some of these changes.
package faultfs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Disk is a file system. It is safe for concurrent use.
//
// A process must not map files of a disk that it serves itself. A page fault stops the thread
// until the disk answers, and the garbage collector waits for that thread. Tests therefore
// serve disks in a separate process; see Serve.
type Disk struct {
	at   string // path at which programs see it
	live string // folder with the files
	dead string // folder with deleted files whose deletion may be undone

	mu     sync.Mutex
	server *fuse.Server // nil while the disk is not mounted
	files  map[uint64]*unsynced
	names  []*change
	buried int // number of files that were ever moved to dead
	fault  Fault
	lost   Loss // the loss of the last cut
}

// Fault is the state of a disk. The zero value is a disk without faults.
type Fault struct {
	// Full limits further writes to Room bytes.
	Full bool  `json:"full,omitempty"`
	Room int64 `json:"room,omitempty"`
	// ReadOnly refuses all changes, as after a remount because of errors.
	ReadOnly bool `json:"read_only,omitempty"`
	// Slow is the duration of each write and each sync.
	Slow time.Duration `json:"slow,omitempty"`
}

// Loss describes what a power cut undid.
type Loss struct {
	Kind   string `json:"kind"`   // all, prefix or torn
	Strict bool   `json:"strict"` // only names in synced folders survived
	Writes int    `json:"writes"` // number of writes
	Names  int    `json:"names"`  // number of created, renamed and deleted files and folders
}

func (l Loss) String() string {
	order := "ordered"
	if l.Strict {
		order = "strict"
	}
	return fmt.Sprintf("%s, %s, lost %d writes and %d names", l.Kind, order, l.Writes, l.Names)
}

// Available returns an error if this machine cannot mount a disk.
func Available() error {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("this machine has no FUSE: %w", err)
	}
	return f.Close()
}

// New creates a disk with its files in one folder and mounts it at another. It creates both
// folders.
func New(folder, at string) (*Disk, error) {
	d := &Disk{at: at, live: filepath.Join(folder, "live"), dead: filepath.Join(folder, "dead"), files: map[uint64]*unsynced{}}
	for _, dir := range []string{d.live, d.dead, at} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	return d, d.Mount()
}

// Mount mounts the disk again after Unmount.
func (d *Disk) Mount() error {
	root := &node{disk: d}
	base := &fs.LoopbackRoot{Path: d.live, RootNode: root}
	var st syscall.Stat_t
	if err := syscall.Stat(d.live, &st); err != nil {
		return err
	}
	base.Dev = st.Dev
	root.RootData = base
	second := time.Second
	server, err := fs.Mount(d.at, root, &fs.Options{
		// Every change passes through this mount, so the kernel may cache names.
		EntryTimeout: &second, AttrTimeout: &second, NullPermissions: true,
		// PostgreSQL runs as a different user than the test.
		MountOptions: fuse.MountOptions{AllowOther: true, DirectMountStrict: true, FsName: "faultfs", Name: "faultfs", MaxWrite: 1 << 20, Options: []string{"default_permissions"}},
	})
	if err != nil {
		return fmt.Errorf("mount %s: %w", d.at, err)
	}
	d.mu.Lock()
	d.server = server
	d.mu.Unlock()
	return nil
}

// Unmount hides the files. It waits a few seconds for programs that still use them.
func (d *Disk) Unmount() error {
	d.mu.Lock()
	server := d.server
	d.server = nil
	d.mu.Unlock()
	if server == nil {
		return nil
	}
	err := server.Unmount()
	for end := time.Now().Add(5 * time.Second); errors.Is(err, syscall.EBUSY) && time.Now().Before(end); err = server.Unmount() {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("unmount %s: %w", d.at, err), unix.Unmount(d.at, unix.MNT_DETACH))
	}
	server.Wait()
	return nil
}

// Close unmounts the disk and discards the records for undoing changes.
func (d *Disk) Close() error {
	err := d.Unmount()
	d.Settle()
	return err
}

// Set replaces the disk's faults.
func (d *Disk) Set(f Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = f
}

// take reserves space for bytes. The caller must hold the lock.
func (d *Disk) take(bytes int64) syscall.Errno {
	if !d.fault.Full || bytes == 0 {
		return 0
	}
	if d.fault.Room < bytes {
		return syscall.ENOSPC
	}
	d.fault.Room -= bytes
	return 0
}

// Settle makes all changes durable, as the command sync does.
func (d *Disk) Settle() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for ino := range d.files {
		d.drop(ino)
	}
	for _, c := range d.names {
		d.forget(c)
	}
	d.names = nil
}

// Cut simulates a loss of power. All programs that use the disk must have ended. It undoes all
// changes that were not synced, only those after a random moment, or random pages. It undoes
// changes of names in the order of a journal, as in ext4 by default, or in every folder that
// was not synced. The seed decides between these kinds of loss.
func (d *Disk) Cut(seed uint64) (Loss, error) {
	if err := d.Unmount(); err != nil {
		return Loss{}, err
	}
	d.mu.Lock()
	rng := d.choose(seed)
	err := d.undoNames(rng)
	for ino, u := range d.files {
		err = errors.Join(err, d.undoWrites(u, rng))
		d.drop(ino)
	}
	lost := d.lost
	d.mu.Unlock()
	d.Settle()
	return lost, errors.Join(err, d.Mount())
}

// choose selects the kind of loss of a cut.
func (d *Disk) choose(seed uint64) *rand.Rand {
	rng := rand.New(rand.NewPCG(seed, 1))
	d.lost = Loss{Kind: []string{"all", "prefix", "torn"}[rng.IntN(3)], Strict: rng.IntN(2) == 0}
	return rng
}
