package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/bench"
	"github.com/tidemark-im/tidemark/internal/gateload"
)

// gatewayFlags are those of 'bench stage gateway'.
type gatewayFlags struct{ connections, messages int }

func (f *gatewayFlags) addFlags(cmd *cobra.Command) {
	cmd.Flags().IntVar(&f.connections, "connections", 1000, "gateway: live connections, of a user each")
	cmd.Flags().IntVar(&f.messages, "messages", 20, "gateway: messages to a crowd of all, and to each user")
}

// devicesName is the command by which the program is started once more, as the
// devices of a gateway that is measured.
const devicesName = "devices"

func newBenchDevicesCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   devicesName + " ADDRESS CONNECTIONS",
		Short: "Be the devices of a gateway that 'bench stage gateway' measures",
		Long: `Devices holds live connections to the gateway at ADDRESS and counts what arrives;
it answers questions on standard input until that ends. 'bench stage gateway'
starts it.`,
		Example: `  tidemark bench devices 127.0.0.1:8081 1000`,
		Hidden:  true,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil || n < 1 {
				return usagef("connections must be a number from 1 on, is %q", args[1])
			}
			return gateload.Devices(args[0], n, cmd.InOrStdin(), a.out)
		},
	}
}

func (a *app) benchGateway(ctx context.Context, f gatewayFlags, size int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	progress := newBenchBar(a.errOut)
	defer progress.finish()
	r, err := bench.RunGateway(ctx, gateload.Config{
		Connections: f.connections, Messages: f.messages, Size: size, Progress: progress.tell,
		Devices: func(addr string, n int) *exec.Cmd {
			cmd := exec.CommandContext(ctx, self, "bench", devicesName, addr, strconv.Itoa(n))
			cmd.Stderr = a.errOut
			return cmd
		},
	})
	if err != nil {
		return interrupted(ctx, err)
	}
	progress.finish()
	a.emit(r, func() {
		fmt.Fprintf(a.out, "gateway: %d connections in %.1f s, %.1f KiB each (%d MiB resident before, %d MiB after); %d cores, %s\n\n",
			r.Connections, r.Connecting, r.PerConnection/1024, r.Before>>20, r.After>>20, runtime.NumCPU(), runtime.Version())
		var rows [][]string
		for _, d := range r.Deliveries {
			rows = append(rows, []string{d.To, fmt.Sprint(d.Count), fmt.Sprintf("%.2f", d.Seconds), fmt.Sprintf("%.0f", float64(d.Count)/d.Seconds), fmt.Sprintf("%.0f", d.PerCPUSecond)})
		}
		a.table([]string{"TO", "DELIVERIES", "SECONDS", "A SECOND", "A SECOND OF ITS PROCESSOR TIME"}, rows)
	})
	return nil
}
