package report

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"loadstar/lab/run"
	"loadstar/metric"
)

// Run has the data of a finished run that a report needs.
type Run struct {
	Dataset   string
	Generated bool
	Method    string // the plan's name
	Algorithm string
	Seed      uint64
	Clients   []run.Client
	// Reference is the forecast to which the relative MAE refers, such as last-week.
	Reference string

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

// excerpt is two weeks of one client's forecasts.
type excerpt struct {
	client         string
	start          int64 // Unix time in seconds
	interval       int64
	actual, before []float64
	leads          []lead
	// mae is the error of the forecasts, and weekMAE that of repeating the load of a week
	// before. Both are over the whole test split and all forecast steps.
	mae, weekMAE float64
}

// lead has the forecasts of an excerpt that have the same lead time.
type lead struct {
	// steps and until are the shortest and the longest lead time in steps; 1 is the first
	// target.
	steps, until int
	values       []float64
	// low and high are P10 and P90. They are NaN if the model does not forecast them.
	low, high []float64
}

// Baseline has the scores of a baseline for one client.
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
	forecasts, err := run.Read[run.Forecast](dir, "forecasts")
	if err != nil {
		return nil, err
	}
	r.excerpts = excerpts(forecasts)
	return r, nil
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

const (
	excerptLength = 14 * 24 * time.Hour
	excerptPoints = 1400 // more points than a chart has pixels across
	shownClients  = 6
)

// excerpts returns two weeks from the middle of each client's forecasts, for at most
// shownClients clients.
func excerpts(rows []run.Forecast) []excerpt {
	var to []excerpt
	for len(rows) > 0 {
		n := 1
		for n < len(rows) && rows[n].Client == rows[0].Client {
			n++
		}
		to = append(to, cut(rows[:n]))
		rows = rows[n:]
	}
	if len(to) > shownClients {
		var some []excerpt
		for _, i := range thin(len(to), shownClients) {
			some = append(some, to[i])
		}
		to = some
	}
	return to
}

func cut(rows []run.Forecast) excerpt {
	s := excerpt{client: rows[0].Client}
	var errs, week metric.Point
	times := make([]int64, 0, len(rows))
	var cutoffs []int64
	distances := map[int64]bool{}
	for _, r := range rows {
		times = append(times, r.Time.Unix())
		cutoffs = append(cutoffs, r.Cutoff.Unix())
		distances[r.Time.Unix()-r.Cutoff.Unix()] = true
		// Ignore the error: the means omit values that cannot be scored, but the chart
		// shows them.
		_ = errs.Add(r.Forecast, r.Actual, math.NaN())
		if !math.IsNaN(r.LastWeek) {
			_ = week.Add(r.LastWeek, r.Actual, math.NaN())
		}
	}
	s.mae, s.weekMAE = errs.MAE(), week.MAE()
	slices.Sort(times)
	times = slices.Compact(times)
	s.interval = closest(times, 3600)
	slices.Sort(cutoffs)
	stride := closest(slices.Compact(cutoffs), s.interval)
	points := min(int64(excerptLength/time.Second)/s.interval, excerptPoints)
	first, last := times[0], times[len(times)-1]
	s.start = first
	if spare := (last-first)/s.interval + 1 - points; spare > 0 {
		s.start += spare / 2 * s.interval
	}
	points = min(points, (last-s.start)/s.interval+1)
	gaps := func() []float64 {
		to := make([]float64, points)
		for i := range to {
			to[i] = math.NaN()
		}
		return to
	}
	s.actual, s.before = gaps(), gaps()
	// Show only the forecasts for the first and the last step. If forecasts are made every
	// few steps only, show as many steps of each forecast, so that no time lacks one.
	all := make([]int64, 0, len(distances))
	for d := range distances {
		all = append(all, d)
	}
	slices.Sort(all)
	shortest, longest := all[0], all[len(all)-1]
	ends := slices.Compact([]int64{shortest, max(longest-stride+s.interval, shortest)})
	for _, d := range ends {
		l := lead{steps: int((d-shortest)/s.interval) + 1, values: gaps(), low: gaps(), high: gaps()}
		l.until = int((min(d+stride-s.interval, longest)-shortest)/s.interval) + 1
		s.leads = append(s.leads, l)
	}
	for _, r := range rows {
		i := (r.Time.Unix() - s.start) / s.interval
		if r.Time.Unix() < s.start || i >= points {
			continue
		}
		s.actual[i], s.before[i] = r.Actual, r.LastWeek
		for k, d := range ends {
			if ahead := r.Time.Unix() - r.Cutoff.Unix(); ahead >= d && ahead < d+stride {
				s.leads[k].values[i], s.leads[k].low[i], s.leads[k].high[i] = r.Forecast, r.P10, r.P90
			}
		}
	}
	return s
}

// closest returns the smallest distance between two consecutive times, or otherwise if
// there are fewer than two.
func closest(times []int64, otherwise int64) int64 {
	for i := 1; i < len(times); i++ {
		if d := times[i] - times[i-1]; i == 1 || d < otherwise {
			otherwise = d
		}
	}
	return otherwise
}
