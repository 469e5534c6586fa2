package disk

import "golang.org/x/sys/unix"

// kinds contains the names of file systems by their numbers in statfs(2).
var kinds = map[int64]string{
	unix.NFS_SUPER_MAGIC: "nfs", unix.SMB_SUPER_MAGIC: "smb", unix.SMB2_SUPER_MAGIC: "smb", unix.CIFS_SUPER_MAGIC: "cifs",
	unix.AFS_SUPER_MAGIC: "afs", unix.CEPH_SUPER_MAGIC: "ceph", unix.V9FS_MAGIC: "9p", unix.FUSE_SUPER_MAGIC: "fuse",
	unix.TMPFS_MAGIC: "tmpfs", unix.RAMFS_MAGIC: "ramfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay",
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.F2FS_SUPER_MAGIC: "f2fs", 0x2fc12fc1: "zfs",
}

// Of describes the file system of a folder.
func Of(dir string) (Space, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return Space{}, err
	}
	files := int64(s.Ffree)
	if s.Files == 0 { // such as btrfs, which has no limit
		files = -1
	}
	return Space{Free: int64(s.Bavail) * int64(s.Bsize), Files: files, ReadOnly: s.Flags&unix.ST_RDONLY != 0, Kind: kinds[int64(uint32(s.Type))]}, nil
}
