package proc

import "time"

// Usage is how much of the machine a process uses.
type Usage struct {
	CPU       time.Duration // since it started
	RSS, Peak int64         // memory in bytes, now and at most
}
