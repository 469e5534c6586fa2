package proc

import (
	"os/exec"
	"syscall"
)

// bind makes the child end with this process.
func bind(cmd *exec.Cmd, onDeath syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = onDeath
}
