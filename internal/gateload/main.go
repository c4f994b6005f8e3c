// Command gateload measures a gateway with many live WebSocket connections:
//
//	go run ./internal/gateload -connections 10000
//
// One process is the gateway, on its in-process broker; another one, started by
// it, is the devices, which count what they get. It prints the memory that a
// connection takes in the gateway's process, and how many deliveries the gateway
// makes in a second, and in a second of processor time, to a crowd that everybody
// is in and to each user.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/gateway"
	"github.com/tidemark-im/tidemark/watermark"
)

const crowd = watermark.ConversationID("group:all")

// everybody is in the crowd.
type everybody struct{}

func (everybody) Members(_ context.Context, _ watermark.ConversationID, users []watermark.UserID) (map[watermark.UserID]watermark.Member, bool, error) {
	out := make(map[watermark.UserID]watermark.Member, len(users))
	for _, u := range users {
		out[u] = watermark.Member{User: u, Version: 1, LastMembership: 1, Memberships: []watermark.Membership{{Number: 1}}}
	}
	return out, false, nil
}

func (everybody) Crowds(_ context.Context, users []watermark.UserID) ([][]watermark.ConversationID, error) {
	out := make([][]watermark.ConversationID, len(users))
	for i := range out {
		out[i] = []watermark.ConversationID{crowd}
	}
	return out, nil
}

func main() {
	devices := flag.String("devices", "", "be the devices of the gateway at this address")
	n := flag.Int("connections", 10_000, "connections")
	size := flag.Int("bytes", 200, "bytes of a message's text")
	messages := flag.Int("messages", 50, "messages to the crowd, and to each user")
	flag.Parse()
	run := func() error { return measure(*n, *messages, *size) }
	if *devices != "" {
		run = func() error { return beDevices(*devices, *n) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gateload:", err)
		os.Exit(1)
	}
}

func measure(n, messages, size int) (err error) {
	g, err := gateway.New(gateway.Config{
		Authenticate: gateway.Trusting, Members: everybody{}, Crowds: everybody{}, Drain: time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		cancel()
		return errors.Join(err, <-ended)
	}
	srv := &http.Server{Handler: g.Handler(), ReadHeaderTimeout: time.Minute}
	go func() { _ = srv.Serve(l) }() // until it is closed
	defer func() {
		cancel()
		err = errors.Join(err, <-ended, srv.Close())
	}()
	before := memory()
	d, err := startDevices(l.Addr().String(), n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	began := time.Now()
	if err := d.await("connected", n); err != nil {
		return err
	}
	if err := d.await("seated", n); err != nil {
		return err
	}
	fmt.Printf("%s, %d processors, %d connections in %.1f s\n", runtime.Version(), runtime.NumCPU(), g.Connections(), time.Since(began).Seconds())
	fmt.Printf("memory of the gateway: %.1f KiB a connection (resident set %d MiB before, %d MiB after)\n",
		float64(memory()-before)/float64(n)/1024, before>>20, memory()>>20)
	event := func(seq int) *tidemarkv1.PushEvent {
		return &tidemarkv1.PushEvent{Conversation: string(crowd), MaxSeq: int64(seq), Kind: &tidemarkv1.PushEvent_Message{Message: &tidemarkv1.Message{
			Conversation: string(crowd), Seq: int64(seq), Sender: "u0", ClientMessageId: strconv.Itoa(seq), Kind: "text",
			Body: &tidemarkv1.Message_Text{Text: strings.Repeat("x", size)},
		}}}
	}
	everyone := make([]watermark.UserID, n)
	for i := range everyone {
		everyone[i] = user(i)
	}
	if err := d.deliver(g, "a crowd of all", n, messages, func(seq int) gateway.Delivery {
		return gateway.Delivery{Reach: gateway.ToCrowd, Event: event(seq)}
	}); err != nil {
		return err
	}
	return d.deliver(g, "each user", n, messages, func(seq int) gateway.Delivery {
		return gateway.Delivery{Users: everyone, Event: event(messages + seq)}
	})
}

// memory gives the resident set of this process, without what the collector
// would give back.
func memory() int {
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	pages, _ := strconv.Atoi(strings.Fields(string(b))[1])
	return pages * os.Getpagesize()
}

// processor gives the processor time of this process.
func processor() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// others is the process of the devices.
type others struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startDevices(addr string, n int) (*others, error) {
	d := &others{cmd: exec.Command(os.Args[0], "-devices", addr, "-connections", strconv.Itoa(n))}
	d.cmd.Stderr = os.Stderr
	var err error
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	d.out = bufio.NewScanner(out)
	return d, d.cmd.Start()
}

func (d *others) stop() error {
	if err := d.in.Close(); err != nil {
		return err
	}
	return d.cmd.Wait()
}

// ask asks for one of the devices' counters.
func (d *others) ask(what string) (int, error) {
	if _, err := fmt.Fprintln(d.in, what); err != nil {
		return 0, err
	}
	if !d.out.Scan() {
		return 0, errors.Join(errors.New("the devices have ended"), d.out.Err())
	}
	return strconv.Atoi(d.out.Text())
}

func (d *others) await(what string, n int) error {
	for until := time.Now().Add(2 * time.Minute); ; {
		got, err := d.ask(what)
		if err != nil || got >= n {
			return err
		}
		if time.Now().After(until) {
			return fmt.Errorf("%d of %d %s after two minutes", got, n, what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// deliver hands messages over one after the other and waits until all devices
// have all of them. What waits for a device is kept below its bound.
func (d *others) deliver(g *gateway.Gateway, whom string, n, messages int, delivery func(seq int) gateway.Delivery) error {
	had, err := d.ask("received")
	if err != nil {
		return err
	}
	began, used := time.Now(), processor()
	for seq := 1; seq <= messages; seq++ {
		if err := g.Deliver(context.Background(), []gateway.Delivery{delivery(seq)}); err != nil {
			return err
		}
	}
	if err := d.await("received", had+n*messages); err != nil {
		return fmt.Errorf("%w, with %d connections left", err, g.Connections())
	}
	took, cpu := time.Since(began), processor()-used
	fmt.Printf("to %s: %d deliveries in %.2f s, %.0f/s; %.0f in a second of the gateway's processor time\n",
		whom, n*messages, took.Seconds(), float64(n*messages)/took.Seconds(), float64(n*messages)/cpu.Seconds())
	return nil
}

func user(i int) watermark.UserID { return watermark.UserID("u" + strconv.Itoa(i)) }
