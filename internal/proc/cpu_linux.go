package proc

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ThreadTime returns the CPU time that the calling thread has used.
func ThreadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // every Linux system has this clock
	}
	return time.Duration(t.Nano())
}

// CPUTime returns the CPU time that this process has used.
func CPUTime() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
