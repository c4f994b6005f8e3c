//go:build unix

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// event is a fault: when it begins, what it is, whom it hits, and how long it
// lasts. It heals by itself.
type event struct {
	at     time.Duration
	fault  string
	target string
	d      time.Duration
}

func (e event) String() string {
	return strings.Join(strings.Fields(fmt.Sprintf("%8.2fs %-9s %-10s %s", e.at.Seconds(), e.fault, e.target, e.d.Round(10*time.Millisecond))), " ")
}

// The services that a fault may hit. Of each one fault is under way at a time;
// workers are many, and hit one by one.
const (
	onKafka   = "kafka"
	onRedis   = "redis"
	onHistory = "history"
)

// kindOfFault says what a fault may hit and how long it may last.
type kindOfFault struct {
	name     string
	targets  []string
	from, to time.Duration
	aimed    bool // is not drawn
}

// faults are all that the nemesis can do.
var faults = []kindOfFault{
	{name: "kill", targets: []string{"toredis-1", "toredis-2", "tomongo-1", "tomongo-2", "topush-1", "gateway-1", "sync-1", "sync-2", "toredis", "tomongo"}, from: 200 * time.Millisecond, to: 3 * time.Second},
	// Longer than the session's time-out of 10 s: others take over meanwhile.
	{name: "zombie", targets: []string{"toredis-1", "toredis-2", "tomongo-1", "tomongo-2"}, from: 11 * time.Second, to: 14 * time.Second},
	{name: "freeze", targets: []string{onRedis, onHistory, onKafka, "sync-1", "toredis-1", "tomongo-1"}, from: time.Second, to: 4 * time.Second},
	{name: "crash", targets: []string{onKafka, onRedis, onHistory}, from: 0, to: 4 * time.Second},
	{name: "stop", targets: []string{onKafka}, from: 0, to: 4 * time.Second},
	{name: "flush", targets: []string{onRedis}},
	{name: "dump", targets: []string{onRedis}, aimed: true},
	{name: "rollback", targets: []string{onRedis}, from: 2 * time.Second, to: 8 * time.Second},
	{name: "copyback", targets: []string{onRedis}, from: time.Second, to: 4 * time.Second, aimed: true},
	{name: "failover", targets: []string{onRedis}, from: 500 * time.Millisecond, to: 3 * time.Second},
	{name: "cut", targets: []string{onKafka, onRedis, onHistory}, from: 0, to: 4 * time.Second},
	{name: "swallow", targets: []string{onKafka, onRedis, onHistory}, from: 500 * time.Millisecond, to: 4 * time.Second},
	{name: "slow", targets: []string{onKafka, onRedis, onHistory}, from: 2 * time.Second, to: 6 * time.Second},
	{name: "trickle", targets: []string{onKafka, onRedis, onHistory}, from: 2 * time.Second, to: 5 * time.Second},
	// Somebody joins and leaves again: two rebalances.
	{name: "join", targets: []string{"toredis-3", "tomongo-3"}, from: 5 * time.Second, to: 12 * time.Second},
	{name: "leave", targets: []string{"toredis-2", "tomongo-2"}, from: 2 * time.Second, to: 8 * time.Second},
}

// isService tells a service from a worker.
func isService(target string) bool {
	return target == onKafka || target == onRedis || target == onHistory
}

// draw makes a schedule. All kinds come before one of them comes again, and
// faults overlap, but not on the same target.
func draw(seed uint64, total time.Duration, embedded bool) []event {
	rng := rand.New(rand.NewPCG(seed, 0x7469_6465))
	var out []event
	var deck []kindOfFault
	busy := map[string]time.Duration{}
	for at := 3 * time.Second; at < total-3*time.Second; at += 1500*time.Millisecond + rand2(rng, 2*time.Second) {
		if len(deck) == 0 {
			deck = slices.DeleteFunc(slices.Clone(faults), func(k kindOfFault) bool { return k.aimed })
			rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		k := deck[0]
		deck = deck[1:]
		e := event{at: at, fault: k.name, target: k.targets[rng.IntN(len(k.targets))], d: k.from + rand2(rng, k.to-k.from)}
		if embedded && e.target == onHistory {
			continue
		}
		at = max(at, busy[e.target])
		e.at = at
		// Services need time to come back.
		busy[e.target] = at + e.d + 3*time.Second
		if isService(e.target) {
			busy[e.target] += 2 * time.Second
		}
		out = append(out, e)
	}
	return slices.DeleteFunc(out, func(e event) bool { return e.at > total })
}

func rand2(rng *rand.Rand, below time.Duration) time.Duration {
	if below <= 0 {
		return 0
	}
	return time.Duration(rng.Int64N(int64(below))).Truncate(10 * time.Millisecond)
}

// parse reads a schedule: a line for each event, empty ones and those that begin
// with # aside.
func parse(r io.Reader) ([]event, error) {
	var out []event
	var errs []error
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		e, err := parseEvent(strings.Fields(line))
		if err != nil {
			errs = append(errs, fmt.Errorf("schedule: line %d: %w", n, err))
			continue
		}
		out = append(out, e)
	}
	slices.SortStableFunc(out, func(a, b event) int { return int(a.at - b.at) })
	return out, errors.Join(append(errs, lines.Err())...)
}

func parseEvent(words []string) (e event, err error) {
	if len(words) != 4 {
		return e, errors.New("want: time fault target duration")
	}
	e.fault, e.target = words[1], words[2]
	var errs [2]error
	e.at, errs[0] = time.ParseDuration(words[0])
	e.d, errs[1] = time.ParseDuration(words[3])
	if err := errors.Join(errs[:]...); err != nil {
		return e, err
	}
	i := slices.IndexFunc(faults, func(k kindOfFault) bool { return k.name == e.fault })
	if i < 0 {
		return e, fmt.Errorf("unknown fault %q", e.fault)
	}
	if isService(e.target) && !slices.Contains(faults[i].targets, e.target) {
		return e, fmt.Errorf("%s does not go with %s", e.fault, e.target)
	}
	return e, nil
}

// write writes a schedule as parse reads it.
func write(w io.Writer, events []event) error {
	for _, e := range events {
		if _, err := fmt.Fprintln(w, e); err != nil {
			return err
		}
	}
	return nil
}
