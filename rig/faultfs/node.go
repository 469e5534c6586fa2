//go:build linux

package faultfs

import (
	"context"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// node is a file or folder. It forwards every operation to the folder below and records
// changes.
type node struct {
	fs.LoopbackNode
	disk *Disk
}

func (n *node) WrapChild(context.Context, fs.InodeEmbedder) fs.InodeEmbedder {
	return &node{LoopbackNode: fs.LoopbackNode{RootData: n.RootData}, disk: n.disk}
}

func (n *node) child(name string) string { return filepath.Join(n.Path(n.Root()), name) }
func (n *node) ino() uint64              { return n.StableAttr().Ino }

// changing waits for as long as the disk is slow, locks the disk, and returns an error if
// the disk refuses a change that needs more bytes. The caller must unlock it.
func (n *node) changing(bytes int64) syscall.Errno {
	n.disk.mu.Lock()
	if slow := n.disk.fault.Slow; slow > 0 {
		n.disk.mu.Unlock()
		time.Sleep(slow)
		n.disk.mu.Lock()
	}
	if n.disk.fault.ReadOnly {
		return syscall.EROFS
	}
	return n.disk.take(bytes)
}

// newName is the space that a new file or folder needs.
const newName = page

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	errno := n.changing(newName)
	defer n.disk.mu.Unlock()
	if errno != 0 {
		return nil, nil, 0, errno
	}
	inode, h, more, errno := n.LoopbackNode.Create(ctx, name, readable(flags)|syscall.O_EXCL, mode, out)
	if errno != 0 {
		return nil, nil, 0, errno
	}
	n.disk.noteName(&change{kind: "create", path: n.child(name), ino: out.Ino, folders: [2]uint64{n.ino()}})
	return inode, wrap(inode.Operations().(*node), h), more, 0
}

// readable makes a file that is opened for writing also readable, because its old content must
// be recorded.
func readable(flags uint32) uint32 {
	if flags&syscall.O_ACCMODE == syscall.O_WRONLY {
		flags = flags&^syscall.O_ACCMODE | syscall.O_RDWR
	}
	return flags
}

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, more, errno := n.LoopbackNode.Open(ctx, readable(flags)&^syscall.O_TRUNC)
	if errno != 0 {
		return nil, 0, errno
	}
	f := wrap(n, h)
	if flags&syscall.O_TRUNC != 0 {
		errno = f.truncate(0)
	}
	return f, more, errno
}

func (n *node) Mknod(ctx context.Context, name string, mode, dev uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	c := &change{kind: "create"}
	return n.add(name, c, func() (*fs.Inode, syscall.Errno) {
		inode, errno := n.LoopbackNode.Mknod(ctx, name, mode, dev, out)
		c.ino = out.Ino
		return inode, errno
	})
}

func (n *node) Link(ctx context.Context, target fs.InodeEmbedder, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.add(name, &change{kind: "create"}, func() (*fs.Inode, syscall.Errno) { return n.LoopbackNode.Link(ctx, target, name, out) })
}

func (n *node) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.add(name, &change{kind: "create"}, func() (*fs.Inode, syscall.Errno) { return n.LoopbackNode.Symlink(ctx, target, name, out) })
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.add(name, &change{kind: "mkdir"}, func() (*fs.Inode, syscall.Errno) { return n.LoopbackNode.Mkdir(ctx, name, mode, out) })
}

// add creates an entry of the folder and records it.
func (n *node) add(name string, c *change, do func() (*fs.Inode, syscall.Errno)) (*fs.Inode, syscall.Errno) {
	errno := n.changing(newName)
	defer n.disk.mu.Unlock()
	if errno != 0 {
		return nil, errno
	}
	inode, errno := do()
	if errno == 0 {
		c.path, c.folders = n.child(name), [2]uint64{n.ino()}
		n.disk.noteName(c)
	}
	return inode, errno
}

func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno {
	errno := n.changing(0)
	defer n.disk.mu.Unlock()
	if errno != 0 {
		return errno
	}
	c := &change{kind: "rmdir", path: n.child(name), folders: [2]uint64{n.ino()}}
	if err := syscall.Lstat(filepath.Join(n.disk.live, c.path), &c.stat); err != nil {
		return fs.ToErrno(err)
	}
	if errno := n.LoopbackNode.Rmdir(ctx, name); errno != 0 {
		return errno
	}
	n.disk.noteName(c)
	return 0
}

func (n *node) Unlink(ctx context.Context, name string) (errno syscall.Errno) {
	errno = n.changing(0)
	defer n.disk.mu.Unlock()
	if errno != 0 {
		return errno
	}
	c := &change{kind: "unlink", path: n.child(name), folders: [2]uint64{n.ino()}}
	var err error
	if c.grave, err = n.disk.bury(c.path); err != nil {
		return fs.ToErrno(err)
	}
	var st syscall.Stat_t
	if syscall.Lstat(c.grave, &st) == nil {
		n.disk.fault.Room += st.Size
	}
	if errno := n.LoopbackNode.Unlink(ctx, name); errno != 0 {
		n.disk.forget(c)
		return errno
	}
	n.disk.noteName(c)
	return 0
}

func (n *node) Rename(ctx context.Context, name string, into fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	to, ok := into.(*node)
	if !ok || flags&unix.RENAME_EXCHANGE != 0 {
		return syscall.EINVAL
	}
	errno := n.changing(0)
	defer n.disk.mu.Unlock()
	if errno != 0 {
		return errno
	}
	c := &change{kind: "rename", path: n.child(name), to: to.child(newName), folders: [2]uint64{n.ino(), to.ino()}}
	var st syscall.Stat_t
	if syscall.Lstat(filepath.Join(n.disk.live, c.to), &st) == nil && st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		var err error
		if c.grave, err = n.disk.bury(c.to); err != nil {
			return fs.ToErrno(err)
		}
	}
	if errno := n.LoopbackNode.Rename(ctx, name, into, newName, flags); errno != 0 {
		n.disk.forget(c)
		return errno
	}
	n.disk.noteName(c)
	return 0
}

func (n *node) Setattr(ctx context.Context, h fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	f, _ := h.(*file)
	if size, ok := in.GetSize(); ok {
		if f == nil {
			opened, _, errno := n.Open(ctx, syscall.O_RDWR)
			if errno != 0 {
				return errno
			}
			f = opened.(*file)
			defer func() { _ = f.Release(ctx) }() // Release always succeeds
		}
		if errno := f.truncate(int64(size)); errno != 0 {
			return errno
		}
		if in.Valid &^= fuse.FATTR_SIZE; in.Valid&(fuse.FATTR_MODE|fuse.FATTR_UID|fuse.FATTR_GID|fuse.FATTR_MTIME|fuse.FATTR_ATIME) == 0 {
			return f.Getattr(ctx, out)
		}
	}
	errno := n.changing(0)
	defer n.disk.mu.Unlock()
	if errno != 0 {
		return errno
	}
	return n.LoopbackNode.Setattr(ctx, nil, in, out)
}

// CopyFileRange is refused, so that callers copy with reads and writes.
func (n *node) CopyFileRange(context.Context, fs.FileHandle, uint64, *fs.Inode, fs.FileHandle, uint64, uint64, uint64) (uint32, syscall.Errno) {
	return 0, syscall.ENOSYS
}

// Statfs reports that a full disk has no free blocks.
func (n *node) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	errno := n.LoopbackNode.Statfs(ctx, out)
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	if f := n.disk.fault; f.Full {
		out.Bavail = uint64(max(f.Room, 0)) / uint64(max(out.Bsize, 1))
		out.Bfree = out.Bavail
	}
	return errno
}

// Fsync makes a file or a folder durable.
func (n *node) Fsync(_ context.Context, _ fs.FileHandle, _ uint32) syscall.Errno {
	errno := n.changing(0)
	defer n.disk.mu.Unlock()
	if errno != 0 {
		return errno
	}
	if !n.IsDir() {
		n.disk.syncFile(n.ino())
		return 0
	}
	n.disk.syncNames(func(c *change) bool { return c.folders[0] == n.ino() || c.folders[1] == n.ino() })
	return 0
}

// entries are the methods of an open folder that are forwarded.
type entries interface {
	fs.FileReaddirenter
	fs.FileReleasedirer
	fs.FileSeekdirer
}

type folder struct {
	entries
	node *node
}

func (f folder) Fsyncdir(ctx context.Context, flags uint32) syscall.Errno {
	return f.node.Fsync(ctx, nil, flags)
}

func (n *node) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, more, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if errno != 0 {
		return nil, 0, errno
	}
	return folder{h.(entries), n}, more, 0
}

// file is an open file.
type file struct {
	fs.FileReader
	fs.FileGetattrer
	fs.FileReleaser
	fs.FileLseeker
	fd   int
	node *node
}

func wrap(n *node, h fs.FileHandle) *file {
	fd, _ := h.(fs.FilePassthroughFder).PassthroughFd() // a loopback file always has one
	return &file{h.(fs.FileReader), h.(fs.FileGetattrer), h.(fs.FileReleaser), h.(fs.FileLseeker), fd, n}
}

func (f *file) Flush(context.Context) syscall.Errno { return 0 }

func (f *file) Write(_ context.Context, data []byte, off int64) (n uint32, errno syscall.Errno) {
	errno = f.change(func(st *syscall.Stat_t) syscall.Errno {
		// A disk that becomes full writes as many bytes as fit.
		grow := max(off+int64(len(data))-st.Size, 0)
		if room := f.node.disk.fault.Room; f.node.disk.fault.Full && room > 0 && grow > room && grow-room < int64(len(data)) {
			data, grow = data[:int64(len(data))-(grow-room)], room
		}
		if errno := f.node.disk.take(grow); errno != 0 {
			return errno
		}
		if err := f.node.disk.noteWrite(f.fd, st, write{off: off, n: int64(len(data))}); err != nil {
			return fs.ToErrno(err)
		}
		k, err := unix.Pwrite(f.fd, data, off)
		n = uint32(max(k, 0))
		return fs.ToErrno(err)
	})
	return n, errno
}

// Allocate makes a file longer. Other kinds of allocation are refused, and callers work
// without them.
func (f *file) Allocate(_ context.Context, off, size uint64, mode uint32) syscall.Errno {
	if mode != 0 {
		return syscall.EOPNOTSUPP
	}
	end := int64(off + size)
	return f.change(func(st *syscall.Stat_t) syscall.Errno {
		if end <= st.Size {
			return 0
		}
		if errno := f.node.disk.take(end - st.Size); errno != 0 {
			return errno
		}
		return f.resize(st, end)
	})
}

// resize changes the file's length. The caller must hold the lock.
func (f *file) resize(st *syscall.Stat_t, size int64) syscall.Errno {
	// If the file becomes shorter, the change removes the bytes after its new end.
	if err := f.node.disk.noteWrite(f.fd, st, write{off: min(size, st.Size), n: max(st.Size, size) - min(st.Size, size)}); err != nil {
		return fs.ToErrno(err)
	}
	return fs.ToErrno(unix.Ftruncate(f.fd, size))
}

// truncate changes the file's length. A longer file gets a hole, which takes no space.
func (f *file) truncate(size int64) syscall.Errno {
	return f.change(func(st *syscall.Stat_t) syscall.Errno { return f.resize(st, size) })
}

// change carries out a change while the disk is locked.
func (f *file) change(do func(st *syscall.Stat_t) syscall.Errno) syscall.Errno {
	errno := f.node.changing(0)
	defer f.node.disk.mu.Unlock()
	if errno != 0 {
		return errno
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(f.fd, &st); err != nil {
		return fs.ToErrno(err)
	}
	return do(&st)
}
