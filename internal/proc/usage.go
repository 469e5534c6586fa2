package proc

import "time"

// Usage is the resource use of a process.
type Usage struct {
	CPU       time.Duration // total CPU time since the start
	RSS, Peak int64         // current and peak memory in bytes
}
