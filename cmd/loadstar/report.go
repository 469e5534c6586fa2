package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"loadstar/internal/atomicfile"
	"loadstar/lab/report"
)

func newReport() *cobra.Command {
	var out, title string
	cmd := &cobra.Command{
		Use:   "report RUN_OR_EXPERIMENT...",
		Short: "Write what came of runs as one HTML page",
		Long: `Write what came of runs as one HTML page: tables beside pictures, for a screen, a
phone or paper, in a light and a dark theme. The file holds all it needs and asks
nothing of the network.

Give folders of runs as loadstar simulate writes them, or folders with runs in them
as loadstar compare does. Runs that are not finished are left out. Runs of one plan
that differ in the seed alone are shown as one method, with the spread over seeds.`,
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
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, %.1f MB%s\n", filepath.ToSlash(out), count(len(r.Runs), "run"), float64(page.Len())/1e6, generatedMark(generated))
			return err
		},
	}
	f := cmd.Flags()
	f.StringVarP(&out, "out", "o", "report.html", "the page")
	f.StringVar(&title, "title", "", "its title (default: what was run on what)")
	return cmd
}

// reportTitle says what was run on what.
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
			return count(len(all), noun)
		}
		return strings.Join(all, ", ")
	}
	return name(methods, "method") + " on " + name(datasets, "dataset")
}
