//go:build programs

package stack_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
)

// addJS adds a device that runs examples/js in Node.
func (s *street) addJS(name string) {
	t := s.t.(*testing.T)
	t.Helper()
	program := []string{"node"}
	// Before version 22 the flag is needed; from some later one on it is unknown.
	if out, err := exec.CommandContext(t.Context(), "node", "--version").Output(); err != nil {
		t.Fatalf("node: %v", err)
	} else if strings.HasPrefix(string(out), "v20.") {
		program = append(program, "--experimental-websocket")
	}
	program = append(program, "../../../../examples/js/chat.js")
	file := filepath.Join(t.TempDir(), "state.jsonl")
	s.add(name, program, file, func() (lines []string, err error) {
		if b, err := os.ReadFile(file); err != nil || !bytes.HasSuffix(b, []byte("\n")) {
			return nil, fmt.Errorf("the file ends within a line (%w)", err)
		}
		out, err := exec.CommandContext(t.Context(), program[0], append(program[1:], "--user", "alice", "--file", file, "--dump")...).Output()
		if err != nil {
			return nil, err
		}
		var msgs []*tidemarkv1.Message
		for l := range bytes.Lines(out) {
			m := new(tidemarkv1.Message)
			if err := protojson.Unmarshal(l, m); err != nil {
				return nil, fmt.Errorf("%q: %w", l, err)
			}
			msgs = append(msgs, m)
		}
		return stateLines(msgs), nil
	})
}

// The same for a minute, and with a device in JavaScript.
func TestDevicesInGoAndJavaScriptEndComplete(t *testing.T) {
	s := newStreet(t)
	s.addGo("one", "two")
	s.addJS("three")
	end := time.Now().Add(time.Minute)
	s.live(rand.New(rand.NewPCG(3, 4)), func(int) bool { return time.Now().Before(end) })
	s.settled()
}
