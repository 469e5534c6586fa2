//go:build unix

package disk

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// MapFile maps the first size bytes of a file for reading. The mapping remains valid after
// the file is closed.
func MapFile(f *os.File, size int) ([]byte, error) {
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", f.Name(), err)
	}
	return b, nil
}

// MapMemory returns zeroed memory outside the Go heap, which the garbage collector does not
// scan. The system allocates a page when it is first used.
func MapMemory(size int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d MB of memory: %w", size>>20, err)
	}
	useHugePages(b)
	return b, nil
}

// Unmap releases a slice that MapFile or MapMemory returned. The slice must not be used
// afterwards.
func Unmap(b []byte) error { return unix.Munmap(b) }
