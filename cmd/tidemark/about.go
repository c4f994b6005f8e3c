package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/internal/config"
)

// version is set by -ldflags "-X main.version=v1.2.3". Empty: what the Go tool
// knows of the module.
var version string

type keyLine struct {
	Key     string `json:"key"`
	Env     string `json:"env"`
	Default string `json:"default"`
	Doc     string `json:"doc"`
}

func newConfigCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the configuration that holds, with secrets masked",
		Long: `Config prints every setting with its value: defaults, then the file of --config,
then the environment, then --set, each over the one before. It fails with every
fault when the configuration is wrong.`,
		Example: `  tidemark config --config tidemark.yaml
  TIDEMARK_KAFKA_BROKERS=k1:9092 tidemark config --set log.level=debug
  tidemark config keys`,
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.load(nil)
			if err != nil {
				return err
			}
			values := map[string]string{}
			for _, line := range cfg.Effective() {
				k, v, _ := strings.Cut(line, "=")
				values[k] = v
				if a.output != "json" {
					fmt.Fprintln(a.out, line)
				}
			}
			a.emit(values, func() {})
			return nil
		},
	}
	cmd.AddCommand(newConfigCheckCmd(a), &cobra.Command{
		Use:     "keys",
		Short:   "List every setting with its environment variable and default",
		Example: "  tidemark config keys | grep kafka",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var rows [][]string
			for _, k := range config.Keys() {
				a.emit(keyLine{k.Name, k.Env(), k.Default, k.Doc}, func() { rows = append(rows, []string{k.Name, k.Env(), k.Default, k.Doc}) })
			}
			if rows != nil {
				a.table([]string{"KEY", "ENVIRONMENT", "DEFAULT", "MEANING"}, rows)
			}
			return nil
		},
	})
	return cmd
}

// build says what this binary was made from.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func thisBuild() build {
	b := build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func (b build) String() string {
	s := b.Version
	if s == "" {
		s = "(devel)"
	}
	if b.Revision != "" {
		s += " revision " + b.Revision
	}
	if b.Modified {
		s += " modified"
	}
	return s + " " + b.Go + " " + b.Platform
}

func newVersionCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  tidemark version -o json",
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			b := thisBuild()
			a.emit(b, func() { fmt.Fprintf(a.out, "tidemark %s\n", b) })
			return nil
		},
	}
}
