package report

import (
	"fmt"
	"slices"
	"strings"

	"loadstar/internal/textfmt"
	"loadstar/lab/run"
)

// The largest numbers of clients, meters, methods and rounds that a chart shows.
const (
	shownDots    = 400
	shownMeters  = 1500
	shownMethods = 10
	shownBoxes   = 8
	shownRounds  = 150
)

// group returns the part of the report about the dataset. share is the part of the page's
// values that its chart of forecasts may embed.
func (s *dataset) group(i int, share float64) group {
	trained := s.trained()
	r := trained[0].runs[0]
	g := group{ID: fmt.Sprintf("data-%d", i+1), Name: s.name, Generated: s.generated, Headline: s.headline()}
	clients := textfmt.Count(len(r.Clients), "client")
	if h := r.settings["evaluate.holdout"]; h != "" && h != "0" {
		clients += " held out from training"
		if s.seeds() > 1 {
			clients += ", different ones for each seed"
		}
	}
	g.About = fmt.Sprintf("%s, %s.", clients, textfmt.Count(len(trained), "trained method"))
	if n := len(s.methods) - len(trained); n > 0 {
		g.About = strings.TrimSuffix(g.About, ".") + fmt.Sprintf(" and %s.", textfmt.Count(n, "baseline"))
	}
	if seeds := s.seeds(); seeds > 1 {
		upTo := ""
		if slices.ContainsFunc(trained, func(m *method) bool { return len(m.runs) != seeds }) {
			upTo = "up to "
		}
		g.About += fmt.Sprintf(" Values are means over %s%d seeds, with the range in brackets.", upTo, seeds)
	}
	g.About += fmt.Sprintf(" Errors are relative to %s unless a table says otherwise.", s.referenceName())
	if n := s.sampledBaseline(); n > 0 {
		g.About += fmt.Sprintf(" Baselines were fitted for %d of %d clients.", n, len(r.Clients))
	}
	fan := func() (figure, bool) { return s.forecasts(share) }
	g.add("forecasts", "Forecasts", append(s.otherTables(), s.uses()...), fan)
	g.add("clients", "Error by client", s.worst(), s.skill)
	g.add("errors", "Error by lead and by hour", s.peaks(), s.byStep, s.byHour)
	g.add("intervals", "Intervals", nil, s.calibration, s.coverageByHour)
	g.add("training", "Training and traffic", s.traffic(), s.medians, s.convergence, s.losses, s.cost)
	for _, h := range s.grids {
		g.add("rates", "Learning rates", nil, func() (figure, bool) { return h.figure(), true })
	}
	g.add("fleet", "Clients and data", s.findings(), s.fleet)
	for _, one := range g.Sections {
		for j := range one.Figures {
			f := &one.Figures[j]
			f.ID, f.Generated = fmt.Sprintf("%s-%d", one.ID, j+1), s.generated
		}
	}
	return g
}

// add adds a section with the figures that can be drawn, unless the section would be empty.
func (g *group) add(id, title string, tables []Table, figures ...func() (figure, bool)) {
	one := section{ID: g.ID + "-" + id, Title: title, Tables: tables}
	for _, f := range figures {
		if f, ok := f(); ok {
			one.Figures = append(one.Figures, f)
		}
	}
	if n := len(g.Sections); n > 0 && g.Sections[n-1].ID == one.ID {
		g.Sections[n-1].Figures = append(g.Sections[n-1].Figures, one.Figures...)
	} else if len(one.Figures)+len(one.Tables) > 0 {
		g.Sections = append(g.Sections, one)
	}
}

// sampledBaseline returns the number of clients for which baselines were fitted, or 0 for all.
func (s *dataset) sampledBaseline() int {
	if b := s.strongest(); b != nil && len(b.scores) < len(s.trained()[0].runs[0].Clients) {
		return len(b.scores)
	}
	return 0
}

// meanRange formats the mean of the values, followed by their range if there are several.
func meanRange(values []float64) string {
	lo, hi := slices.Min(values), slices.Max(values)
	if len(values) < 2 || !(lo < hi) {
		return score(mean(values))
	}
	return fmt.Sprintf("%s (%s)", score(mean(values)), formatRange(lo, hi))
}

// formatRange formats a range so that a browser does not break the line within it.
func formatRange(lo, hi float64) string { return score(lo) + "\u2060–\u2060" + score(hi) }

// fleet returns a chart of the mean and the variability of each client's load.
func (s *dataset) fleet() (figure, bool) {
	all := slices.DeleteFunc(slices.Clone(s.trained()[0].runs[0].Clients), func(c run.Client) bool { return !(c.Level > 0 && c.Spread > 0) })
	if len(all) < 2 {
		return figure{}, false
	}
	slices.SortStableFunc(all, func(a, b run.Client) int { return byError(a.Level, b.Level) })
	var xs, ys []num
	var names []string
	for _, i := range thin(len(all), shownMeters) {
		xs, ys, names = append(xs, num(all[i].Level)), append(ys, num(all[i].Spread)), append(names, all[i].Client)
	}
	column := func(of func(run.Client) float64) []float64 {
		to := make([]float64, len(all))
		for i, c := range all {
			to[i] = of(c)
		}
		return quantiles(to, 0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)
	}
	level, spread := column(func(c run.Client) float64 { return c.Level }), column(func(c run.Client) float64 { return c.Spread })
	ratio := column(func(c run.Client) float64 { return c.Spread / c.Level })
	examples := column(func(c run.Client) float64 { return float64(c.Examples) })
	t := Table{Title: "Load statistics of the fleet", Note: "in the training period", Columns: []string{"clients", "mean, kW", "std. deviation, kW", "std. deviation / mean", "examples"}}
	for i, name := range []string{"minimum", "5 %", "25 %", "median", "75 %", "95 %", "maximum"} {
		t.Rows = append(t.Rows, []string{name, short(level[i]), short(spread[i]), short(ratio[i]), short(examples[i])})
	}
	f := figure{
		Kind: "fleet", Tables: []Table{t},
		Title:   fmt.Sprintf("Size of the clients: mean loads from %s to %s kW", short(level[0]), short(level[6])),
		Caption: "Mean and standard deviation of each client's load, log scales. The dashed lines mark standard deviations equal to the mean and to a tenth of it.",
		Alt:     fmt.Sprintf("Scatter chart of mean load and standard deviation of %s; means from %s to %s kW with median %s.", textfmt.Count(len(all), "client"), short(level[0]), short(level[6]), short(level[3])),
		data:    map[string]any{"x": xs, "y": ys, "names": names},
	}
	if len(names) < len(all) {
		f.Caption += fmt.Sprintf(" The chart shows a sample of %d of %d clients, evenly spaced by mean load.", len(names), len(all))
	}
	return f, true
}
