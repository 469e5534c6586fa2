// Package cputime measures CPU time, so that benchmarks do not depend on the load of the
// machine. On systems that do not report CPU time, it measures wall-clock time.
package cputime

import "time"

// Rate calls f repeatedly for the duration d and returns the number of calls per second of
// the thread's CPU time. The caller must have locked the goroutine to its thread. Rate
// reads the clock only about a hundred times, because each reading is a system call.
func Rate(d time.Duration, f func()) float64 {
	for range 3 {
		f()
	}
	start, calls, spent := Thread(), 0, time.Duration(0)
	for burst := 1; spent < d; {
		for range burst {
			f()
		}
		calls += burst
		spent = Thread() - start
		if spent < d/100 {
			burst *= 2
		}
	}
	return float64(calls) / spent.Seconds()
}
