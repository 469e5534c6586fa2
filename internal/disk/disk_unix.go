//go:build unix && !linux

package disk

import "golang.org/x/sys/unix"

// Of describes the file system of a folder.
func Of(dir string) (Space, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return Space{}, err
	}
	return Space{Free: int64(s.Bavail) * int64(s.Bsize), Files: -1}, nil
}
