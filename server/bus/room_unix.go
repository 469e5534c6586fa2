//go:build unix

package bus

import "golang.org/x/sys/unix"

// hasRoom reports whether the file system of a folder has the given number of free bytes.
// If the file system cannot tell, assume that it has: a full disk fails the write.
func hasRoom(dir string, bytes int64) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) != nil || int64(fs.Bavail)*int64(fs.Bsize) >= bytes
}
