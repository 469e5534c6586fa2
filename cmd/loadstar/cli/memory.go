package cli

import (
	"os"
	"runtime/debug"
)

// CollectOften lets the heap grow to 1.2 times the live heap before the next garbage
// collection. Go's default is 2 times. Training allocates little, so the additional garbage
// collections cost almost nothing.
func CollectOften() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(20)
	}
}
