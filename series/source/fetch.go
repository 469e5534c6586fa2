package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// errSteps means that git alone cannot fetch a source.
var errSteps = errors.New("it cannot be fetched automatically")

// Fetch writes the source's files at the pinned commit into a folder, which must not exist.
// It runs git.
func (s Source) Fetch(ctx context.Context, dir string) error {
	if s.Repository == "" {
		return errSteps
	}
	for _, args := range s.git(dir) {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		var messages bytes.Buffer
		cmd.Stderr = &messages
		// Do not ask for a password, because a repository that requires one is not the public
		// source.
		cmd.Env = append(os.Environ(), "GIT_TERMINAL_PROMPT=0")
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args[:2], " "), err, bytes.TrimSpace(messages.Bytes()))
		}
	}
	return nil
}

// git returns the commands that fetch the source. They first fetch the history without the
// files, because only the abbreviated commit hash is known, and then only the files that are
// needed.
func (s Source) git(dir string) [][]string {
	return [][]string{
		{"git", "clone", "--quiet", "--filter=blob:none", "--no-checkout", s.Repository, dir},
		append([]string{"git", "-C", dir, "sparse-checkout", "set"}, s.Paths...),
		{"git", "-C", dir, "checkout", "--quiet", s.Commit},
	}
}

// Instructions returns the commands that fetch the source, and the command that then
// converts it.
func (s Source) Instructions() []string {
	lines, from := s.Steps, ""
	switch {
	case s.Repository != "":
		from = s.Name + "-source"
		for _, args := range s.git(from) {
			for i, arg := range args {
				if strings.Contains(arg, " ") {
					args[i] = "'" + arg + "'"
				}
			}
			lines = append(lines, strings.Join(args, " "))
		}
	case s.Name == sgsc.Name:
		from = "union.csv.gz"
	default:
		from = "DIR/cambridge-estates"
	}
	return append(lines, "loadstar data fetch "+s.Name+" --from "+from)
}
