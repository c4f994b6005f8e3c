package webhook_test

import (
	"os"
	"strings"
	"testing"
)

// The receiver that the documentation shows is the one that the example runs.
func TestTheDocumentedReceiverIsTheExample(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/offline-push.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(doc), "```go\n")
	shown, _, ok2 := strings.Cut(rest, "```")
	if !ok || !ok2 {
		t.Fatal("docs/offline-push.md shows no receiver")
	}
	code, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var plain strings.Builder
	for line := range strings.Lines(string(code)) {
		plain.WriteString(strings.TrimPrefix(line, "\t"))
	}
	if !strings.Contains(plain.String(), shown) {
		t.Errorf("docs/offline-push.md shows another receiver than ExampleVerifier:\n%s", shown)
	}
}
