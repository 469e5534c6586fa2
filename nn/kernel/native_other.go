//go:build !amd64 && !arm64

package kernel

// native returns no set: the portable one is all there is here.
func native() []*Set { return nil }
