//go:build !amd64 && !arm64

package kernel

// native returns no sets, because this architecture has only the portable set.
func native() []*Set { return nil }
