package proc

import "time"

// CPURate calls f repeatedly for the duration d, and returns the number of calls per second of
// CPU time of the thread. The caller must have locked the goroutine to its thread. CPURate
// reads the clock only about a hundred times, because each reading is a system call.
func CPURate(d time.Duration, f func()) float64 {
	for range 3 {
		f()
	}
	start, calls, spent := ThreadTime(), 0, time.Duration(0)
	for burst := 1; spent < d; {
		for range burst {
			f()
		}
		calls += burst
		spent = ThreadTime() - start
		if spent < d/100 {
			burst *= 2
		}
	}
	return float64(calls) / spent.Seconds()
}
