//go:build docs

package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// Document writes the documentation of a program. 'man DIR' writes man pages, dated by
// SOURCE_DATE_EPOCH. 'reference' prints an introduction and the reference of all commands.
// Document returns only if the arguments request neither. Released programs do not contain it.
func Document(newRoot func() *cobra.Command, introduction string) {
	var err error
	switch {
	case len(os.Args) == 3 && os.Args[1] == "man":
		err = writeMan(newRoot(), os.Args[2])
	case len(os.Args) == 2 && os.Args[1] == "reference":
		_, err = os.Stdout.WriteString(introduction + reference(newRoot()))
	default:
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func writeMan(root *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root.DisableAutoGenTag = true
	visible(root, func(c *cobra.Command) {
		// The library reads Markdown, in which lines with four spaces are preserved.
		c.Long = strings.ReplaceAll(c.Long, "\n  ", "\n    ")
	})
	return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "Loadstar", Manual: "User Commands"}, dir)
}

// documented reports whether a command does anything itself; command groups only print their
// help.
func documented(c *cobra.Command) bool {
	return c.Runnable() && (!c.HasSubCommands() || c.Flags().HasAvailableFlags())
}

// reference returns a table of all commands, and a section for each.
func reference(root *cobra.Command) string {
	var out bytes.Buffer
	out.WriteString("## All commands\n\n")
	out.WriteString("| command | purpose |\n|---|---|\n")
	visible(root, func(c *cobra.Command) {
		if documented(c) {
			fmt.Fprintf(&out, "| [`%s`](#%s) | %s |\n", c.CommandPath(), anchor(c.CommandPath()), cell(c.Short))
		}
	})
	shared := map[string]int{}
	var order []string
	visible(root, func(c *cobra.Command) {
		if !documented(c) {
			return
		}
		for _, f := range flagRows(c) {
			if shared[f.row]++; shared[f.row] == sharedBy {
				order = append(order, f.row)
			}
		}
	})
	slices.Sort(order)
	if len(order) > 0 {
		out.WriteString("\n## Shared flags\n\nMany commands have these flags, with the same meaning.\n\n" + flagHead + strings.Join(order, ""))
	}
	visible(root, func(c *cobra.Command) {
		if !documented(c) {
			return
		}
		fmt.Fprintf(&out, "\n## %s\n\n", c.CommandPath())
		fmt.Fprintf(&out, "```text\n%s\n```\n\n", c.UseLine())
		text := cmp.Or(c.Long, c.Short+".")
		fmt.Fprintf(&out, "```text\n%s\n```\n", strings.TrimSpace(text))
		if c.Example != "" {
			fmt.Fprintf(&out, "\n```text\n%s\n```\n", strings.TrimRight(c.Example, "\n"))
		}
		var own, also []string
		for _, f := range flagRows(c) {
			if shared[f.row] >= sharedBy {
				also = append(also, "`--"+f.name+"`")
			} else {
				own = append(own, f.row)
			}
		}
		if len(own) > 0 {
			out.WriteString("\n" + flagHead + strings.Join(own, ""))
		}
		if len(also) > 0 {
			fmt.Fprintf(&out, "\n[Shared flags](#shared-flags): %s.\n", strings.Join(also, ", "))
		}
	})
	return out.String()
}

// sharedBy is the minimum number of commands that must share a flag for the flag to be
// described only once.
const sharedBy = 8

const flagHead = "| flag | meaning | default |\n|---|---|---|\n"

type flagRow struct{ name, row string }

// flagRows returns the rows of a command's flags.
func flagRows(c *cobra.Command) (rows []flagRow) {
	flags := c.NonInheritedFlags()
	flags.AddFlagSet(c.InheritedFlags()) // flags inherited from the command pki
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if kind != "" {
			name += " " + kind
		}
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		value := ""
		if f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" {
			value = "`" + strings.Trim(f.DefValue, "[]") + "`"
		}
		rows = append(rows, flagRow{f.Name, fmt.Sprintf("| `%s` | %s | %s |\n", name, cell(usage), value)})
	})
	return rows
}

// visible calls do for a command and all its subcommands that users see.
func visible(c *cobra.Command, do func(*cobra.Command)) {
	do(c)
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "completion" && sub.Name() != "help" {
			visible(sub, do)
		}
	}
}

func anchor(path string) string { return strings.ReplaceAll(path, " ", "-") }

// cell escapes text for a cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(text)
}
