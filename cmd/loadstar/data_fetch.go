package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/series/read"
	"loadstar/series/source"
)

func newDataFetch() *cobra.Command {
	var from, out string
	cmd := &cobra.Command{
		Use:   "fetch NAME",
		Short: "Fetch public load data and convert it",
		Long: `Fetch a public source of load data, and convert it into the folder that is named
in the descriptions in datasets/. NAME is one of these:

` + sourceList() + `
Without --from, git fetches the source at a pinned commit. With --from, nothing
is downloaded. --from is a checkout of the source's repository; for sgsc it is
the table that datasets/sgsc-union.R writes, and for sample the folder
cambridge-estates.

The command compares the contents of every file with a stored checksum. If a
checksum differs, the command fails, and the files stay in a folder whose name
ends with .unverified.

datasets/README.md lists the sources' licences, addresses and known problems.`,
		Example: `  loadstar data fetch cambridge -o data
  loadstar data fetch bdg2 --from Make-Smart-Meter-Really-Smart -o data
  loadstar simulate plans/hour-ahead.yaml --data datasets/hog-core42.yaml --root data`,
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return sourceNames(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			s, ok := source.Find(args[0])
			if !ok {
				return cli.Usagef("there is no source %q; choose one of %s", args[0], strings.Join(sourceNames(), ", "))
			}
			return fetch(cmd.Context(), cmd.OutOrStdout(), s, from, out)
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "convert this checkout or download of the source")
	cmd.Flags().StringVarP(&out, "out", "o", "", "data folder, in which the command creates the folder of the source (default $"+read.RootEnv+", or data)")
	return cmd
}

func sourceNames() []string {
	var names []string
	for _, s := range source.Sources() {
		names = append(names, s.Name)
	}
	return names
}

// sourceList returns the lines of the help text that list the sources.
func sourceList() string {
	var text strings.Builder
	for _, s := range source.Sources() {
		fmt.Fprintf(&text, "  %-10s %s\n", s.Name, s.About)
	}
	return text.String()
}

// fetch converts a source into its group below the folder out.
func fetch(ctx context.Context, w io.Writer, s source.Source, from, out string) error {
	out = cmp.Or(out, os.Getenv(read.RootEnv), "data")
	if from == "" {
		temporary, err := os.MkdirTemp("", "loadstar-"+s.Name+"-*")
		if err != nil {
			return err
		}
		defer os.RemoveAll(temporary)
		from = filepath.Join(temporary, "source")
		if s.Repository != "" {
			fmt.Fprintf(w, "fetching %s at commit %s\n", s.Repository, s.Commit)
		}
		if err := s.Fetch(ctx, from); err != nil {
			return cannotFetch(s, err)
		}
	}
	files, err := s.Convert(from, out)
	if len(files) > 0 {
		if err := printFiles(w, files); err != nil {
			return err
		}
	}
	if errors.Is(err, source.ErrDiffers) && s.Commit != "" {
		return fmt.Errorf("%w; is the source at commit %s?", err, s.Commit)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%s is complete\nlicence: %s\n", filepath.Join(out, s.Folder), s.Licence)
	return nil
}

// cannotFetch returns an error with instructions for downloading the data on another machine.
func cannotFetch(s source.Source, err error) error {
	var text strings.Builder
	fmt.Fprintf(&text, "cannot fetch %s: %v\n", s.Name, err)
	fmt.Fprintf(&text, "Get %s (%s) on a machine with network access, and convert it:\n", s.From, s.Address)
	for _, line := range s.Instructions() {
		fmt.Fprintf(&text, "\n  %s", line)
	}
	return errors.New(text.String())
}

func printFiles(w io.Writer, files []source.File) error {
	t := cli.NewTable(w, 0)
	fmt.Fprintln(t, "FILE\tROWS\tCONTENTS")
	for _, f := range files {
		contents := "as expected"
		if !f.Equal() {
			contents = fmt.Sprintf("SHA-256 %.12s, want %.12s", f.Sum, f.Want)
		}
		fmt.Fprintf(t, "%s\t%d\t%s\n", f.Name, f.Rows, contents)
	}
	return t.Flush()
}
