package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"loadstar/internal/textfmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"loadstar/cmd/loadstar/cli"
	"loadstar/fed/recipe"
	"loadstar/forecast"
	"loadstar/internal/disk"
	"loadstar/lab/backtest"
	"loadstar/lab/report"
	"loadstar/lab/score"
	"loadstar/series"
)

const baselineUsage = "baselines to show with the run, or none; may be repeated"

// reportOptions are the flags of the command.
type reportOptions struct {
	out, title, root string
	baselines, files []string
	open             bool
}

func newReport() *cobra.Command {
	var o reportOptions
	cmd := &cobra.Command{
		Use:   "report RUN_OR_EXPERIMENT...",
		Short: "Generate a self-contained HTML report",
		Long: `Generate a self-contained HTML report of one or more runs. The report begins
with a sentence that compares the errors with those of last week's profile and
of the strongest baseline. It also contains charts of load and forecasts, of
errors (by client, lead and hour), of intervals and of the training, and it
lists the commands that repeat the run. The page works offline, on desktop and
phone, and prints on a few pages.

The arguments are folders of runs, as written by loadstar simulate, or folders
that contain runs, as written by loadstar compare. Unfinished runs are skipped.
Runs of a plan that differ only in the seed are shown as one method, with the
spread over seeds.

The command backtests the baselines on the run's task once, and stores the
results in the run's folder baselines. The backtest needs the run's dataset.
Without the dataset, the report contains only results that are already stored.

With --forecasts the report compares forecasts of other programs with those of
the run. The report then contains the table of 'loadstar score', which covers
the forecasts that all files and the run share. Its charts show the forecasts of
the first file instead of those of a baseline.`,
		Example: "  loadstar report runs/day-ahead --open\n" +
			"  loadstar report runs/compare -o compare.html",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.add(cmd.Flags())
	return cmd
}

// add adds the flags.
func (o *reportOptions) add(f *pflag.FlagSet) {
	f.StringVarP(&o.out, "out", "o", "", "file to write (default report.html in the first folder)")
	f.StringVar(&o.title, "title", "", "title of the report (default the methods and datasets)")
	f.StringSliceVar(&o.baselines, "baseline", backtest.Default, baselineUsage)
	f.StringArrayVar(&o.files, "forecasts", nil, "`FILE=NAME`: forecasts of another program to score and draw together with those of the run, as in 'loadstar score'; may be repeated")
	f.StringVar(&o.root, "root", "", cli.RootUsage)
	f.BoolVar(&o.open, "open", false, "open the report in the browser")
}

// run writes a report.
func (o *reportOptions) run(cmd *cobra.Command, args []string) error {
	if err := checkBaselines(o.baselines); err != nil {
		return err
	}
	if o.out == "" {
		o.out = filepath.Join(args[0], "report.html")
	}
	r := report.Report{Title: o.title, Tool: "loadstar " + version}
	if err := readRuns(&r, args); err != nil {
		return err
	}
	if !slices.Equal(o.baselines, []string{"none"}) {
		if addBaselines(cmd.Context(), cmd.ErrOrStderr(), r.Runs, o.baselines, o.root) {
			r.Runs, r.Baselines = nil, nil
			if err := readRuns(&r, args); err != nil { // again, with the baselines
				return err
			}
		}
	} else {
		r.WithoutBaselines()
	}
	if len(o.files) > 0 {
		if err := compareForecasts(cmd, r.Runs, o.files, o.root); err != nil {
			return err
		}
	}
	var page bytes.Buffer
	if err := r.Write(&page); err != nil {
		return err
	}
	err := disk.WritePrivate(o.out, func(w *os.File) error {
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
	if o.open {
		openPage(cmd.ErrOrStderr(), o.out)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, %.1f MB%s\n", filepath.ToSlash(o.out), cli.Count(len(r.Runs), "run"), float64(page.Len())/1e6, textfmt.Synthetic(generated))
	return err
}

// checkBaselines returns a usage error if a baseline does not exist.
func checkBaselines(names []string) error {
	for _, name := range names {
		if _, err := forecast.NewBaseline(name); err != nil && !(name == "none" && len(names) == 1) {
			return cli.Usagef("--baseline: %w; none leaves them out", err)
		}
	}
	return nil
}

// readRuns adds the runs in folders to a report.
func readRuns(r *report.Report, dirs []string) error {
	for _, dir := range dirs {
		one, err := report.ReadRun(dir)
		if err == nil {
			r.Runs = append(r.Runs, one)
			continue
		} else if !errors.Is(err, report.ErrNoRun) {
			return err
		}
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("there is no run folder %s; name a folder that loadstar simulate or compare wrote, such as runs/day-ahead", dir)
		}
		runs, baselines, err := report.ReadExperiment(dir)
		if err != nil {
			return err
		}
		r.Runs, r.Baselines = append(r.Runs, runs...), append(r.Baselines, baselines...)
	}
	return nil
}

// addBaselines backtests baselines for the best run of each task and dataset, unless its folder
// already contains them. It reports whether it wrote any. If it cannot open a dataset, a notice
// explains why baselines are missing.
func addBaselines(ctx context.Context, notice io.Writer, runs []*report.Run, names []string, root string) (added bool) {
	for _, r := range report.Representatives(runs) {
		if r.HasBaselines(names) {
			continue
		}
		if err := besideRun(ctx, r, names, root); err != nil {
			fmt.Fprintf(notice, "no baselines for %s: %v\n", r.Dir, err)
			continue
		}
		added = true
	}
	return added
}

// besideRun backtests baselines on the task of a run.
func besideRun(ctx context.Context, r *report.Run, names []string, root string) error {
	text, err := os.ReadFile(filepath.Join(r.Dir, "plan.yaml"))
	if err != nil {
		return err
	}
	plan, err := recipe.Read(text)
	if err != nil {
		return err
	}
	d, closer, err := datasetOf(r, root)
	if err != nil {
		return err
	}
	defer closer.Close()
	if plan, err = recipe.Resolve(plan, d.Interval); err != nil {
		return err
	}
	_, err = backtest.Beside(ctx, d, plan, r.Dir, names, runtime.NumCPU())
	return err
}

// datasetOf opens the dataset of a run.
func datasetOf(r *report.Run, root string) (*series.Dataset, io.Closer, error) {
	if r.DataPath == "" {
		return nil, nil, errors.New("the run does not name its dataset")
	}
	d, closer, err := cli.OpenPlausible(io.Discard, r.DataPath, root)
	if err != nil {
		return nil, nil, fmt.Errorf("its dataset cannot be opened: %w", err)
	}
	if now := d.Fingerprint(); now != r.Data {
		err = fmt.Errorf("the dataset %s has changed since the run: it has the fingerprint %s, not %s", r.DataPath, now, r.Data)
		return nil, nil, errors.Join(err, closer.Close())
	}
	return d, closer, nil
}

// compareForecasts adds the forecasts of other programs to the report of a run.
func compareForecasts(cmd *cobra.Command, runs []*report.Run, files []string, root string) error {
	best := report.Representatives(runs)
	if len(best) != 1 {
		return cli.Usagef("--forecasts: the report has %d datasets or tasks; name runs of one", len(best))
	}
	r := best[0]
	d, closer, err := datasetOf(r, root)
	if err != nil {
		return fmt.Errorf("--forecasts: %w", err)
	}
	defer closer.Close()
	var all []*score.Forecasts
	for _, file := range files {
		path, name, named := strings.Cut(file, "=")
		f, err := score.Read(path, d)
		if err == nil && named {
			err = f.Rename(name)
		}
		if err != nil {
			return fmt.Errorf("--forecasts %s: %w", file, err)
		}
		all = append(all, f)
	}
	own, err := forecastsOf(cmd, r.Dir, d, runtime.NumCPU(), all)
	if err != nil {
		return err
	}
	scores, err := score.Score(d, append([]*score.Forecasts{own}, all...))
	if err != nil {
		return fmt.Errorf("--forecasts: %w", err)
	}
	o := report.Others{Table: scores.Table()}
	o.Name, o.Curves = all[0].Curves(d, r.Leads(), r.Drawn())
	r.Compare(o)
	return nil
}

// openPage opens a file in the browser. It is not an error if there is no browser.
func openPage(notice io.Writer, path string) {
	if full, err := filepath.Abs(path); err == nil {
		path = full
	}
	name, args := "xdg-open", []string{path}
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler", path}
	}
	c := exec.Command(name, args...)
	if err := c.Start(); err != nil {
		fmt.Fprintf(notice, "cannot open a browser (%v): open %s yourself\n", err, path)
		return
	}
	go func() { _ = c.Wait() }() // the browser's exit status does not matter
}

// reportHint returns a line with the command that creates the report of a folder.
func reportHint(dir string) string {
	if strings.ContainsAny(dir, " \t") {
		dir = "'" + dir + "'"
	}
	return "report: loadstar report " + dir + " --open"
}
