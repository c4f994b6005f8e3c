package tidemark_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	load "golang.org/x/tools/go/packages"
)

// TestEverythingCompilesElsewhere type-checks the program and its tests for systems
// that the gate does not run on: whoever writes a client or a producer may sit at
// one of them. Types alone take seconds where compiling all that is imported for
// another system takes minutes, so bodies of functions of others are left out.
func TestEverythingCompilesElsewhere(t *testing.T) {
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, system := range []string{"darwin", "windows"} {
		t.Run(system, func(t *testing.T) {
			found, err := load.Load(&load.Config{
				Mode: load.NeedName | load.NeedFiles | load.NeedImports | load.NeedDeps | load.NeedTypes | load.NeedSyntax |
					load.NeedTypesInfo | load.NeedTypesSizes,
				Env:   append(os.Environ(), "GOOS="+system, "GOARCH=arm64", "CGO_ENABLED=0"),
				Tests: true,
				ParseFile: func(fset *token.FileSet, name string, src []byte) (*ast.File, error) {
					f, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
					if f != nil && !strings.HasPrefix(name, root+string(filepath.Separator)) {
						for _, d := range f.Decls {
							if d, ok := d.(*ast.FuncDecl); ok {
								d.Body = nil
							}
						}
					}
					return f, err
				},
			}, "./...")
			if err != nil {
				t.Fatal(err)
			}
			if len(found) < 50 {
				t.Fatalf("%d packages are not all of them", len(found))
			}
			for _, p := range found {
				if strings.HasSuffix(p.ID, ".test") {
					continue // the main that go test makes, whose body was left out
				}
				for _, e := range p.Errors {
					t.Errorf("%s: %v", p.ID, e)
				}
			}
		})
	}
}
