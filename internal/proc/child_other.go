//go:build !linux

package proc

import (
	"os/exec"
	"syscall"
)

// bind does nothing, because these systems have no signal for the death of a parent. The child
// stays in the process group, so a terminal's interrupt ends both.
func bind(*exec.Cmd, syscall.Signal) {}
