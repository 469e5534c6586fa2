package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/internal/atomicfile"
	"loadstar/lab/report"
)

func newReport() *cobra.Command {
	var out, title string
	cmd := &cobra.Command{
		Use:   "report RUN_OR_EXPERIMENT...",
		Short: "Generate a self-contained HTML report",
		Long: `Generate a self-contained HTML report with the tables and charts of one or more
runs. It works offline, adapts to desktop and phone screens, prints well, and
has a light and a dark theme.

The arguments are folders of runs, as written by loadstar simulate, or folders
that contain runs, as written by loadstar compare. Unfinished runs are skipped.
Runs of a plan that differ only in the seed are shown as one method, with the
spread over seeds.`,
		Example: "  loadstar report runs/plfl-head\n" +
			"  loadstar report runs/compare -o compare.html",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := report.Report{Title: title, Tool: "loadstar " + version}
			for _, dir := range args {
				one, err := report.ReadRun(dir)
				if err == nil {
					r.Runs = append(r.Runs, one)
					continue
				} else if !errors.Is(err, report.ErrNoRun) {
					return err
				}
				if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("no run folder %s", dir)
				}
				runs, baselines, err := report.ReadExperiment(dir)
				if err != nil {
					return err
				}
				r.Runs, r.Baselines = append(r.Runs, runs...), append(r.Baselines, baselines...)
			}
			if r.Title == "" {
				r.Title = reportTitle(r.Runs)
			}
			var page bytes.Buffer
			if err := r.Write(&page); err != nil {
				return err
			}
			err := atomicfile.Write(out, func(w *os.File) error {
				_, err := w.Write(page.Bytes())
				return err
			})
			if err != nil {
				return err
			}
			generated := false
			for _, one := range r.Runs {
				generated = generated || one.Generated
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, %.1f MB%s\n", filepath.ToSlash(out), cli.Count(len(r.Runs), "run"), float64(page.Len())/1e6, generatedMark(generated))
			return err
		},
	}
	f := cmd.Flags()
	f.StringVarP(&out, "out", "o", "report.html", "file to write")
	f.StringVar(&title, "title", "", "title of the report (default the methods and datasets)")
	return cmd
}

// reportTitle returns a title that lists the methods and datasets of the runs, or only
// their number if there are many.
func reportTitle(runs []*report.Run) string {
	var methods, datasets []string
	add := func(to *[]string, name string) {
		for _, n := range *to {
			if n == name {
				return
			}
		}
		*to = append(*to, name)
	}
	for _, r := range runs {
		add(&methods, r.Method)
		add(&datasets, r.Dataset)
	}
	name := func(all []string, noun string) string {
		if len(all) > 4 {
			return cli.Count(len(all), noun)
		}
		return strings.Join(all, ", ")
	}
	return name(methods, "method") + " on " + name(datasets, "dataset")
}
