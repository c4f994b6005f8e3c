package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/internal/config"
)

// enums are the values of flags that have a fixed set of them, by flag name.
var enums = map[string][]string{
	"output":  {"text", "json"},
	"order":   {"asc", "desc"},
	"keep":    {"end", "begin"},
	"history": {"none", "all", "from:"},
	"policy":  {"default", "advance_on_send", "keep_on_send"},
	"format":  {"lines", "openim"},

	"on-lost-offsets": {"stop", "earliest", "latest"},
}

// completeFlags gives the shell what the flags of cmd and the commands below it
// may be set to.
func completeFlags(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		completeFlags(c)
	}
	register := func(name string, f cobra.CompletionFunc) {
		if cmd.Flags().Lookup(name) == nil && cmd.PersistentFlags().Lookup(name) == nil {
			return
		}
		// The only errors are a flag that is not there and one registered twice.
		if err := cmd.RegisterFlagCompletionFunc(name, f); err != nil {
			panic(err)
		}
	}
	for name, values := range enums {
		register(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	register("set", completeKeys)
}

// completeKeys offers the keys of the configuration, to be followed by a value.
func completeKeys(_ *cobra.Command, _ []string, given string) ([]string, cobra.ShellCompDirective) {
	var out []string
	for _, k := range config.Keys() {
		if strings.HasPrefix(k.Name+"=", given) {
			out = append(out, cobra.CompletionWithDesc(k.Name+"=", k.Doc))
		}
	}
	return out, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}
