package tidemark_test

import (
	"os"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/internal/config"
)

// The configuration table of the README is made from the code. To renew it:
// TIDEMARK_UPDATE_README=1 go test -run TestConfigurationTable .
func TestConfigurationTable(t *testing.T) {
	const begin, end = "<!-- config:begin -->\n", "<!-- config:end -->"
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), begin)
	table, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("README.md has no configuration table")
	}
	want := config.Table()
	if table == want {
		return
	}
	if os.Getenv("TIDEMARK_UPDATE_README") == "" {
		t.Fatal("the configuration table of README.md is not what the code says; see the comment of this test")
	}
	if err := os.WriteFile("README.md", []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
