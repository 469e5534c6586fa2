// Package cputime measures CPU time, so that benchmarks do not depend on how busy the
// machine is. Where the system does not report CPU time, it measures wall-clock time.
package cputime

import "time"

// Rate returns how many calls of f the thread makes in a second of its CPU time, measured
// over d. The caller must have locked the goroutine to its thread. Rate reads the clock
// about a hundred times in all, since that costs a system call.
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
