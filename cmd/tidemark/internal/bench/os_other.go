//go:build !linux

package bench

import (
	"os/exec"

	"github.com/prometheus/procfs"
)

// watches: without /proc latencies are measured all the same, and what processes
// take is left out.
const watches = false

func cpuModel(procfs.FS) string { return "" }

// endWithParent needs Linux: elsewhere a process outlives a parent that was killed.
func endWithParent(*exec.Cmd) {}
