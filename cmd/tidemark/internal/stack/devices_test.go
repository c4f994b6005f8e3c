package stack_test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/client/sqlite"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
)

// phone is a device of alice's in a process of its own: one of the example
// programs, which are killed at random and started again on the same file.
type phone struct {
	t     *testing.T
	name  string
	args  []string                 // of the program
	state func() ([]string, error) // what its file has, by conversation and seq

	cmd   *exec.Cmd // nil: it does not run
	stdin io.WriteCloser
	read  sync.WaitGroup

	mu     sync.Mutex
	heard  map[string]bool // "conversation seq" of what it printed
	queued map[string]bool // ids that it said are safe
	sent   int             // of those, how many it said got their seq
	last   []string        // what it said last, for a failure
}

func (p *phone) start() {
	p.t.Helper()
	cmd := exec.Command(p.args[0], p.args[1:]...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.cmd, p.stdin = cmd, stdin
	p.read.Go(func() { p.listen(stderr, "! ") })
	p.read.Go(func() { p.listen(stdout, "") })
}

// listen notes whole lines: a process may be killed within one.
func (p *phone) listen(from io.Reader, mark string) {
	for r := bufio.NewReader(from); ; {
		said, err := r.ReadString('\n')
		if err != nil {
			return
		}
		p.note(mark + strings.TrimSuffix(said, "\n"))
	}
}

func (p *phone) note(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last = append(p.last, line); len(p.last) > 30 {
		p.last = p.last[1:]
	}
	switch f := strings.Split(line, "\t"); f[0] {
	case "queued":
		p.queued[f[1]] = true
	case "sent":
		p.sent++
	case "message":
		p.heard[f[1]+" "+f[2]] = true
	}
}

// kill ends the process without a word; stop asks it to end.
func (p *phone) kill() { p.end(syscall.SIGKILL) }

func (p *phone) stop() {
	p.t.Helper()
	if err := p.end(syscall.SIGTERM); err != nil {
		p.t.Errorf("%s: %v\n%s", p.name, err, strings.Join(p.last, "\n"))
	}
}

func (p *phone) end(s os.Signal) error {
	if p.cmd == nil {
		return nil
	}
	_ = p.cmd.Process.Signal(s) // it may have ended
	p.read.Wait()
	err := p.cmd.Wait()
	p.cmd = nil
	return err
}

// say types a message; a process that ends meanwhile does not hear it. Where
// much waits already nothing is typed: one that is killed all the time would
// never be done.
func (p *phone) say(conv, text string) {
	p.mu.Lock()
	waiting := len(p.queued) - p.sent
	p.mu.Unlock()
	if p.cmd != nil && waiting < 10 {
		fmt.Fprintf(p.stdin, "%s %s\n", conv, text)
	}
}

// progress tells one moment from another in which the device got further.
func (p *phone) progress() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.heard) + len(p.queued) + p.sent
}

// cable passes connections on to a port, and cuts them when it is told to.
type cable struct {
	ln net.Listener
	wg sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

func newCable(t *testing.T, to string) *cable {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &cable{ln: ln}
	l.wg.Go(func() {
		for {
			a, err := ln.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				a.Close()
				continue
			}
			l.mu.Lock()
			l.conns = append(l.conns, a, b)
			l.mu.Unlock()
			for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
				l.wg.Go(func() {
					_, _ = io.Copy(way[0], way[1])
					way[0].Close()
					way[1].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		ln.Close()
		l.cut()
		l.wg.Wait()
	})
	return l
}

func (l *cable) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.Close()
	}
	l.conns = nil
}

func hostOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// street is a stack with alice's devices, whose connections go over cables that
// can be cut.
type street struct {
	*rig
	phones        []*phone
	sync, gateway *cable
}

func newStreet(t *testing.T) *street {
	t.Helper()
	r := startAll(t, nil)
	return &street{
		rig: r, sync: newCable(t, hostOf(t, r.roles[stack.Sync].stack.SyncURL())),
		gateway: newCable(t, hostOf(t, r.roles[stack.ToPush].stack.GatewayURL())),
	}
}

func (s *street) add(name string, program []string, file string, state func() ([]string, error)) {
	t := s.t.(*testing.T)
	p := &phone{
		t: t, name: name, state: state, heard: map[string]bool{}, queued: map[string]bool{},
		args: append(program, "--user", "alice", "--device", name, "--file", file,
			"--server", "http://"+s.sync.ln.Addr().String(), "--gateway", "ws://"+s.gateway.ln.Addr().String()+"/connection/websocket"),
	}
	t.Cleanup(p.kill)
	s.phones = append(s.phones, p)
}

// addGo adds devices that run examples/chat.
func (s *street) addGo(names ...string) {
	t := s.t.(*testing.T)
	t.Helper()
	program := filepath.Join(t.TempDir(), "chat")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/tidemark-im/tidemark/examples/chat").CombinedOutput(); err != nil {
		t.Fatalf("build examples/chat: %v\n%s", err, out)
	}
	for _, name := range names {
		file := filepath.Join(t.TempDir(), "state.db")
		s.add(name, []string{program}, file, func() (lines []string, err error) {
			store, err := sqlite.New(sqlite.Config{Path: file, User: "alice"})
			if err != nil {
				return nil, err
			}
			defer store.Close()
			for _, conv := range streetConversations {
				msgs, err := store.Messages(t.Context(), conv, 0, 1_000_000)
				if err != nil {
					return nil, err
				}
				lines = append(lines, stateLines(msgs)...)
			}
			waiting, err := store.Waiting(t.Context())
			if len(waiting) > 0 {
				lines = append(lines, fmt.Sprint(len(waiting), " wait"))
			}
			return lines, err
		})
	}
}

// In group:open alice only writes; group:later she joins, is kicked from and
// joins again meanwhile.
var streetConversations = []string{"group:all", "group:later", "group:open", "single:alice:bob"}

func stateLines(msgs []*tidemarkv1.Message) []string {
	lines := make([]string, len(msgs))
	for i, m := range msgs {
		lines[i] = fmt.Sprintf("%s %d %s %s %q", m.GetConversation(), m.GetSeq(), m.GetSender(), m.GetClientMessageId(), m.GetText())
	}
	return lines
}

// live lets alice's devices die and lose their connections at random, while bob
// and they write, for as long as more says.
func (s *street) live(rnd *rand.Rand, more func(step int) bool) {
	s.t.Helper()
	s.join("group:all", "alice", tidemarkv1.History_HISTORY_ALL)
	typed := 0
	for step := 0; more(step); step++ {
		p := s.phones[rnd.IntN(len(s.phones))]
		switch rnd.IntN(10) {
		case 0, 1:
			p.kill()
		case 2:
			s.gateway.cut()
		case 3:
			s.sync.cut()
		case 4:
			if step%20 == 0 {
				s.flush()
			}
		case 5:
			switch typed % 3 {
			case 0:
				s.join("group:later", "alice", tidemarkv1.History_HISTORY_NONE)
			case 2:
				s.leave("group:later", "alice")
			}
		}
		for _, p := range s.phones {
			if p.cmd == nil && rnd.IntN(4) == 0 {
				p.start()
			}
			if rnd.IntN(3) == 0 {
				typed++
				p.say([]string{"group:all", "group:open", "single:alice:bob"}[rnd.IntN(3)], fmt.Sprint("typed ", typed, " on ", p.name))
			}
		}
		conv := []string{"group:all", "group:later", "single:alice:bob"}[rnd.IntN(3)]
		var lines []string
		for i := range rnd.IntN(30) {
			lines = append(lines, line(conv, "bob", fmt.Sprint("b", step, "-", i), fmt.Sprint("text ", i, " of step ", step)))
		}
		s.produce(conv, lines...)
		s.send(conv, "bob", fmt.Sprint("b", step))
	}
}

// settled waits until all that the devices took stands on the server, and all
// that stands there has reached every device, and compares every last message.
func (s *street) settled() {
	s.t.Helper()
	for _, p := range s.phones {
		if p.cmd == nil {
			p.start()
		}
	}
	for _, conv := range []string{"group:all", "group:open", "single:alice:bob"} {
		s.send(conv, "bob", "last")
	}
	want := s.complete()
	total := 0
	for _, p := range s.phones {
		p.stop()
		got, err := p.state()
		if err != nil {
			s.t.Fatalf("%s: %v", p.name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			s.t.Errorf("%s has not what the server has (-server +device):\n%.4000s", p.name, diff)
		}
		total += len(p.queued)
		if len(p.queued) == 0 || p.sent == 0 {
			s.t.Errorf("%s sent nothing", p.name)
		}
	}
	s.t.Logf("%d messages, %d of them from %d devices", len(want), total, len(s.phones))
}

// complete gives what the server has when the devices have it too. It gives up
// when they have not got further for as long as anything may take.
func (s *street) complete() []string {
	s.t.Helper()
	last, since := 0, time.Now()
	for {
		want, missing := s.missing()
		if missing == nil {
			return want
		}
		now := 0
		for _, p := range s.phones {
			now += p.progress()
		}
		if now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) > patience {
			s.t.Fatalf("the devices are not complete: %v", missing)
		}
		<-time.After(100 * time.Millisecond) // each look reads all there is
	}
}

func (s *street) missing() (want []string, missing error) {
	s.t.Helper()
	ids, top := map[string]int{}, map[string]bool{}
	for _, conv := range streetConversations {
		msgs := s.pullAll("alice", conv, 1, 1<<40)
		want = append(want, stateLines(msgs)...)
		for _, m := range msgs {
			ids[m.GetClientMessageId()]++
		}
		if len(msgs) > 0 {
			top[fmt.Sprint(conv, " ", msgs[len(msgs)-1].GetSeq())] = true
		}
	}
	for _, p := range s.phones {
		if err := p.misses(ids, top); err != nil {
			return nil, err
		}
	}
	return want, nil
}

// misses tells what is not as it is in the end: every message that the device
// took stands once, and it has the last message of every conversation.
func (p *phone) misses(ids map[string]int, top map[string]bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.queued {
		if ids[id] != 1 {
			return fmt.Errorf("%s: %s stands %d times\n%s", p.name, id, ids[id], strings.Join(p.last, "\n"))
		}
	}
	for t := range top {
		if !p.heard[t] {
			return fmt.Errorf("%s has not got %s\n%s", p.name, t, strings.Join(p.last, "\n"))
		}
	}
	return nil
}

// However often its devices are killed and cut off, and whatever they write
// meanwhile, a user's devices end with the same messages, all of them, in order.
func TestDevicesThatAreKilledEndComplete(t *testing.T) {
	s := newStreet(t)
	s.addGo("one", "two")
	s.live(rand.New(rand.NewPCG(1, 2)), func(step int) bool { return step < 40 })
	s.settled()
}
