//go:build !unix

// Package mmap maps files and memory. On systems without memory maps, it reads the file
// and allocates the memory instead.
package mmap

import (
	"io"
	"os"
)

// File reads the first size bytes of a file.
func File(f *os.File, size int) ([]byte, error) {
	b := make([]byte, size)
	_, err := io.ReadFull(io.NewSectionReader(f, 0, int64(size)), b)
	return b, err
}

// Memory allocates zeroed memory.
func Memory(size int) ([]byte, error) { return make([]byte, size), nil }

// Unmap does nothing; the garbage collector frees the memory.
func Unmap([]byte) error { return nil }
