package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// binaries are the test programs of a tree.
type binaries struct {
	root, dir string
}

// build compiles the tests of the benchmarks' packages of the tree at root into
// dir, with flags of go test. A package that files has not is left out.
func build(ctx context.Context, root, dir, files string, bs []*Benchmark, flags ...string) (*binaries, error) {
	var packages []string
	for _, b := range bs {
		if _, err := os.Stat(filepath.Join(files, b.Package)); err == nil && !slices.Contains(packages, b.Package) {
			packages = append(packages, b.Package)
		}
	}
	if len(packages) == 0 {
		return nil, fmt.Errorf("none of the benchmarks' packages is in %s", files)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	// The slash makes it a folder also for one package.
	args := slices.Concat([]string{"test", "-c", "-ldflags", "-s -w", "-o", dir + string(filepath.Separator)}, flags, packages)
	if out, err := command(ctx, root, "go", args...); err != nil {
		return nil, fmt.Errorf("build the benchmarks of %s: %w\n%s", files, err, out)
	}
	return &binaries{files, dir}, nil
}

// program is the test program of a benchmark's package.
func (t *binaries) program(b *Benchmark) string {
	return filepath.Join(t.dir, path.Base(b.Package)+".test")
}

// earlier builds the benchmarks of a commit of the repository at root, inside dir.
// Where the clone does not have it, it gives what git says instead.
//
// The compiler sees the commit as changes of the tree at root: at a place of its
// own every package would be compiled anew, which takes minutes.
func earlier(ctx context.Context, root, commit, dir string, bs []*Benchmark) (_ *binaries, absent string, err error) {
	if out, err := command(ctx, root, "git", "cat-file", "-e", commit+"^{commit}"); err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); ok || errors.Is(err, exec.ErrNotFound) {
			return nil, "this clone does not have it, maybe it is a shallow one: " + cmp.Or(out, err.Error()), nil
		}
		return nil, "", fmt.Errorf("look for commit %s: %w\n%s", commit, err, out)
	}
	// An archive, since a worktree would leave its traces in the repository of a
	// run that was ended.
	tree, archive := filepath.Join(dir, "tree"), filepath.Join(dir, "tree.tar")
	if err := os.Mkdir(tree, 0o750); err != nil {
		return nil, "", err
	}
	for _, c := range [][]string{{"git", "archive", "--format=tar", "--output=" + archive, commit}, {"tar", "-xf", archive, "-C", tree}} {
		if out, err := command(ctx, root, c[0], c[1:]...); err != nil {
			return nil, "", fmt.Errorf("get the tree of commit %s: %w\n%s", commit, err, out)
		}
	}
	list := filepath.Join(dir, "overlay.json")
	if err := overlay(ctx, root, commit, tree, list); err != nil {
		return nil, "", fmt.Errorf("compare with commit %s: %w", commit, err)
	}
	b, err := build(ctx, root, filepath.Join(dir, "other"), tree, bs, "-overlay", list)
	return b, "", err
}

// overlay writes down how the files at root become those of a commit, which stand
// in tree.
func overlay(ctx context.Context, root, commit, tree, list string) error {
	replace := map[string]string{}
	for _, c := range [][]string{
		{"diff", "--name-only", "--no-renames", "--relative", "-z", commit, "--"},
		{"ls-files", "--others", "--exclude-standard", "-z"},
	} {
		out, err := command(ctx, root, "git", c...)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		for name := range strings.SplitSeq(out, "\x00") {
			if name == "" {
				continue
			}
			then := filepath.Join(tree, name)
			if _, err := os.Stat(then); errors.Is(err, fs.ErrNotExist) {
				then = "" // it is new
			} else if err != nil {
				return err
			}
			replace[filepath.Join(root, name)] = then
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	return os.WriteFile(list, text, 0o600)
}

func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	out, err := c.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}
