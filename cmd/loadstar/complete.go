package main

import (
	"strings"

	"github.com/spf13/cobra"

	"loadstar/fed/recipe"
	"loadstar/forecast"
)

// completeValues adds values to the completion of arguments and flags, based on the names
// that the commands give them.
func completeValues(root *cobra.Command) {
	flags := map[string]cobra.CompletionFunc{
		"config": yamlFiles, "agent": yamlFiles, "plan": planFiles,
		"log-level":  words("debug", "info", "warn", "error"),
		"log-format": words("text", "json"),
	}
	arguments := map[string]cobra.CompletionFunc{
		"PLAN": planFiles, "ALGORITHM": algorithms,
	}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		for name, f := range flags {
			if cmd.Flags().Lookup(name) != nil {
				_ = cmd.RegisterFlagCompletionFunc(name, f) // fails if the command has its own completion
			}
		}
		if names := strings.Fields(cmd.Use)[1:]; len(names) > 0 && cmd.ValidArgsFunction == nil && cmd.Runnable() {
			if f := arguments[strings.Trim(names[0], "[].")]; f != nil {
				cmd.ValidArgsFunction = f
			}
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(root)
	for _, path := range [][]string{{"model", "show"}, {"plan", "check"}, {"plan", "explain"}} {
		if cmd, rest, err := root.Find(path); err == nil && len(rest) == 0 {
			cmd.ValidArgsFunction = planFiles
			if path[0] == "model" {
				cmd.ValidArgsFunction = models
			}
		}
	}
	if cmd, _, err := root.Find([]string{"plan", "init"}); err == nil {
		_ = cmd.RegisterFlagCompletionFunc("model", models) // the command has the flag
	}
}

func words(all ...string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}

func yamlFiles(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}

func planFiles(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return yamlFiles(cmd, args, word)
}

func algorithms(_ *cobra.Command, args []string, _ string) (all []string, _ cobra.ShellCompDirective) {
	if len(args) == 0 {
		for _, a := range recipe.Algorithms() {
			all = append(all, a.Name+"\t"+a.About)
		}
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}

func models(_ *cobra.Command, args []string, _ string) (all []string, _ cobra.ShellCompDirective) {
	if len(args) == 0 {
		for _, m := range forecast.Models() {
			all = append(all, m.Name)
		}
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}
