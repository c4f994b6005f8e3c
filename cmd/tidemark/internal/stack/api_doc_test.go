package stack_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
)

const (
	apiDoc = "../../../../docs/api.md"
	// docAddress is where the page's service listens.
	docAddress = "127.0.0.1:8080"
)

// docExample is a command of the page and the answer that stands below it.
var docExample = regexp.MustCompile("(?s)```sh\n(.*?)```\n```json\n(.*?)```\n")

// Every line of docs/api.md does what the page says: it is run on a stack, from
// top to bottom, and answered so. With the build tag "programs" curl and grpcurl
// run them, otherwise the test sends what they would. To write what is answered
// into the page: TIDEMARK_UPDATE_README=1 go test -run TestTheAPIByExample ./cmd/tidemark/internal/stack
func TestTheAPIByExample(t *testing.T) {
	page, err := os.ReadFile(apiDoc)
	if err != nil {
		t.Fatal(err)
	}
	r := startAll(t, nil)
	ran := map[string]bool{}
	var known []string // words of the page and what they are in this run, in pairs
	run := docRunner(t, strings.TrimPrefix(r.roles[stack.Sync].stack.SyncURL(), "http://"))
	renewed := docExample.ReplaceAllFunc(page, func(block []byte) []byte {
		m := docExample.FindSubmatch(block)
		command, said := string(m[1]), m[2]
		program, _, _ := strings.Cut(command, " ")
		ran[program+" "+docMethod(command)] = true
		answer := run(strings.NewReplacer(known...).Replace(command))
		got, want := decoded(t, answer), any(nil)
		if len(said) > 0 {
			want = decoded(t, said)
		}
		known = append(known, mask(want, got)...)
		diff := cmp.Diff(want, got)
		if diff == "" {
			return block
		}
		if os.Getenv("TIDEMARK_UPDATE_README") == "" {
			t.Errorf("%s\nis not answered as the page says (-page +answer):\n%s", command, diff)
			return block
		}
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, bytes.TrimSpace(answer), "", "  "); err != nil {
			t.Fatal(err)
		}
		return fmt.Appendf(nil, "```sh\n%s```\n```json\n%s\n```\n", command, pretty.Bytes())
	})
	if !bytes.Equal(renewed, page) {
		if err := os.WriteFile(apiDoc, renewed, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	methods := tidemarkv1.File_tidemark_v1_sync_proto.Services().ByName("SyncService").Methods()
	for i := range methods.Len() {
		for _, program := range []string{"curl", "grpcurl"} {
			if !ran[program+" "+string(methods.Get(i).Name())] {
				t.Errorf("the page has no example of %s with %s", methods.Get(i).Name(), program)
			}
		}
	}
	if n := strings.Count(string(page), "```"); n != 4*len(docExample.FindAll(page, -1)) {
		t.Error("the page has blocks that are no pair of a command and its answer")
	}
}

// docMethod names the call that a command makes.
func docMethod(command string) string {
	m := regexp.MustCompile(`tidemark\.v1\.SyncService/(\w+)`).FindStringSubmatch(command)
	if m == nil {
		return ""
	}
	return m[1]
}

func decoded(t *testing.T, b []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%q is not JSON: %v", b, err)
	}
	return v
}

var (
	differs = regexp.MustCompile(`^(version|nextPageToken|\w*TimeMs)$`)
	madeUp  = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

// mask takes out of both what differs between two runs, where it is in both, and
// gives the pairs: what the page has, what was got.
func mask(want, got any) (pairs []string) {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return nil
		}
		for k := range w {
			a, inWant := w[k].(string)
			b, inGot := g[k].(string)
			if inWant && inGot && (differs.MatchString(k) || madeUp.MatchString(a) && madeUp.MatchString(b)) {
				pairs = append(pairs, a, b)
				w[k], g[k] = "masked", "masked"
			} else {
				pairs = append(pairs, mask(w[k], g[k])...)
			}
		}
	case []any:
		g, ok := got.([]any)
		for i := 0; ok && i < min(len(w), len(g)); i++ {
			pairs = append(pairs, mask(w[i], g[i])...)
		}
	}
	return pairs
}
