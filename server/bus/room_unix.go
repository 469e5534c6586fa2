//go:build unix

package bus

import "golang.org/x/sys/unix"

// hasRoom reports whether the file system of a folder has the given number of free bytes.
// It returns true if the free space cannot be measured. If the disk is then full, the write
// fails.
func hasRoom(dir string, bytes int64) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) != nil || int64(fs.Bavail)*int64(fs.Bsize) >= bytes
}
