package check

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A small program of this module stands for all: it is built as the image builds
// tidemark, and in seconds.
const small = "internal/mutate"

// imageBuild gives the arguments with which the image builds, up to the output.
func imageBuild(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../docker/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^RUN go (build .*) -ldflags "(.*)" -o /out/tidemark \./cmd/tidemark$`).FindSubmatch(text)
	if m == nil {
		t.Fatal("how the image builds is not found in the Dockerfile")
	}
	flags := strings.ReplaceAll(string(m[2]), "${VERSION}", "v1.2.3")
	return append(strings.Fields(string(m[1])), "-ldflags", flags)
}

// sum builds a copy of the program in a folder of its own and gives the hash of
// what comes out.
func sum(t *testing.T, args []string) string {
	t.Helper()
	dir := t.TempDir()
	files, err := filepath.Glob("../../" + small + "/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range append(files, "../../go.mod", "../../go.sum") {
		name, err := filepath.Rel("../..", from)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "program")
	cmd := exec.CommandContext(t.Context(), "go", append(args, "-o", out, "./"+small)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, text)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if trimmed := bytes.Contains([]byte(strings.Join(args, " ")), []byte("-trimpath")); trimmed && bytes.Contains(b, []byte(dir)) {
		t.Errorf("the program holds the folder it was built in, %s", dir)
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// TestBuildsAreReproducible: byte for byte, wherever the source stands. Without
// -trimpath they are not, so what is compared can differ.
func TestBuildsAreReproducible(t *testing.T) {
	args := imageBuild(t)
	if a, b := sum(t, args), sum(t, args); a != b {
		t.Errorf("two builds by %q have the hashes %s and %s", args, a, b)
	}
	var loose []string
	for _, a := range args {
		if a != "-trimpath" {
			loose = append(loose, a)
		}
	}
	if len(loose) == len(args) {
		t.Fatal("the image is not built with -trimpath")
	}
	if a, b := sum(t, loose), sum(t, loose); a == b {
		t.Error("without -trimpath they are the same too: this test sees nothing")
	}
}
