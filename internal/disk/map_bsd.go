//go:build unix && !linux

package disk

// useHugePages does nothing; only Linux supports the hint.
func useHugePages([]byte) {}
