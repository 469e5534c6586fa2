package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// seeAlso is the annotation of a command that names related commands and pages.
const seeAlso = "see also"

// SeeAlso adds related commands and pages to the help of a command.
func SeeAlso(cmd *cobra.Command, what ...string) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[seeAlso] = strings.Join(what, ", ")
}

// usualGroups lists the groups of flags that many commands share.
var usualGroups = []struct {
	title string
	flags []string
}{
	{"Server", []string{"server", "operator"}},
	{"Log", []string{"log-format", "log-level"}},
}

// OtherCommands is the group of commands that the help lists only by name, because the list of
// commands must fit on one screen.
const OtherCommands = "More:"

// setHelp sets the help of a command and all its subcommands. The help consists of one line,
// examples, usage, text, subcommands, flags in groups, and related commands.
func setHelp(root *cobra.Command) {
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { help(cmd.OutOrStdout(), cmd) })
	root.SetUsageFunc(func(cmd *cobra.Command) error { help(cmd.OutOrStderr(), cmd); return nil })
	root.SetHelpCommand(&cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show the help of a command",
		Args:  cobra.ArbitraryArgs,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (words []string, _ cobra.ShellCompDirective) {
			if found, rest, err := cmd.Root().Find(args); err == nil && len(rest) == 0 {
				for _, sub := range found.Commands() {
					if sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
						words = append(words, sub.Name()+"\t"+sub.Short)
					}
				}
			}
			return words, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			at := cmd.Root()
			for _, name := range args {
				i := slices.IndexFunc(at.Commands(), func(c *cobra.Command) bool { return c.Name() == name || c.HasAlias(name) })
				if i < 0 {
					return Usage(argumentError(at, []string{name}))
				}
				at = at.Commands()[i]
			}
			help(cmd.OutOrStdout(), at)
			return nil
		},
	})
}

func help(w io.Writer, cmd *cobra.Command) {
	width := Width(w)
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	if cmd.Short != "" {
		fmt.Fprintf(w, "%s\n\n", cmd.Short)
	}
	if cmd.Example != "" {
		fmt.Fprintf(w, "Examples:\n%s\n\n", cmd.Example)
	}
	if len(cmd.Groups()) > 0 {
		// A program with groups has many commands, and the list must fit on one screen.
		commands(w, cmd)
		return
	}
	if cmd.Runnable() || cmd.HasAvailableSubCommands() {
		fmt.Fprintln(w, "Usage:")
		if cmd.HasAvailableSubCommands() {
			fmt.Fprintf(w, "  %s COMMAND\n\n", cmd.CommandPath())
		} else {
			fmt.Fprintf(w, "  %s\n\n", cmd.UseLine())
		}
	}
	long := strings.TrimSpace(cmd.Long)
	if rest, ok := strings.CutPrefix(long, cmd.Short+". "); ok {
		long = rest
	} else if rest, ok := strings.CutPrefix(long, cmd.Short+".\n"); ok {
		long = strings.TrimSpace(rest)
	}
	if long != "" && long != cmd.Short {
		fmt.Fprintf(w, "%s\n\n", long)
	}
	commands(w, cmd)
	flags(w, cmd, width)
	if see := cmd.Annotations[seeAlso]; see != "" {
		fmt.Fprintf(w, "See also:\n  %s\n", strings.ReplaceAll(see, ", ", "\n  "))
	}
}

// commands lists the subcommands by group.
func commands(w io.Writer, cmd *cobra.Command) {
	if !cmd.HasAvailableSubCommands() {
		return
	}
	list := func(title string, in func(*cobra.Command) bool) {
		first := true
		for _, sub := range cmd.Commands() {
			if !in(sub) || !sub.IsAvailableCommand() && sub.Name() != "help" && !sub.IsAdditionalHelpTopicCommand() {
				continue
			}
			if first {
				fmt.Fprintln(w, title)
				first = false
			}
			fmt.Fprintf(w, "  %-*s %s\n", cmd.NamePadding(), sub.Name(), sub.Short)
		}
		if !first {
			fmt.Fprintln(w)
		}
	}
	for _, g := range cmd.Groups() {
		if g.ID != OtherCommands {
			list(g.Title, func(c *cobra.Command) bool { return c.GroupID == g.ID })
		}
	}
	if len(cmd.Groups()) == 0 {
		list("Commands:", func(c *cobra.Command) bool { return !c.Hidden })
		fmt.Fprintf(w, "Run '%s COMMAND --help' for the help of a command.\n\n", cmd.CommandPath())
		return
	}
	var others []string
	for _, sub := range cmd.Commands() {
		if sub.GroupID == OtherCommands || sub.Name() == "help" || sub.IsAdditionalHelpTopicCommand() {
			others = append(others, sub.Name())
		}
	}
	fmt.Fprintf(w, "%s %s\n\nRun '%s COMMAND --help' for the help of a command.\n", OtherCommands, strings.Join(others, ", "), cmd.CommandPath())
}

// flags lists the flags by group.
func flags(w io.Writer, cmd *cobra.Command, width int) {
	sets := map[string]*pflag.FlagSet{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		title := "Flags"
		for _, g := range usualGroups {
			if slices.Contains(g.flags, f.Name) {
				title = g.title
			}
		}
		if sets[title] == nil {
			sets[title] = pflag.NewFlagSet("", pflag.ContinueOnError)
			sets[title].SortFlags = false
		}
		sets[title].AddFlag(f)
	})
	titles := []string{"Flags"}
	for _, g := range usualGroups {
		titles = append(titles, g.title)
	}
	for _, title := range titles {
		if sets[title] != nil {
			fmt.Fprintf(w, "%s:\n%s\n", title, strings.TrimRight(sets[title].FlagUsagesWrapped(width), "\n")+"\n")
		}
	}
}
