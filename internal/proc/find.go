package proc

import (
	"os"
	"strconv"
)

// Find returns the processes of this machine for which is returns true. It needs Linux.
func Find(is func(pid int) bool) (pids []int, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && is(pid) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
