package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
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
			return printResults(cmd.OutOrStdout(), study.Spec, results)
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

// printResults prints a table for each part of the experiment and each dataset. If two
// settings vary, it prints a grid of median relative MAE for each method instead.
func printResults(w io.Writer, s *experiment.Spec, results []experiment.Result) error {
	var err error
	for _, p := range s.Parts {
		for _, dataset := range p.Datasets {
			rows := paper.Of(results, p.Name, dataset)
			if len(rows) == 0 {
				continue
			}
			fmt.Fprintf(w, "\n%s: %s%s\n", p.Title, dataset, generatedMark(rows[0].Generated))
			t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
			if len(p.Grid) == 2 {
				printSquares(t, p, rows)
			} else {
				printMethods(t, rows)
			}
			err = errors.Join(err, t.Flush())
		}
	}
	return err
}

func printMethods(t io.Writer, rows []experiment.Result) {
	fmt.Fprintln(t, "METHOD\tREL. MAE\tMEDIAN\tBELOW 1\tMAE\tRMSE\tMAPE\tBETTER\tWORSE\t")
	for _, r := range rows {
		f := r.Figures
		fmt.Fprintf(t, "%s\t%v\t%v\t%s\t%v\t%v\t%v\t", strings.Join(append([]string{r.Method}, r.At...), " "),
			f["relative_mae_mean"], f["relative_mae_median"], paper.Percent(f, "below_one"), f["mae"], f["rmse"], f["mape"])
		fmt.Fprintf(t, "%s\t%s\t\n", paper.Percent(f, "dm_better"), paper.Percent(f, "dm_worse"))
	}
}

func printSquares(t io.Writer, p experiment.Part, rows []experiment.Result) {
	for _, m := range p.Methods {
		fmt.Fprintf(t, "%s, median relative MAE: %s down, %s across\t\n\t", m.Name, p.Grid[0].Key, p.Grid[1].Key)
		for x := range p.Grid[1].Values {
			fmt.Fprintf(t, "%s\t", p.Grid[1].Name(x))
		}
		fmt.Fprintln(t)
		for y := range p.Grid[0].Values {
			fmt.Fprintf(t, "%s\t", p.Grid[0].Name(y))
			for x := range p.Grid[1].Values {
				at := []string{p.Grid[0].Name(y), p.Grid[1].Name(x)}
				i := slices.IndexFunc(rows, func(r experiment.Result) bool { return r.Method == m.Name && slices.Equal(r.At, at) })
				if i < 0 {
					fmt.Fprint(t, "-\t")
					continue
				}
				fmt.Fprintf(t, "%.3g\t", rows[i].Figures["relative_mae_median"].Mean)
			}
			fmt.Fprintln(t)
		}
	}
}
