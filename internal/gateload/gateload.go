// Package gateload measures a gateway with many live WebSocket connections: the
// memory that one takes, and how many deliveries are made in a second, and in a
// second of processor time, to a crowd that everybody is in and to each user.
//
// The gateway runs in the calling process, on its in-process broker; the devices,
// which count what they get, run in another one, so that neither's memory nor
// time is taken for the other's. It is for benchmarks: it promises nothing, and a
// device that loses its connection is an error.
package gateload

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
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

// Config says what is measured.
type Config struct {
	// Connections are made, a user's each: 1..1000000, as far as the machine lets a
	// process have files.
	Connections int
	// Messages go to a crowd of everybody, and then to each user: at least 1.
	Messages int
	// Size is the bytes of a message's text: 1..65536.
	Size int
	// Devices gives the process that runs Devices for the gateway at an address.
	// Needed.
	Devices func(addr string, connections int) *exec.Cmd
	// Usage gives the processor time in seconds and the resident memory in bytes of
	// this process. Needed.
	Usage func() (cpu float64, memory int64, err error)
	// Progress is told what goes on. nil: nobody is.
	Progress func(what string, done, total int64)
}

// Report is what it came to.
type Report struct {
	Connections int     `json:"connections"`
	Size        int     `json:"size"`
	Connecting  float64 `json:"connecting_seconds"`
	// Memory of the gateway's process: for a connection, and resident before and
	// after they came, in bytes.
	PerConnection float64    `json:"bytes_per_connection"`
	Before        int64      `json:"resident_before"`
	After         int64      `json:"resident_after"`
	Deliveries    []Delivery `json:"deliveries"`
}

// Delivery is how fast messages went out.
type Delivery struct {
	To      string  `json:"to"`
	Count   int     `json:"deliveries"`
	Seconds float64 `json:"seconds"`
	// PerCPUSecond is how many the gateway made in a second of its processor time.
	PerCPUSecond float64 `json:"per_cpu_second"`
}

func (c *Config) fill() error {
	var errs []error
	if c.Connections < 1 || c.Connections > 1_000_000 {
		errs = append(errs, fmt.Errorf("connections must be within 1..1000000, are %d", c.Connections))
	}
	if c.Messages < 1 {
		errs = append(errs, fmt.Errorf("messages must be at least 1, are %d", c.Messages))
	}
	if c.Size < 1 || c.Size > 65536 {
		errs = append(errs, fmt.Errorf("size must be within 1..65536 bytes, is %d", c.Size))
	}
	if c.Devices == nil || c.Usage == nil {
		errs = append(errs, errors.New("gateload: Devices and Usage are needed"))
	}
	if c.Progress == nil {
		c.Progress = func(string, int64, int64) {}
	}
	return errors.Join(errs...)
}

// Measure runs a gateway in this process, and devices in another one.
func Measure(ctx context.Context, cfg Config) (_ *Report, err error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	g, err := gateway.New(gateway.Config{
		Authenticate: gateway.Trusting, Members: everybody{}, Crowds: everybody{}, Drain: time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 2)
	go func() { ended <- g.Run(run) }()
	srv := &http.Server{Handler: g.Handler(), ReadHeaderTimeout: time.Minute}
	go func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			ended <- err
			return
		}
		ended <- nil
	}()
	defer func() {
		cancel()
		err = errors.Join(err, srv.Close(), <-ended, <-ended)
	}()
	before, err := cfg.memory()
	if err != nil {
		return nil, err
	}
	d, err := startDevices(cfg.Devices(l.Addr().String(), cfg.Connections))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	began := time.Now()
	for _, what := range []string{"connected", "seated"} {
		if err := d.await(ctx, what, cfg.Connections, cfg.Progress); err != nil {
			return nil, err
		}
	}
	r := &Report{Connections: g.Connections(), Size: cfg.Size, Connecting: time.Since(began).Seconds(), Before: before}
	if r.After, err = cfg.memory(); err != nil {
		return nil, err
	}
	r.PerConnection = float64(r.After-before) / float64(cfg.Connections)
	everyone := make([]watermark.UserID, cfg.Connections)
	for i := range everyone {
		everyone[i] = user(i)
	}
	for _, x := range []struct {
		whom     string
		first    int
		delivery gateway.Delivery
	}{
		{"a crowd of all", 1, gateway.Delivery{Reach: gateway.ToCrowd}},
		{"each user", cfg.Messages + 1, gateway.Delivery{Users: everyone}},
	} {
		got, err := d.deliver(ctx, g, &cfg, x.first, x.delivery)
		if err != nil {
			return nil, fmt.Errorf("deliver to %s: %w", x.whom, err)
		}
		got.To = x.whom
		r.Deliveries = append(r.Deliveries, got)
	}
	return r, nil
}

// memory gives the resident memory of this process, without what the collector
// would give back.
func (c *Config) memory() (int64, error) {
	debug.FreeOSMemory()
	_, n, err := c.Usage()
	return n, err
}

func event(seq, size int) *tidemarkv1.PushEvent {
	return &tidemarkv1.PushEvent{Conversation: string(crowd), MaxSeq: int64(seq), Kind: &tidemarkv1.PushEvent_Message{Message: &tidemarkv1.Message{
		Conversation: string(crowd), Seq: int64(seq), Sender: "u0", ClientMessageId: strconv.Itoa(seq), Kind: "text",
		Body: &tidemarkv1.Message_Text{Text: strings.Repeat("x", size)},
	}}}
}

// others is the process of the devices.
type others struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startDevices(cmd *exec.Cmd) (*others, error) {
	d := &others{cmd: cmd}
	var err error
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	d.out = bufio.NewScanner(out)
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the devices: %w", err)
	}
	return d, nil
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

// patience is how long the devices may take for one step.
const patience = 2 * time.Minute

func (d *others) await(ctx context.Context, what string, n int, progress func(string, int64, int64)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		got, err := d.ask(what)
		if err != nil || got >= n {
			return err
		}
		progress(what, int64(got), int64(n))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d %s: %w", got, n, what, ctx.Err())
		}
	}
}

// deliver hands messages over one after the other and waits until all devices
// have all of them. What waits for a device is kept below its bound.
func (d *others) deliver(ctx context.Context, g *gateway.Gateway, cfg *Config, first int, to gateway.Delivery) (Delivery, error) {
	had, err := d.ask("received")
	if err != nil {
		return Delivery{}, err
	}
	used, _, err := cfg.Usage()
	if err != nil {
		return Delivery{}, err
	}
	began := time.Now()
	for seq := first; seq < first+cfg.Messages; seq++ {
		to.Event = event(seq, cfg.Size)
		if err := g.Deliver(ctx, []gateway.Delivery{to}); err != nil {
			return Delivery{}, err
		}
	}
	n := cfg.Connections * cfg.Messages
	if err := d.await(ctx, "received", had+n, cfg.Progress); err != nil {
		return Delivery{}, fmt.Errorf("%w, with %d connections left", err, g.Connections())
	}
	out := Delivery{Count: n, Seconds: time.Since(began).Seconds()}
	cpu, _, err := cfg.Usage()
	if cpu > used {
		out.PerCPUSecond = float64(n) / (cpu - used)
	}
	return out, err
}

func user(i int) watermark.UserID { return watermark.UserID("u" + strconv.Itoa(i)) }
