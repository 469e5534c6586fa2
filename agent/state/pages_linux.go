package state

import "syscall"

// dropPages releases the memory of mapped pages. The system reads them from the file again
// when they are needed.
func dropPages(b []byte) {
	_ = syscall.Madvise(b, syscall.MADV_DONTNEED) // only a hint
}
