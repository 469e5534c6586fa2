package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ticksPerSecond is the unit of CPU time in /proc, which is the same on every Linux
// system.
const ticksPerSecond = 100

// UsageOf returns the usage of a running process.
func UsageOf(pid int) (u Usage, err error) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	stat, err := os.ReadFile(dir + "stat")
	if err != nil {
		return u, err
	}
	// The name in parentheses may contain spaces and parentheses.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return u, fmt.Errorf("%sstat: want at least 13 fields after the name, found %d", dir, len(fields))
	}
	for _, f := range fields[11:13] { // user and system mode
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return u, fmt.Errorf("%sstat: %w", dir, err)
		}
		u.CPU += time.Duration(n) * time.Second / ticksPerSecond
	}
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "VmRSS:":
			u.RSS = n << 10
		case "VmHWM:":
			u.Peak = n << 10
		}
	}
	return u, nil
}

// PeakMemory returns the peak memory use of this process in bytes.
func PeakMemory() int64 {
	var use syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &use) != nil {
		return 0
	}
	return int64(use.Maxrss) << 10
}
