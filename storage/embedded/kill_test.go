package embedded_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/tidemark-im/tidemark/storage/embedded"
	"github.com/tidemark-im/tidemark/watermark"
)

// childPath names the variable that makes the test binary a writer that is to
// be killed.
const childPath = "TIDEMARK_EMBEDDED_TEST_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(childPath); path != "" {
		fmt.Println(writeForEver(path))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// writeForEver writes one run after the other and says of each when it is
// acknowledged.
func writeForEver(path string) error {
	s, err := embedded.New(embedded.Config{Path: path})
	if err != nil {
		return err
	}
	for last := watermark.Seq(3); ; last += 3 {
		_, err := s.Write(context.Background(), watermark.Change{
			Rows:          rows(group, message(last-2, "a"), message(last-1, "b"), message(last, "c")),
			Members:       []watermark.MemberRow{{Conversation: group, Member: watermark.Member{User: "ann", Read: last}}},
			Conversations: []watermark.Conversation{{ID: group, Max: last}},
		})
		if err != nil {
			return err
		}
		fmt.Println(last)
	}
}

// TestKilledProcessLosesNothing kills a writer with SIGKILL in the middle of
// its work, three times over one file.
func TestKilledProcessLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "h.db")
	for _, n := range []int{100, 250, 400} { // the first writes of a round are replays
		acked := killed(t, path, n)
		s := openFile(t, path)
		states, err := s.States(t.Context(), []watermark.Want{{Conversation: group}})
		if err != nil {
			t.Fatal(err)
		}
		top := states[0].Max
		if top < acked || states[0].Members["ann"].Read != top {
			t.Errorf("max %d, read %d, acknowledged %d", top, states[0].Members["ann"].Read, acked)
		}
		want := watermark.Seq(1)
		for want <= top {
			ms, err := s.Messages(t.Context(), group, watermark.Interval{First: want, Last: watermark.MaxSeq}, 1000)
			if err != nil || len(ms) == 0 {
				t.Fatalf("row %d of %d is missing, %v", want, top, err)
			}
			for _, m := range ms {
				if m.Seq != want {
					t.Fatalf("row %d follows %d", m.Seq, want-1)
				}
				want++
			}
		}
		if want != top+1 {
			t.Errorf("rows up to %d, max %d", want-1, top)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// killed runs a writer until it has acknowledged n writes and kills it. It
// gives the last acknowledged seq.
func killed(t *testing.T, path string, n int) (acked watermark.Seq) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childPath+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		last, err := strconv.ParseInt(strings.TrimSpace(lines.Text()), 10, 64)
		if err != nil {
			// The last line may be cut; anything else is the writer's error.
			if n > 0 {
				t.Errorf("the writer says %q", lines.Text())
			}
			break
		}
		acked = watermark.Seq(last)
		if n--; n == 0 {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait() // it was killed: that is its error
	if n > 0 {
		t.Fatalf("the writer ended by itself, %d writes early", n)
	}
	return acked
}

// TestTwoOpenANewFile lets both find it empty.
func TestTwoOpenANewFile(t *testing.T) {
	for i := range 50 {
		path := filepath.Join(t.TempDir(), fmt.Sprint(i, ".db"))
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				s, err := embedded.New(embedded.Config{Path: path})
				if err != nil {
					t.Error(err)
					return
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}
