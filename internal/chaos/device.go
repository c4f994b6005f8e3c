//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tidemark-im/tidemark/internal/chaos/history"
)

// device is a client that stays connected to the gateway through everything
// ('tidemark watch'), and has to show every message of its user once, in order.
type device struct {
	user string
	last map[string]*atomic.Int64 // by conversation
	done chan error
	stop context.CancelFunc
}

// follow starts a device of a user of some conversations.
func (l *load) follow(ctx context.Context, user string, convs ...string) (*device, error) {
	c := l.c
	config := filepath.Join(c.dir, "device.yaml")
	log, err := os.Create(filepath.Join(c.dir, "device-"+user+".log"))
	if err := errors.Join(err, os.WriteFile(config, nil, 0o600)); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	cmd := exec.CommandContext(ctx, c.bin, "watch", "--user", user, "--newest", "0", "--output", "json", "--config", config,
		"--server", "http://"+c.ofRole("sync")[0].listen, "--gateway", "ws://"+c.ofRole("gateway")[0].listen)
	cmd.Env, cmd.Stderr = c.env, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		stop()
		return nil, errors.Join(fmt.Errorf("device of %s: %w", user, err), log.Close())
	}
	d := &device{user: user, last: map[string]*atomic.Int64{}, done: make(chan error, 1), stop: stop}
	for _, conv := range convs {
		d.last[conv] = &atomic.Int64{}
	}
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			d.shown(c, lines.Bytes())
		}
		err := errors.Join(lines.Err(), cmd.Wait(), log.Close())
		if ctx.Err() != nil {
			err = nil
		}
		d.done <- err
	}()
	return d, nil
}

func (d *device) shown(c *cluster, line []byte) {
	var m struct {
		messageJSON
		Conversation string `json:"conversation"`
	}
	op := history.Op{Kind: history.Follow, T0: c.hist.Now(), User: d.user}
	op.T1 = op.T0
	if err := json.Unmarshal(line, &m); err != nil {
		op.Err = fmt.Sprintf("%v: %q", err, line)
	} else {
		op.OK, op.Conversation, op.Seq, op.Text = true, m.Conversation, int64(m.Seq), m.Text
	}
	c.hist.Add(op)
	if at := d.last[m.Conversation]; at != nil {
		at.Store(int64(m.Seq))
	}
}

// caughtUp waits until the device has shown the last message of each of its
// conversations.
func (d *device) caughtUp(ctx context.Context, tops map[string]*atomic.Int64) error {
	for conv, last := range d.last {
		top := tops[conv].Load()
		if err := until(ctx, patience, func() bool { return last.Load() >= top }); err != nil {
			return fmt.Errorf("the device of %s stands at %d of %d in %s", d.user, last.Load(), top, conv)
		}
	}
	return nil
}

// end ends the device; that it ended before is an error.
func (d *device) end() error {
	select {
	case err := <-d.done:
		return fmt.Errorf("the device of %s ended by itself: %w", d.user, err)
	default:
	}
	d.stop()
	return <-d.done
}
