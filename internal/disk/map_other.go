//go:build !unix

package disk

import (
	"io"
	"os"
)

// MapFile reads the first size bytes of a file.
func MapFile(f *os.File, size int) ([]byte, error) {
	b := make([]byte, size)
	_, err := io.ReadFull(io.NewSectionReader(f, 0, int64(size)), b)
	return b, err
}

// MapMemory allocates zeroed memory.
func MapMemory(size int) ([]byte, error) { return make([]byte, size), nil }

// Unmap does nothing; the garbage collector frees the memory.
func Unmap([]byte) error { return nil }
