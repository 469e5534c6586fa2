//go:build unix && !linux

package mmap

// useHugePages does nothing; only Linux supports the hint.
func useHugePages([]byte) {}
