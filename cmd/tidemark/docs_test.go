package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Every command line of the pages is one that the program takes.
func TestDocumentedCommandLines(t *testing.T) {
	lines := 0
	for _, page := range []string{"history.md", "dead-letters.md", "import.md", "runbook.md", "tracing.md"} {
		text, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^ {4,}(?:[A-Z]+='[^']*' )?tidemark ([^|#\n]*)`).FindAllStringSubmatch(string(text), -1) {
			lines++
			args := strings.Fields(regexp.MustCompile(`'[^']*'`).ReplaceAllString(m[1], "quoted"))
			cmd, rest, err := newRootCmd(&app{}).Find(args)
			if err == nil {
				err = cmd.ParseFlags(rest)
			}
			if err == nil {
				err = cmd.ValidateRequiredFlags()
			}
			if err == nil && cmd.Args != nil {
				err = cmd.Args(cmd, cmd.Flags().Args())
			}
			if err != nil || !cmd.Runnable() {
				t.Errorf("%s: tidemark %s: %v", page, m[1], err)
			}
		}
	}
	if lines < 15 {
		t.Errorf("%d command lines", lines)
	}
}
