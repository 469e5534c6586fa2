package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"loadstar/forecast/issue"
)

// each calls f for a command and all its subcommands.
func each(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, sub := range cmd.Commands() {
		each(sub, f)
	}
}

// TestHelpWidth checks that no line of a command's help is longer than 100 characters, on a
// terminal with 200 columns and on one with 80.
func TestHelpWidth(t *testing.T) {
	for columns, most := range map[string]int{"200": 100, "80": 100} {
		t.Setenv("COLUMNS", columns)
		root := newRoot()
		root.InitDefaultHelpCmd()
		root.InitDefaultCompletionCmd()
		each(root, func(cmd *cobra.Command) {
			if strings.HasPrefix(cmd.CommandPath(), "loadstar completion ") {
				return // the text of the library
			}
			var b bytes.Buffer
			cmd.SetOut(&b)
			if err := cmd.Help(); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(b.String()) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > most {
					t.Errorf("%s: a line of %d characters: %s", cmd.CommandPath(), n, line)
				}
			}
		})
	}
}

// TestHelpRelated checks that the commands and pages under "See also" exist.
func TestHelpRelated(t *testing.T) {
	root := newRoot()
	exists := func(path string) bool {
		cmd, rest, err := root.Find(strings.Fields(path))
		return err == nil && len(rest) == 0 && cmd != root
	}
	for path, all := range related {
		if !exists(path) {
			t.Errorf("there is no command %s", path)
		}
		for what := range strings.SplitSeq(all, ", ") {
			if name, ok := strings.CutPrefix(what, "loadstar "); ok {
				if name, _, _ = strings.Cut(name, " --"); !exists(name) {
					t.Errorf("%s: there is no command %s", path, name)
				}
			} else if _, err := os.Stat(filepath.Join("../..", what)); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
}

// TestHelpGroups checks that the groups name existing commands, so that a renamed command does
// not unintentionally move to the fleet's group.
func TestHelpGroups(t *testing.T) {
	root := newRoot()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, g := range groups {
		for _, name := range strings.Fields(g.names) {
			if cmd, _, err := root.Find([]string{name}); err != nil || cmd == root {
				t.Errorf("%s there is no command %s", g.title, name)
			}
		}
	}
}

// TestHelpScreen checks that the list of commands fits on one screen.
func TestHelpScreen(t *testing.T) {
	var b bytes.Buffer
	root := newRoot()
	root.SetOut(&b)
	if err := root.Help(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), "\n"); n > 40 {
		t.Errorf("%d lines:\n%s", n, &b)
	}
}

// TestNames checks that no two neighbouring commands differ by one letter, and that no
// command group has a plural name.
func TestNames(t *testing.T) {
	each(newRoot(), func(cmd *cobra.Command) {
		named := map[string]bool{}
		for _, sub := range cmd.Commands() {
			named[sub.Name()] = true
		}
		for _, sub := range cmd.Commands() {
			name := sub.Name()
			for i := range name {
				if shorter := name[:i] + name[i+1:]; named[shorter] {
					t.Errorf("%s differs from %s by one letter", sub.CommandPath(), shorter)
				}
			}
			if sub.HasSubCommands() && strings.HasSuffix(name, "s") {
				t.Errorf("%s is a plural", sub.CommandPath())
			}
		}
	})
}

// TestReasons checks that the glossary explains every reason of a forecast.
func TestReasons(t *testing.T) {
	page, err := os.ReadFile("../../docs/glossary.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range issue.Reasons {
		if !strings.Contains(string(page), "\n| **"+string(r)+"** | ") {
			t.Errorf("the glossary does not explain %s", r)
		}
	}
}
