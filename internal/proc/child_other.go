//go:build !linux

package proc

import (
	"os/exec"
	"syscall"
)

// bind does nothing, because these systems do not support a signal for the death of a parent.
// The child stays in the process group, so a terminal's interrupt ends both.
func bind(*exec.Cmd, syscall.Signal) {}
