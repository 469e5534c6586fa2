//go:build !linux

package proc

import (
	"fmt"
	"runtime"
)

// UsageOf is not available on this system.
func UsageOf(int) (Usage, error) {
	return Usage{}, fmt.Errorf("cannot measure another process: %s has no /proc", runtime.GOOS)
}

// PeakMemory returns the memory that the Go runtime has obtained from the system, in
// bytes. The runtime rarely returns memory, so this is close to the peak.
func PeakMemory() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys)
}
