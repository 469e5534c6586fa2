package report

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"loadstar/lab/run"
)

// Run contains the data of a finished run that a report needs.
type Run struct {
	Dataset   string
	Generated bool
	Method    string // the plan's name
	Algorithm string
	Seed      uint64
	Clients   []run.Client
	// Reference is the forecast to which the relative MAE refers, such as last-week.
	Reference string
	// Dir is the run's folder. Data is the dataset's fingerprint, and DataPath its path, or
	// "".
	Dir, Data, DataPath string

	zone        string            // zone of the dataset's clock; "" in runs of older versions
	interval    int64             // seconds of a step; 0 in runs of older versions
	summary     *run.Summary      // nil in tests
	plan        string            // the effective plan
	peaks       []run.Peak        // by client
	calibration []run.Calibration // by hour and level
	uses        []run.Use
	beside      run.Beside        // baselines on the task of this run
	others      *Others           // forecasts of other programs, or nil
	settings    map[string]string // the plan with dotted keys, such as client.lr
	rounds      int
	steps       int64
	seconds     float64
	bytes       int64 // total traffic in both directions
	diverged    bool
	trained     int // number of clients that trained
	losses      []point
	evaluations []evaluation
	profile     []run.Profile
	excerpts    []excerpt
}

type point struct{ x, y float64 }

// evaluation is the distribution of the relative MAE over clients after a round.
type evaluation struct {
	round  int
	spread [5]float64 // minimum, quartiles, maximum
}

// Baseline contains the scores of a baseline for one client.
type Baseline struct {
	Dataset string
	run.Baseline
}

// ErrNoRun means that a folder does not contain a finished run.
var ErrNoRun = errors.New("not a finished run: it needs a plan.yaml and a summary.json")

// ReadRun reads the folder of a finished run.
func ReadRun(dir string) (*Run, error) {
	r := &Run{settings: map[string]string{}}
	if err := r.readHead(dir); err != nil {
		return nil, err
	}
	var err error
	if r.Clients, err = run.Read[run.Client](dir, "clients"); err != nil {
		return nil, err
	}
	if len(r.Clients) == 0 {
		return nil, fmt.Errorf("%s has no clients in clients.csv", dir)
	}
	rounds, err := run.Read[run.Round](dir, "rounds")
	if err != nil {
		return nil, err
	}
	for _, i := range thin(len(rounds), 200) {
		r.losses = append(r.losses, point{float64(rounds[i].Round + 1), rounds[i].Loss})
	}
	for _, x := range rounds {
		r.bytes += x.Down + x.Up
	}
	evaluations, err := run.Read[run.Evaluation](dir, "evaluations")
	if err != nil {
		return nil, err
	}
	r.evaluations = spreads(evaluations)
	if r.profile, err = run.Read[run.Profile](dir, "profile"); err != nil {
		return nil, err
	}
	if r.peaks, err = run.Read[run.Peak](dir, "peaks"); err != nil {
		return nil, err
	}
	if r.uses, err = run.Read[run.Use](dir, "uses"); err != nil {
		return nil, err
	}
	if r.calibration, err = run.Read[run.Calibration](dir, "calibration"); err != nil {
		return nil, err
	}
	if r.beside, err = run.ReadBeside(dir); err != nil {
		return nil, err
	}
	curves, err := run.Read[run.Curve](dir, "curves")
	if err != nil {
		return nil, err
	}
	if r.excerpts = r.curveExcerpts(curves); len(r.excerpts) > 0 {
		return r, nil
	}
	forecasts, err := run.Read[run.Forecast](dir, "forecasts")
	if err != nil {
		return nil, err
	}
	r.excerpts = excerpts(forecasts)
	return r, nil
}

// setting returns a number in the plan, or 0.
func (r *Run) setting(key string) int {
	n, _ := strconv.Atoi(r.settings[key]) // 0 if the plan has no such number
	return n
}

func (r *Run) readHead(dir string) error {
	s, err := run.ReadSummary(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", dir, ErrNoRun)
	} else if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(dir, "plan.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", dir, ErrNoRun)
	} else if err != nil {
		return err
	}
	// Do not validate the plan, so that plans of other versions of the program can be
	// read.
	var plan yaml.Node
	if err := yaml.Unmarshal(text, &plan); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(dir, "plan.yaml"), err)
	}
	flatten(r.settings, "", &plan)
	r.Dir, r.Data, r.DataPath, r.summary, r.plan = dir, s.Data, s.DataPath, s, string(text)
	r.zone, r.interval = s.Zone, s.Interval
	r.Seed, _ = strconv.ParseUint(r.settings["seed"], 10, 64)
	r.Method, r.Algorithm, r.Dataset, r.Generated = s.Plan, s.Algorithm, s.Dataset, s.Generated
	r.Reference = s.RelativeMAE.Reference
	r.diverged = s.Course.Diverged
	r.rounds, r.steps, r.seconds, r.trained = s.Rounds, s.Steps, s.Seconds.Train, s.Clients
	return nil
}

// flatten adds all scalars below a YAML node to a map, under dotted keys such as
// client.lr.
func flatten(to map[string]string, key string, n *yaml.Node) {
	switch n.Kind {
	case yaml.DocumentNode:
		for _, c := range n.Content {
			flatten(to, key, c)
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			flatten(to, strings.TrimPrefix(key+"."+n.Content[i].Value, "."), n.Content[i+1])
		}
	case yaml.SequenceNode:
		var all []string
		for _, c := range n.Content {
			all = append(all, c.Value)
		}
		to[key] = strings.Join(all, ", ")
	case yaml.ScalarNode:
		to[key] = n.Value
	}
}

// ReadExperiment reads all finished runs under a folder, and the baselines.csv files in
// the folders of their datasets. It returns an error if there is no finished run.
func ReadExperiment(dir string) ([]*Run, []Baseline, error) {
	var (
		runs      []*Run
		baselines []Baseline
	)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch {
		case !d.IsDir() && d.Name() == "baselines.csv":
			b, err := readBaselines(filepath.Dir(path))
			baselines = append(baselines, b...)
			return err
		case !d.IsDir():
			return nil
		case path != dir && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir // the remains of an interrupted copy
		}
		r, err := ReadRun(path)
		switch {
		case errors.Is(err, ErrNoRun):
			return nil
		case err != nil:
			return err
		}
		runs = append(runs, r)
		return fs.SkipDir
	})
	if err == nil && len(runs) == 0 {
		err = fmt.Errorf("%s contains no finished run", dir)
	}
	return runs, baselines, err
}

func readBaselines(dir string) ([]Baseline, error) {
	rows, err := run.Read[run.Baseline](dir, "baselines")
	all := make([]Baseline, len(rows))
	for i, r := range rows {
		all[i] = Baseline{Dataset: filepath.Base(dir), Baseline: r}
	}
	return all, err
}

// spreads returns the distribution of the relative MAE over clients for each evaluated round.
func spreads(rows []run.Evaluation) []evaluation {
	var to []evaluation
	for len(rows) > 0 {
		n := 1
		for n < len(rows) && rows[n].Round == rows[0].Round {
			n++
		}
		values := make([]float64, n)
		for i, r := range rows[:n] {
			values[i] = r.RelativeMAE
		}
		e := evaluation{round: rows[0].Round}
		copy(e.spread[:], quantiles(values, 0, 0.25, 0.5, 0.75, 1))
		if !math.IsNaN(e.spread[2]) {
			to = append(to, e)
		}
		rows = rows[n:]
	}
	return to
}
