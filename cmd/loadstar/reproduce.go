package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"loadstar/lab/experiment"
	"loadstar/lab/paper"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// papersDir is the folder in the repository that has a subfolder for each paper.
const papersDir = "papers"

func newReproduce() *cobra.Command {
	var (
		root, out   string
		quick, save bool
		parallel    int
	)
	cmd := &cobra.Command{
		Use:   "reproduce PAPER",
		Short: "Reproduce the experiments of a paper",
		Long: `Reproduce the experiments of a paper, as described in
papers/PAPER/experiment.yaml, and print the results. Run the command from the
root of the repository. Runs are trained in parallel, one per core. If the
command was interrupted, run it again to continue.

With --quick the experiments are small and only show that everything works. With
--save the results are written to papers/PAPER/ours.tsv.`,
		Example: "  loadstar reproduce bose2023 --quick\n  loadstar reproduce bose2023 --save",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			usage := func(format string, a ...any) error { return usageError{fmt.Errorf(format, a...), "reproduce "} }
			switch {
			case parallel < 1:
				return usage("--parallel must be at least 1")
			case quick && save:
				return usage("--quick and --save exclude each other: results of --quick are not meaningful")
			}
			study, err := paper.Open(filepath.Join(papersDir, name), quick)
			if errors.Is(err, fs.ErrNotExist) {
				if names := paper.Names(papersDir); len(names) > 0 {
					return fmt.Errorf("no paper %q; there are %s", name, strings.Join(names, ", "))
				}
				return fmt.Errorf("no papers in %s: run the command in the repository", papersDir)
			} else if err != nil {
				return err
			}
			if out == "" {
				out = filepath.Join("runs", "papers", name)
				if quick {
					out += "-quick"
				}
			}
			k, err := kernel.Default()
			if err != nil {
				return err
			}
			open, closeAll := datasets(root)
			defer closeAll()
			bar := stages{to: cmd.ErrOrStderr()}
			defer bar.stop()
			lab := experiment.Lab{
				Dir: out, Kernel: k, Parallel: parallel, Open: open,
				Progress: func(done, of int) { bar.set(done, of, "") },
			}
			collectOften()
			start := time.Now()
			results, err := lab.Run(cmd.Context(), study.Spec)
			bar.stop()
			if err != nil {
				return err
			}
			if err := paper.WriteResults(out, results); err != nil {
				return err
			}
			if save {
				if err := paper.WriteResults(filepath.Join(papersDir, name), results); err != nil {
					return err
				}
			}
			page := filepath.Join(out, "report.html")
			if err := study.WriteReport(page, out, results, "loadstar "+version); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s, in %s; see %s\n", study.Spec.Title, time.Since(start).Round(time.Second), page)
			return paper.Print(cmd.OutOrStdout(), study.Spec, results)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&quick, "quick", false, "run small experiments that only show that everything works")
	f.BoolVar(&save, "save", false, "write papers/PAPER/ours.tsv")
	f.StringVar(&root, "data", "", rootUsage)
	f.StringVar(&out, "out", "", "folder for the runs (default runs/papers/PAPER)")
	f.IntVar(&parallel, "parallel", runtime.NumCPU(), "number of runs in parallel")
	return cmd
}

// datasets returns a function that opens a dataset by name, and a function that closes all
// open datasets. A dataset that is already open is not opened again.
func datasets(root string) (open func(string) (*series.Dataset, error), closeAll func()) {
	all := map[string]*series.Dataset{}
	var closers []io.Closer
	open = func(name string) (*series.Dataset, error) {
		if d, ok := all[name]; ok {
			return d, nil
		}
		d, closer, err := openDataset(filepath.Join("datasets", name+".yaml"), root)
		if err != nil {
			return nil, err
		}
		all[name], closers = d, append(closers, closer)
		return d, nil
	}
	return open, func() {
		for _, c := range closers {
			c.Close()
		}
	}
}
