//go:build unix

package containers

import (
	"os/exec"
	"syscall"
)

// inOwnGroup has a program start in a process group of its own.
func inOwnGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// endGroup ends the process group of a program, with everything that the program started in it.
func endGroup(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
