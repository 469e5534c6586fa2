package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"loadstar/lab/run"
)

// dataset contains all methods, both trained methods and baselines, that were scored on one
// dataset, with errors relative to the same reference.
type dataset struct {
	name      string
	reference string
	generated bool
	methods   []*method // sorted by median relative MAE, lowest first
	grids     []HeatMap
	beside    *run.Beside // curves and profiles of baselines, or nil
}

// method contains the runs of one plan with different seeds, or the scores of a baseline.
type method struct {
	name     string
	look     int // index of colour and symbol in all datasets; -1 for baselines
	baseline bool
	runs     []*Run
	scores   []Baseline // only set for baselines
}

// label returns the name of the method in tables, with a mark if one of its runs diverged.
func (m *method) label() string {
	if slices.ContainsFunc(m.runs, func(r *Run) bool { return r.diverged }) {
		return m.name + " †"
	}
	return m.name
}

// divergence returns a note that explains the marks, if any method has one.
func divergence(methods []*method) string {
	var lost []string
	for _, m := range methods {
		for _, r := range m.runs {
			if r.diverged {
				lost = append(lost, fmt.Sprintf("%s (seed %d)", m.name, r.Seed))
			}
		}
	}
	if len(lost) == 0 {
		return ""
	}
	return " † Training diverged: the validation loss ended at ten times its lowest value or more in " + strings.Join(lost, ", ") + "."
}

// groupRuns groups runs by dataset, reference and plan. Duplicate runs are ignored, even if
// their plans differ in their names. The baselines in a run's folder are added to the dataset's
// baselines.
func groupRuns(runs []*Run, baselines []Baseline) []*dataset {
	var sets []*dataset
	byName := map[string]*dataset{}
	byPlan := map[string]*method{}
	for _, r := range runs {
		place := r.Dataset + "\x00" + r.Reference
		s := byName[place]
		if s == nil {
			s = &dataset{name: r.Dataset, reference: r.Reference}
			byName[place] = s
			sets = append(sets, s)
		}
		s.generated = s.generated || r.Generated
		key := place + "\x00" + r.signature("seed", "data", "name")
		m := byPlan[key]
		if m == nil {
			m = &method{name: r.Method}
			byPlan[key] = m
			s.methods = append(s.methods, m)
		}
		if !slices.ContainsFunc(m.runs, func(x *Run) bool { return x.Seed == r.Seed }) {
			m.runs = append(m.runs, r)
		}
	}
	for _, r := range runs {
		var mine []Baseline
		for _, b := range r.beside.Scores {
			if !slices.ContainsFunc(baselines, func(x Baseline) bool {
				return x.Dataset == r.Dataset && x.Method == b.Method && x.Reference == b.Reference
			}) {
				mine = append(mine, Baseline{r.Dataset, b})
			}
		}
		baselines = append(slices.Clip(baselines), mine...)
	}
	for _, b := range baselines {
		s := byName[b.Dataset+"\x00"+b.Reference]
		if s == nil {
			continue
		}
		i := slices.IndexFunc(s.methods, func(m *method) bool { return m.baseline && m.name == b.Method })
		if i < 0 {
			i = len(s.methods)
			s.methods = append(s.methods, &method{name: b.Method, baseline: true})
		}
		s.methods[i].scores = append(s.methods[i].scores, b)
	}
	for _, s := range sets {
		s.foldGrids()
		s.disambiguate()
		for _, m := range s.methods {
			for _, r := range m.runs {
				if s.beside == nil && len(r.beside.Scores) > 0 {
					s.beside = &r.beside
				}
			}
		}
	}
	names := map[string]int{}
	for _, s := range sets {
		names[s.name]++
	}
	looks := map[string]int{}
	for _, s := range sets {
		if names[s.name] > 1 {
			s.name += ", errors relative to " + s.reference
		}
		for _, m := range s.methods {
			if m.look = -1; m.baseline {
				continue
			}
			i, ok := looks[m.name]
			if !ok {
				i = len(looks)
				looks[m.name] = i
			}
			m.look = i
		}
		slices.SortStableFunc(s.methods, func(a, b *method) int { return byError(a.median(), b.median()) })
	}
	return sets
}

// byError compares two errors for sorting in ascending order, with NaN last.
func byError(a, b float64) int {
	if math.IsNaN(a) || math.IsNaN(b) {
		return cmp.Compare(b2i(math.IsNaN(a)), b2i(math.IsNaN(b)))
	}
	return cmp.Compare(a, b)
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// signature returns, as text, all settings of the plan except for the given ones. Equal
// settings give equal text.
func (r *Run) signature(without ...string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(r.settings)) {
		if !slices.Contains(without, k) {
			fmt.Fprintf(&b, "%s=%s\n", k, r.settings[k])
		}
	}
	return b.String()
}

// differing returns the settings in which plans differ, except for name, seed and data. A
// missing section is not a difference, because a plan's algorithm determines which sections the
// plan has.
func differing(plans []map[string]string) []string {
	keys := map[string]bool{}
	sections := make([]map[string]bool, len(plans))
	section := func(key string) string {
		name, _, _ := strings.Cut(key, ".")
		return name
	}
	for i, p := range plans {
		sections[i] = map[string]bool{}
		for k := range p {
			keys[k], sections[i][section(k)] = true, true
		}
	}
	var to []string
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		if k == "name" || k == "seed" || k == "data" {
			continue
		}
		values := map[string]bool{}
		for i, p := range plans {
			if sections[i][section(k)] || !strings.Contains(k, ".") {
				values[p[k]] = true
			}
		}
		if len(values) > 1 {
			to = append(to, k)
		}
	}
	return to
}

// disambiguate distinguishes methods with the same name by appending the settings in which they
// differ to their names.
func (s *dataset) disambiguate() {
	same := map[string][]*method{}
	for _, m := range s.methods {
		if !m.baseline {
			same[m.name] = append(same[m.name], m)
		}
	}
	for _, all := range same {
		if len(all) < 2 {
			continue
		}
		var plans []map[string]string
		for _, m := range all {
			plans = append(plans, m.runs[0].settings)
		}
		for i, m := range all {
			var parts []string
			for _, k := range differing(plans) {
				parts = append(parts, k+" "+cmp.Or(plans[i][k], none))
			}
			m.name += " (" + strings.Join(parts, ", ") + ")"
		}
	}
}

// The two settings that a learning-rate grid varies.
const clientRate, serverRate = "client.lr", "server.lr"

// foldGrids replaces plans that differ only in their learning rates with a heat map and the
// best of them. The best plan has the lowest error on the validation split if all were
// evaluated, because the test split must not be used for selection.
func (s *dataset) foldGrids() {
	families := map[string][]*method{}
	var order []string
	for _, m := range s.methods {
		if m.baseline {
			continue
		}
		key := m.runs[0].signature("seed", "data", "name", clientRate, serverRate)
		if families[key] == nil {
			order = append(order, key)
		}
		families[key] = append(families[key], m)
	}
	for _, key := range order {
		all := families[key]
		xs, ys := rates(all, clientRate), rates(all, serverRate)
		if len(xs) < 2 || len(ys) < 2 {
			continue
		}
		h := HeatMap{
			Title: fmt.Sprintf("%s: error by learning rates", all[0].runs[0].Algorithm),
			X:     "client learning rate", Y: "server learning rate", Value: "median relative MAE, test split",
			XLabels: xs, YLabels: ys, Generated: s.generated,
		}
		for range ys {
			row := make([]float64, len(xs))
			for i := range row {
				row[i] = math.NaN()
			}
			h.Values = append(h.Values, row)
		}
		validated := !slices.ContainsFunc(all, func(m *method) bool { return math.IsNaN(m.validation()) })
		chosenBy, chosen := (*method).median, "on the test split, because not all were evaluated on the validation split"
		if validated {
			chosenBy, chosen = (*method).validation, "on the validation split"
		}
		best := all[0]
		for _, m := range all {
			i, j := slices.Index(xs, m.runs[0].settings[clientRate]), slices.Index(ys, m.runs[0].settings[serverRate])
			h.Values[j][i] = m.median()
			if byError(chosenBy(m), chosenBy(best)) < 0 {
				best = m
			}
		}
		h.Note = fmt.Sprintf("The other charts show %s with its best pair %s: client %s, server %s.",
			best.runs[0].Algorithm, chosen, best.runs[0].settings[clientRate], best.runs[0].settings[serverRate])
		s.grids = append(s.grids, h)
		s.methods = slices.DeleteFunc(s.methods, func(m *method) bool { return m != best && slices.Contains(all, m) })
		best.name = fmt.Sprintf("%s, best of %d rates", best.runs[0].Algorithm, len(all))
	}
}

// rates returns the distinct values of a setting among the methods, in ascending order.
func rates(all []*method, key string) []string {
	var to []string
	for _, m := range all {
		if v := m.runs[0].settings[key]; v != "" && !slices.Contains(to, v) {
			to = append(to, v)
		}
	}
	slices.SortFunc(to, func(a, b string) int {
		x, _ := strconv.ParseFloat(a, 64)
		y, _ := strconv.ParseFloat(b, 64)
		return cmp.Compare(x, y)
	})
	return to
}

// perRun returns one number per run: the result of the function of for the values of the run's
// clients.
func (m *method) perRun(of func([]float64) float64, value func(run.Client) float64) []float64 {
	var to []float64
	for _, r := range m.runs {
		values := make([]float64, len(r.Clients))
		for i, c := range r.Clients {
			values[i] = value(c)
		}
		to = append(to, of(values))
	}
	return to
}

// about describes the reference of the relative MAE.
func (s *dataset) about() string {
	switch s.reference {
	case "last-week":
		return "the load at the same time a week before"
	case "last-day":
		return "the load at the same time a day before"
	}
	return "repeating the last known load"
}

// coverage returns the share of loads in the forecast interval, averaged over clients and
// seeds, before and after calibration. It is NaN if the model forecasts only points.
func (m *method) coverage() (model, calibrated float64) {
	return mean(m.perRun(mean, func(c run.Client) float64 { return c.Coverage })),
		mean(m.perRun(mean, func(c run.Client) float64 { return c.CalibratedCoverage }))
}

// medians returns the median relative MAE of each seed.
func (m *method) medians() []float64 {
	if m.baseline {
		return []float64{median(m.column(func(b Baseline) float64 { return b.RelativeMAE }))}
	}
	return m.perRun(median, func(c run.Client) float64 { return c.RelativeMAE })
}

func (m *method) median() float64 { return mean(m.medians()) }

// belowOne returns the share of clients with a relative MAE below 1.
func (m *method) belowOne() float64 {
	share := func(values []float64) float64 {
		some := ordered(values)
		below, _ := slices.BinarySearch(some, 1)
		return float64(below) / float64(len(some))
	}
	if m.baseline {
		return share(m.column(func(b Baseline) float64 { return b.RelativeMAE }))
	}
	return mean(m.perRun(share, func(c run.Client) float64 { return c.RelativeMAE }))
}

// validation returns the median relative MAE of the last evaluation, averaged over seeds.
func (m *method) validation() float64 {
	var all []float64
	for _, r := range m.runs {
		if len(r.evaluations) == 0 {
			return math.NaN()
		}
		all = append(all, r.evaluations[len(r.evaluations)-1].spread[2])
	}
	return mean(all)
}

func (m *method) column(value func(Baseline) float64) []float64 {
	to := make([]float64, len(m.scores))
	for i, b := range m.scores {
		to[i] = value(b)
	}
	return to
}

// relative returns the relative MAE of each client, averaged over the seeds that scored it.
// Seeds may hold out different clients.
func (m *method) relative() map[string]float64 {
	to := map[string]float64{}
	if m.baseline {
		for _, b := range m.scores {
			to[b.Client] = b.RelativeMAE
		}
		return to
	}
	seeds := map[string]float64{}
	for _, r := range m.runs {
		for _, c := range r.Clients {
			to[c.Client] += c.RelativeMAE
			seeds[c.Client]++
		}
	}
	for client := range to {
		to[client] /= seeds[client]
	}
	return to
}

func (m *method) mae() float64 {
	if m.baseline {
		return mean(m.column(func(b Baseline) float64 { return b.MAE }))
	}
	return mean(m.perRun(mean, func(c run.Client) float64 { return c.MAE }))
}

// nmae returns the clients' errors divided by their mean loads, as a mean or a median over
// clients. Clients whose mean load is zero are omitted.
func (m *method) nmae(over func([]float64) float64) float64 {
	finite := func(all []float64) float64 {
		return over(slices.DeleteFunc(slices.Clone(all), func(x float64) bool { return math.IsInf(x, 0) || math.IsNaN(x) }))
	}
	if m.baseline {
		return finite(m.column(func(b Baseline) float64 { return b.NMAE }))
	}
	return mean(m.perRun(finite, func(c run.Client) float64 { return c.NMAE }))
}

// megabytes returns how many megabytes an average client sends and receives in the whole
// training.
func (m *method) megabytes() float64 {
	sum := 0.0
	for _, r := range m.runs {
		sum += float64(r.bytes) / 1e6 / float64(max(r.trained, 1)) / float64(len(m.runs))
	}
	return sum
}

// trained returns the methods that are not baselines.
func (s *dataset) trained() []*method {
	return slices.DeleteFunc(slices.Clone(s.methods), func(m *method) bool { return m.baseline })
}

// seeds returns the largest number of seeds that any method has.
func (s *dataset) seeds() int {
	n := 0
	for _, m := range s.methods {
		n = max(n, len(m.runs))
	}
	return n
}

// Representatives returns the best run of each dataset and task. Its baselines are also
// used for the other runs of the task.
func Representatives(runs []*Run) []*Run {
	var to []*Run
	at := map[string]int{}
	for _, r := range runs {
		key := strings.Join([]string{
			r.Dataset, r.Data, r.Reference, r.settings["model.horizon"], r.settings["model.targets"], r.settings["evaluate.stride"],
			r.settings["model.split.train"], r.settings["model.split.validation"],
		}, "\x00")
		i, ok := at[key]
		switch {
		case !ok:
			at[key] = len(to)
			to = append(to, r)
		case len(to[i].beside.Scores) > 0: // an earlier choice, which is kept
		case len(r.beside.Scores) > 0 || byError(r.median(), to[i].median()) < 0:
			to[i] = r
		}
	}
	return to
}

// median returns the median relative MAE over the run's clients.
func (r *Run) median() float64 {
	m := method{runs: []*Run{r}}
	return m.median()
}

// HasBaselines reports whether the run's folder contains the scores of all the named baselines.
func (r *Run) HasBaselines(names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		return !slices.ContainsFunc(r.beside.Scores, func(b run.Baseline) bool { return b.Method == name })
	})
}

// WithoutBaselines removes the baselines of runs from the report.
func (r *Report) WithoutBaselines() {
	r.Baselines = nil
	for _, one := range r.Runs {
		one.beside = run.Beside{}
	}
}
