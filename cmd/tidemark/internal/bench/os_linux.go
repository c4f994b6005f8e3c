package bench

import (
	"os/exec"
	"strings"
	"syscall"

	"github.com/prometheus/procfs"
)

// watches: what a process takes of the processor and of memory is read from /proc.
const watches = true

// cpuModel gives what the processor calls itself, or nothing.
func cpuModel(fs procfs.FS) string {
	cpus, err := fs.CPUInfo()
	if err != nil || len(cpus) == 0 {
		return ""
	}
	return strings.TrimSpace(cpus[0].ModelName)
}

// endWithParent has a process told to stop when this one dies without having done
// so, as by kill -9: what is left would take part in everything that is measured
// afterwards.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
}
