package proc

import (
	"os/exec"
	"syscall"
)

// bind makes the system send onDeath to the child when this process ends.
func bind(cmd *exec.Cmd, onDeath syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = onDeath
}
