package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/lab/experiment"
	"loadstar/nn/kernel"
	"loadstar/rig/paper"
	"loadstar/series"
	"loadstar/series/read"
	"loadstar/series/source"
)

// papersDir is the folder of the repository with a subfolder for each paper.
const papersDir = "papers"

// reproduction contains the flags of loadstar-lab reproduce.
type reproduction struct {
	root, out                  string
	quick, save, verify, write bool
	parallel                   int
	parts                      []string
}

func newReproduce() *cobra.Command {
	var r reproduction
	cmd := &cobra.Command{
		Use:   "reproduce PAPER",
		Short: "Reproduce the experiments of a paper",
		Long: `Reproduce the experiments of a paper, as described in
papers/PAPER/experiment.yaml, and print the results. Run the command from the
root of the repository. Runs are trained in parallel, one per core. If the
command was interrupted, run it again to continue. The name all stands for all
papers. With --quick or --verify, this name can be omitted.

With --quick, the experiments are small and only show that everything works. The
sample in datasets/sample then replaces missing real data. Without --quick,
parts with missing data are skipped; 'loadstar data fetch' downloads the data.
With --save, the command writes the results to papers/PAPER/ours.tsv, and also
everything that is computed from them: the verdicts in claims.yaml, and the
generated sections of README.md. With --part, the results of other parts stay.

With --verify, nothing is trained. The command computes every verdict and every
generated section from ours.tsv and published.tsv, and fails if a file differs.
If the argument is all, it also checks docs/reference/papers.md, changes figures
to find out which rules can fail, and prints one line of counts at the end. With
--write, the command writes the files instead of checking them.`,
		Example: "  loadstar-lab reproduce bose2023 --quick\n  loadstar-lab reproduce bose2023 --save\n  loadstar-lab reproduce all --verify",
		Args:    cobra.MaximumNArgs(1),
		RunE:    r.start,
	}
	f := cmd.Flags()
	f.StringSliceVar(&r.parts, "part", nil, "train only these parts of experiment.yaml, and those that they need")
	f.BoolVar(&r.quick, "quick", false, "run small experiments that only show that everything works")
	f.BoolVar(&r.save, "save", false, "write ours.tsv, verdicts and generated sections in papers/PAPER")
	f.BoolVar(&r.verify, "verify", false, "check that verdicts and generated sections follow from ours.tsv")
	f.BoolVar(&r.write, "write", false, "with --verify: write verdicts and generated sections")
	f.StringVar(&r.root, "data", "", cli.RootUsage)
	f.StringVar(&r.out, "out", "", "folder for the runs (default runs/papers/PAPER)")
	f.IntVar(&r.parallel, "parallel", runtime.NumCPU(), "number of runs in parallel")
	return cmd
}

// start checks the flags, and reproduces or verifies the papers that the arguments name.
func (r *reproduction) start(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0 && !r.quick && !r.verify:
		return cli.Usagef("missing argument PAPER")
	case r.parallel < 1:
		return cli.Usagef("--parallel must be at least 1")
	case r.quick && r.save:
		return cli.Usagef("--quick and --save exclude each other: results of --quick are not meaningful")
	case r.verify && (r.quick || r.save):
		return cli.Usagef("--verify trains nothing: leave out --quick and --save")
	case len(r.parts) > 0 && (r.verify || len(args) != 1 || args[0] == "all"):
		return cli.Usagef("--part needs one paper to train")
	case r.write && !r.verify:
		return cli.Usagef("--write needs --verify; after a run, --save writes the files too")
	}
	names := paper.Names(papersDir)
	all := len(args) == 0 || args[0] == "all"
	if len(names) == 0 {
		return fmt.Errorf("no papers in %s; run the command at the root of the repository", papersDir)
	}
	if !all {
		names = args
	}
	if r.verify {
		return r.check(cmd, names, all)
	}
	for _, name := range names {
		out := r.out
		if out != "" && all {
			out = filepath.Join(out, name)
		}
		err := r.run(cmd, name, out)
		if all && errors.Is(err, experiment.ErrNoData) {
			fmt.Fprintf(cmd.OutOrStdout(), "%s\n\n", err)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *reproduction) study(name string) (*paper.Paper, error) {
	study, err := paper.Open(filepath.Join(papersDir, name), r.quick)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no paper %q; there are %s", name, strings.Join(paper.Names(papersDir), ", "))
	}
	return study, err
}

// check verifies the files of papers. If they are all papers, it also verifies the page about
// them.
func (r *reproduction) check(cmd *cobra.Command, names []string, all bool) error {
	var wrong error
	report := func(difference string, err error) {
		fmt.Fprint(cmd.OutOrStdout(), difference)
		if !errors.Is(wrong, err) { // one error lists all files that differ
			wrong = errors.Join(wrong, err)
		}
	}
	var studies []*paper.Paper
	for _, name := range names {
		study, err := r.study(name)
		if err != nil {
			return err
		}
		studies = append(studies, study)
		report(study.Verify(r.write))
	}
	if all {
		report(paper.VerifyOverview(filepath.Join("docs", "reference", "papers.md"), papersDir, studies, r.write))
	}
	if wrong != nil {
		return wrong
	}
	fmt.Fprintf(cmd.OutOrStdout(), "verified: %s\n", strings.Join(names, ", "))
	if !all {
		return nil
	}
	var count paper.Count
	for _, study := range studies {
		if err := count.Add(study); err != nil {
			return err
		}
	}
	if len(count.Stuck) > 0 {
		return fmt.Errorf("no change of the figures changes the result of the rules %s; correct them, or mark them as arithmetic", strings.Join(count.Stuck, ", "))
	}
	fmt.Fprintf(cmd.OutOrStdout(), "rules that 30 %% of one figure turns: %d\n%s\n", count.Narrow, &count)
	return nil
}

// run trains the experiments of a paper in the folder out and prints the results.
func (r *reproduction) run(cmd *cobra.Command, name, out string) error {
	study, err := r.study(name)
	if err != nil {
		return err
	}
	if out == "" {
		out = filepath.Join("runs", "papers", name)
		if r.quick {
			out += "-quick"
		}
	}
	if err := r.adapt(study); err != nil {
		return err
	}
	shown := *study // what this run trains and shows
	if len(r.parts) > 0 {
		if shown.Spec, err = study.Spec.Only(r.parts); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		shown.Note = strings.TrimSpace(study.Note + " Verdicts need all parts of the experiment.")
	}
	k, err := kernel.Default()
	if err != nil {
		return err
	}
	open, closeAll := datasets(r.root)
	defer closeAll()
	bar := cli.Stages{To: cmd.ErrOrStderr()}
	defer bar.Stop()
	lab := experiment.Lab{
		Dir: out, Kernel: k, Parallel: r.parallel, Open: open,
		Progress: func(done, of int) { bar.Set(done, of, "") },
	}
	cli.CollectOften()
	start := time.Now()
	results, err := lab.Run(cmd.Context(), shown.Spec)
	bar.Stop()
	if err != nil {
		return err
	}
	costs := lab.Cost()
	date, err := strconv.ParseFloat(start.UTC().Format("20060102"), 64)
	if err != nil {
		return err
	}
	for _, c := range costs {
		c.Figures["date"] = experiment.Figure{date}
	}
	saved := append(results, costs...)
	if err := paper.WriteResults(out, saved); err != nil {
		return err
	}
	// If the rule of a claim cannot be computed, show the results anyway.
	var wrong error
	if r.save {
		wrong = study.Save(saved)
	}
	page := filepath.Join(out, "report.html")
	if err := shown.WriteReport(page, out, results, "loadstar "+version); err != nil {
		wrong = errors.Join(wrong, err)
	}
	w := cmd.OutOrStdout()
	fmt.Fprintf(w, "%s, in %s\n", shown.Spec.Title, time.Since(start).Round(time.Second))
	if shown.Note != "" {
		fmt.Fprintln(w, shown.Note)
	}
	err = paper.Print(w, shown.Spec, results)
	fmt.Fprintf(w, "\nreport: open %s in a browser\n", page)
	return errors.Join(err, wrong)
}

// sampleName is the dataset that is part of the repository.
const sampleName = "sample"

func datasetPath(name string) string {
	if name == sampleName {
		return filepath.Join("datasets", name)
	}
	return filepath.Join("datasets", name+".yaml")
}

// adapt replaces missing datasets of a paper with the sample in quick checks, and otherwise
// removes them. The paper's note reports both.
func (r *reproduction) adapt(study *paper.Paper) error {
	var missing, fetch []string
	for _, name := range study.Spec.Datasets() {
		d, err := read.Load(datasetPath(name))
		if err != nil {
			return err
		}
		if !d.Present(r.root) {
			missing = append(missing, name)
			if command := "loadstar data fetch " + sourceOf(d); !slices.Contains(fetch, command) {
				fetch = append(fetch, command)
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	note := fmt.Sprintf("The data of %s is missing; get it with %s.", strings.Join(missing, ", "), strings.Join(fetch, ", "))
	if r.save {
		return errors.New("--save needs all data. " + note)
	}
	if r.quick {
		study.Note = note + " In its place, this ran on the sample; verdicts need the real data."
		_, err := study.Spec.Without(missing, sampleName)
		return err
	}
	skipped, err := study.Spec.Without(missing, "")
	if err != nil {
		return fmt.Errorf("%s: %w. %s", study.Name, err, note)
	}
	study.Note = note + " Verdicts need all data."
	if len(skipped) > 0 {
		study.Note += " Skipped parts: " + strings.Join(skipped, ", ") + "."
	}
	return nil
}

// sourceOf returns the source that a user must fetch to get the files of a dataset.
func sourceOf(d *read.Description) string {
	folder, _, _ := strings.Cut(d.Load.Files[0], "/")
	for _, s := range source.Sources() {
		if s.Folder == folder {
			return s.Name
		}
	}
	return folder
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
		d, closer, err := cli.OpenDataset(datasetPath(name), root)
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
