//go:build programs

package stack_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
)

// docRunner gives what runs a command of the page in a shell, with a service
// that listens at address.
func docRunner(t *testing.T, address string) func(command string) []byte {
	t.Helper()
	path := "PATH=" + filepath.Dir(grpcurl(t)) + string(os.PathListSeparator) + os.Getenv("PATH")
	return func(command string) []byte {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(command, docAddress, address))
		cmd.Env = append(os.Environ(), path)
		var complaints bytes.Buffer
		cmd.Stderr = &complaints
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s\n%v: %s", command, err, complaints.Bytes())
		}
		return out
	}
}

// grpcurl builds the program from the tools of this repository.
func grpcurl(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "grpcurl")
	out, err := exec.CommandContext(t.Context(), "go", "-C", "../../../../tools", "build", "-o", program, "github.com/fullstorydev/grpcurl/cmd/grpcurl").CombinedOutput()
	if err != nil {
		t.Fatalf("build grpcurl: %v\n%s", err, out)
	}
	return program
}

// What a person can find out without having a single file of ours.
func TestReflectionByGrpcurl(t *testing.T) {
	r := startAll(t, nil)
	program, address := grpcurl(t), strings.TrimPrefix(r.roles[stack.Sync].stack.SyncURL(), "http://")
	for _, x := range []struct {
		args []string
		want string
	}{
		{[]string{"list"}, "tidemark.v1.SyncService\n"},
		{[]string{"list", "tidemark.v1.SyncService"}, "tidemark.v1.SyncService.WhoHasRead\n"},
		{[]string{"describe", "tidemark.v1.PullRange"}, "int64 num = 4"},
	} {
		out, err := exec.CommandContext(t.Context(), program, append([]string{"-plaintext", address}, x.args...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), x.want) {
			t.Errorf("grpcurl %s: %v\n%s", strings.Join(x.args, " "), err, out)
		}
	}
}
