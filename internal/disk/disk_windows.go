package disk

import "golang.org/x/sys/windows"

// Of describes the file system of a folder.
func Of(dir string) (Space, error) {
	path, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return Space{}, err
	}
	var free uint64
	err = windows.GetDiskFreeSpaceEx(path, &free, nil, nil)
	return Space{Free: int64(min(free, 1<<62)), Files: -1}, err
}
