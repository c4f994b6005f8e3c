//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mutation is a build of tidemark without one safety.
type mutation struct {
	// edits replace a text that stands exactly once in a file.
	edits []edit
	// schedule aims at what the safety is for, where drawn faults seldom hit it.
	schedule string
	// rules are those that count as finding it; empty: all.
	rules []string
}

type edit struct{ file, old, new string }

// mutate gives the files that m changes, as they are afterwards.
func (m mutation) mutate(root string) (map[string]string, error) {
	out := map[string]string{}
	for _, e := range m.edits {
		text, ok := out[e.file]
		if !ok {
			b, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				return nil, err
			}
			text = string(b)
		}
		if n := strings.Count(text, e.old); n != 1 {
			return nil, fmt.Errorf("%s: what is to be replaced stands there %d times, not once: %q", e.file, n, e.old)
		}
		out[e.file] = strings.Replace(text, e.old, e.new, 1)
	}
	return out, nil
}

// overlay writes the mutated files and gives what 'go build -overlay' takes, or
// nothing without a mutation.
func (o options) overlay(root string) (string, error) {
	if o.mut == "" {
		return "", nil
	}
	dir := filepath.Join(o.dir, "mutated")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	files, err := mutations[o.mut].mutate(root)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for name, text := range files {
		file := filepath.Join(dir, strings.ReplaceAll(name, "/", "-"))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, name)] = file
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, text, 0o600)
}

// mutations are the safeties that the checker has to miss when they are gone.
// What each schedule does is said with it; all of them are also in the words of
// the faults, and can be run on a sound build with --schedule NAME.
var mutations = map[string]mutation{
	// Redis is believed whoever it was before. It is rolled back to an older
	// dump while no owner remembers how far it had got.
	"incarnation": {
		edits: []edit{{
			file: "seqalloc/keyspace/prelude.lua",
			old:  "if inc ~= tm_incarnation(given) then return 'incarnation' end",
			new:  "",
		}},
		schedule: `
5s dump redis 0s
10s kill toredis 3s
10s rollback redis 0s
18s failover redis 2s
19.5s kill toredis 2s
`,
	},
	// The owner lets Redis go back behind what it saw acknowledged. Redis is
	// rolled back by hand, so that only the owner can notice. Readers cannot, and
	// see the past for a moment also in a sound build: "stale", "fell" and "window"
	// count for nothing here.
	"floor": {
		edits: []edit{{file: "seqalloc/malloc.lua", old: "if max < FLOOR then return {'cold', 'floor'} end", new: ""}},
		schedule: `
6s copyback redis 3s
13s copyback redis 2s
`,
		rules: []string{"repaired", "changed", "doubled", "answer", "lost", "hole", "order", "invented"},
	},
	// Cold conversations are loaded from history alone, which is behind when
	// Redis is emptied.
	"tail": {
		edits: []edit{{file: "storage/truth/truth.go", old: "merge(s, tail[wants[i].Conversation], &wants[i])", new: "_ = tail\n\t\tmerge(s, nil, &wants[i])"}},
		schedule: `
5s kill tomongo 8s
9s flush redis 0s
11s flush redis 0s
`,
	},
	// Nothing is looked up before it gets a seq: neither a resend by a producer
	// nor Kafka's second delivery.
	"dedupe": {
		edits: []edit{{
			file: "seqalloc/malloc.lua",
			old:  "local function send(i, a, fresh)\n  local seq, same = known(a)",
			new:  "local function send(i, a, fresh)\n  local seq, same = nil, nil\n  fresh = true",
		}},
		schedule: `
6s kill toredis-1 1s
9s kill toredis-2 1s
`,
	},
	// What was written to a connection counts as appended. Connections swallow
	// what they are given for a while, and Redis, which still knows, is emptied.
	"acknowledgements": {
		edits: []edit{
			{file: "pipeline/client.go", old: "s.Producer.RequiredAcks = sarama.WaitForAll", new: "s.Producer.RequiredAcks = sarama.NoResponse"},
			{file: "pipeline/client.go", old: "s.Producer.Idempotent = true", new: "s.Producer.Idempotent = false"},
		},
		schedule: `
5s swallow kafka 3s
12s swallow kafka 2s
17s crash kafka 0s
`,
	},
	// Offsets are marked before the records are dealt with. Redis is away, so
	// that batches wait while their offsets are committed; then the owners die.
	"mark-after-durable": {
		edits: []edit{{
			file: "pipeline/runner.go",
			old:  "durable, err := r.stage.Handle(ctx, batch)",
			new:  "r.mark(batch[len(batch)-1].Offset + 1)\n\t\tdurable, err := r.stage.Handle(ctx, batch)",
		}},
		schedule: `
6s cut redis 5s
9.5s kill toredis 1s
`,
	},
}

// schedules are those that have a name of their own.
var schedules = map[string]string{
	// Two workers of each kind share the partitions, a third joins, and one is
	// killed under load.
	"processes": `
5s join toredis-3 20s
8s join tomongo-3 20s
10s kill toredis-1 3s
14s kill tomongo-2 3s
`,
}

// builtIn gives a schedule by its name, or that of the mutation that it aims at.
func builtIn(name string) (string, bool) {
	if text, ok := schedules[name]; ok {
		return text, true
	}
	m, ok := mutations[name]
	return m.schedule, ok
}
