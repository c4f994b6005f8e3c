package gateload_test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/internal/gateload"
)

// beDevices makes the test's own program the other process.
const beDevices = "TIDEMARK_GATELOAD_DEVICES"

func TestMain(m *testing.M) {
	if addr := os.Getenv(beDevices); addr != "" {
		n, err := strconv.Atoi(os.Args[1])
		if err == nil {
			err = gateload.Devices(addr, n, os.Stdin, os.Stdout)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestEveryMessageReachesEveryDevice(t *testing.T) {
	cfg := gateload.Config{
		Connections: 20, Messages: 3, Size: 50,
		Usage: func() (float64, int64, error) { return 0, 0, nil },
		Devices: func(addr string, n int) *exec.Cmd {
			cmd := exec.CommandContext(t.Context(), os.Args[0], strconv.Itoa(n))
			cmd.Env = append(os.Environ(), beDevices+"="+addr)
			cmd.Stderr = os.Stderr
			return cmd
		},
	}
	r, err := gateload.Measure(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.Connections != 20 || len(r.Deliveries) != 2 {
		t.Fatalf("%+v, want 20 connections and two ways", r)
	}
	for _, d := range r.Deliveries {
		if d.Count != 60 {
			t.Errorf("to %s: %d deliveries, want 60", d.To, d.Count)
		}
	}
}

func TestFaultsAreToldTogether(t *testing.T) {
	_, err := gateload.Measure(t.Context(), gateload.Config{Size: -1})
	if err == nil {
		t.Fatal("want an error")
	}
	for _, want := range []string{"connections", "messages", "size", "Devices"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in: %v", want, err)
		}
	}
}
