package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"loadstar/internal/textfmt"
)

// worstClients is the number of clients in the table of the worst clients.
const worstClients = 10

// worst returns a table of the clients with the highest relative errors of the best method.
func (s *dataset) worst() []Table {
	m := s.best()
	if m == nil {
		return nil
	}
	relative := m.relative()
	type one struct {
		name  string
		value float64
	}
	var all []one
	for name, v := range relative {
		if !math.IsNaN(v) {
			all = append(all, one{name, v})
		}
	}
	if len(all) < 2 {
		return nil
	}
	slices.SortFunc(all, func(a, b one) int {
		return cmp.Or(byError(b.value, a.value), strings.Compare(a.name, b.name))
	})
	n := min(worstClients, len(all))
	t := Table{
		Title: fmt.Sprintf("The %d clients with the highest errors of %s", n, m.name), Note: "Relative to " + s.referenceName() + ". MAE and mean load are those of the first seed.",
		Columns: []string{"client", "relative MAE", "MAE, kW", "mean load, kW", "MAE of mean load"},
	}
	beside := s.besideStrongest(&t)
	scores := m.runs[0].clientsOf()
	for _, x := range all[:n] {
		c, ok := scores[x.name]
		if !ok {
			c.MAE, c.NMAE = math.NaN(), math.NaN()
		}
		row := []string{x.name, score(x.value), short(c.MAE), short(c.MAE / c.NMAE), percentFine(c.NMAE)}
		t.Rows = append(t.Rows, beside(row, x.name))
	}
	return []Table{t}
}

// besideStrongest adds a column with the relative MAE of the strongest baseline to a table of
// clients. It returns a function that adds a client's cell to a row.
func (s *dataset) besideStrongest(t *Table) func(row []string, client string) []string {
	b := s.strongest()
	if b == nil || s.repeats(b.name) {
		return func(row []string, _ string) []string { return row }
	}
	t.Columns = append(t.Columns, "relative MAE of "+b.name)
	theirs := b.relative()
	return func(row []string, client string) []string {
		v, ok := theirs[client]
		if !ok {
			v = math.NaN()
		}
		return append(row, score(v))
	}
}

// peaks returns a table of the errors at daily peaks and the bias.
func (s *dataset) peaks() []Table {
	t := Table{
		Title: "Daily peaks and bias", Note: "At the highest load of each day, relative to that load; the bias of all forecasts relative to the mean load. Means over clients. A positive bias means that forecasts are too high.",
		Columns: []string{"method", "error at peaks", "bias at peaks", "bias of all forecasts"},
	}
	for _, m := range s.trained() {
		if p := m.peakErrors(); !math.IsNaN(p.mae) {
			t.Rows = append(t.Rows, []string{m.label(), percentFine(p.mae), signedFine(p.bias), signedFine(p.all)})
		}
	}
	if len(t.Rows) == 0 {
		return nil
	}
	return []Table{t}
}

// uses returns a table of the scores of energies, sums and peaks, if a backtest has scored
// them.
func (s *dataset) uses() []Table {
	t := Table{
		Title:   "Energies, sums and peaks",
		Note:    "Of forecasts issued at midnight for the next 24 hours. Energies and sums are sums of means, and peaks a forecast of their own. Relative to last week's loads: below 1 is better. Bias relative to what happened.",
		Columns: []string{"method", "quantity", "median relative MAE", "mean", "bias", "P10 to P90 covers"},
	}
	names := map[string]string{"energy": "energy of a day, by client", "sum": "sum of all clients, by step", "peak": "highest load of a day, by client"}
	for _, m := range s.trained() {
		for _, u := range m.runs[0].uses {
			if u.Dataset == m.runs[0].Dataset {
				t.Rows = append(t.Rows, []string{m.label(), names[u.Quantity], score(u.RelativeMAE), score(u.RelativeMean), signedFine(u.Bias), percentFine(u.Coverage)})
			}
		}
	}
	if len(t.Rows) == 0 {
		return nil
	}
	if s.seeds() > 1 {
		t.Note += " One seed of each method."
	}
	return []Table{t}
}

func signedFine(v float64) string {
	if math.IsNaN(v) {
		return none
	}
	return strings.Replace(fmt.Sprintf("%+.1f\u00a0%%", 100*v), "-", "−", 1)
}

// calibrated returns the methods that forecast quantiles.
func (s *dataset) calibrated() []*method {
	return slices.DeleteFunc(s.trained(), func(m *method) bool { return len(m.runs[0].calibration) == 0 })
}

// levels returns the names of the quantiles that a method forecasts, in ascending order.
func (m *method) levels() []string {
	var to []string
	for _, c := range m.runs[0].calibration {
		if !slices.Contains(to, c.Level) {
			to = append(to, c.Level)
		}
	}
	return to
}

// nominal returns the share of loads that should be below a quantile, such as 10 for P10.
func nominal(level string) float64 {
	v, err := strconv.ParseFloat(strings.TrimPrefix(level, "P"), 64)
	if err != nil {
		return math.NaN()
	}
	return v
}

// calibration returns a chart of the shares of loads below each quantile.
func (s *dataset) calibration() (figure, bool) {
	all := s.calibrated()
	if len(all) == 0 {
		return figure{}, false
	}
	levels := all[0].levels()
	t := Table{Title: "Loads not above the quantile", Note: "in %, mean over clients, after calibration", Columns: []string{"quantile"}}
	var xs []num
	for _, l := range levels {
		xs = append(xs, num(nominal(l)))
		t.Rows = append(t.Rows, []string{l})
	}
	var lines []line
	var said []string
	for _, m := range all {
		if !slices.Equal(m.levels(), levels) {
			continue
		}
		l := line{Name: m.name, Look: m.look}
		t.Columns = append(t.Columns, m.name)
		for i := range levels {
			var seeds []float64
			for _, r := range m.runs {
				var shares []float64
				for _, c := range r.Clients {
					if 2*i+1 < len(c.Levels) {
						shares = append(shares, 100*c.Levels[2*i+1])
					}
				}
				seeds = append(seeds, mean(shares))
			}
			y := mean(seeds)
			l.Y = append(l.Y, num(y))
			t.Rows[i] = append(t.Rows[i], short(y))
			said = append(said, fmt.Sprintf("%s %s: %s %%", m.name, levels[i], short(y)))
		}
		lines = append(lines, l)
	}
	return figure{
		Kind: "lines", Layout: "narrow", Title: "Calibration by quantile", Tables: []Table{t},
		Caption: "Share of loads that are not above each quantile. On the dashed line, the share is as it should be." + omittedNote(lines),
		Alt:     "Line chart of the share of loads below each quantile. " + strings.Join(said, "; ") + ".",
		data: map[string]any{
			"x": xs, "at": levels, "series": shownLines(lines), "diagonal": true, "range": []num{0, 100}, "domain": []num{0, 100},
			"xLabel": "share that should be below, %", "xName": "", "yLabel": "↑ share that is below, %",
		},
	}, true
}

// coverageByHour returns a chart of the share of loads between the lowest and the highest
// quantile by hour of the day.
func (s *dataset) coverageByHour() (figure, bool) {
	all := s.calibrated()
	if len(all) == 0 || len(all[0].levels()) < 2 {
		return figure{}, false
	}
	levels := all[0].levels()
	low, high := levels[0], levels[len(levels)-1]
	want := nominal(high) - nominal(low)
	t := Table{Title: "Loads in the interval by hour", Note: "in %, mean over clients", Columns: []string{"hour"}}
	var xs []int
	var at []string
	for h := range 24 {
		xs, at = append(xs, h), append(at, fmt.Sprintf("%02d:00", h))
		t.Rows = append(t.Rows, []string{at[h]})
	}
	var lines []line
	least, most := want, want
	var said []string
	for _, m := range all {
		if !slices.Equal(m.levels(), levels) {
			continue
		}
		l := line{Name: m.name, Look: m.look}
		t.Columns = append(t.Columns, m.name)
		mine, where := math.Inf(1), 0
		for h := range 24 {
			var seeds []float64
			for _, r := range m.runs {
				share := map[string]float64{}
				for _, c := range r.calibration {
					if c.Hour == h {
						share[c.Level] = c.Share
					}
				}
				seeds = append(seeds, 100*(share[high]-share[low]))
			}
			y := mean(seeds)
			if y < mine {
				mine, where = y, h
			}
			least, most = min(least, y), max(most, y)
			l.Y = append(l.Y, num(y))
			t.Rows[h] = append(t.Rows[h], short(y))
		}
		lines = append(lines, l)
		said = append(said, fmt.Sprintf("%s is lowest at %s with %s %%", m.name, at[where], short(mine)))
	}
	return figure{
		Kind: "lines", Layout: "narrow", Title: "Coverage by hour of the day", Tables: []Table{t},
		Caption: fmt.Sprintf("Share of loads between %s and %s; the dashed line is the share that it should be, %s %%.", low, high, short(want)) + omittedNote(lines),
		Alt:     fmt.Sprintf("Line chart of the share of loads between %s and %s by hour. ", low, high) + strings.Join(said, "; ") + ".",
		data: map[string]any{
			"x": xs, "at": at, "series": shownLines(lines), "rule": num(want), "range": []num{num(max(math.Floor(least/10)*10-10, 0)), num(min(math.Ceil(most/10)*10+10, 100))},
			"clock": true, "ticks": []int{0, 3, 6, 9, 12, 15, 18, 21}, "xLabel": "hour of the day, " + s.clock(), "xName": "", "yLabel": "↑ loads in the interval, %",
		},
	}, true
}

// traffic returns a table of what clients receive and send. In a comparison of methods, a chart
// shows the same numbers.
func (s *dataset) traffic() []Table {
	all := s.trained()
	if len(all) != 1 || all[0].runs[0].summary == nil {
		return nil
	}
	r := all[0].runs[0]
	t := Table{Title: "What was sent", Note: "Weights only; raw readings stay with the clients. Updates of weights reveal something about readings: docs/privacy.md.", Columns: []string{"", "one client, one round", "one client, whole training", "all clients"}}
	turns := all[0].megabytes() * 1e6 / float64(max(r.summary.Down+r.summary.Up, 1))
	row := func(name string, bytes int64) {
		each := float64(bytes) * turns
		t.Rows = append(t.Rows, []string{name, size(float64(bytes)), size(each), size(each * float64(r.trained))})
	}
	row("received by clients", r.summary.Down)
	row("sent by clients", r.summary.Up)
	return []Table{t}
}

// size formats a number of bytes.
func size(bytes float64) string {
	switch {
	case bytes >= 1e9:
		return short(bytes/1e9) + "\u00a0GB"
	case bytes >= 1e6:
		return short(bytes/1e6) + "\u00a0MB"
	case bytes >= 1e3:
		return short(bytes/1e3) + "\u00a0kB"
	}
	return short(bytes) + "\u00a0B"
}

// findings returns a table of the participating clients and the problems in their data.
func (s *dataset) findings() []Table {
	r := s.drawnRun()
	if r == nil {
		r = s.trained()[0].runs[0]
	}
	t := Table{Title: "Who takes part", Columns: []string{"", "number", "note"}}
	unscored, few := 0, math.MaxInt
	most := 0
	for _, c := range r.Clients {
		unscored += b2i(c.Targets == 0)
		few, most = min(few, c.Targets), max(most, c.Targets)
	}
	t.Rows = append(t.Rows, []string{"clients that trained", fmt.Sprint(r.trained), ""})
	t.Rows = append(t.Rows, []string{"clients scored", fmt.Sprint(len(r.Clients) - unscored), fmt.Sprintf("%d to %d forecast values each", few, most)})
	if unscored > 0 {
		t.Rows = append(t.Rows, []string{"clients without a complete test window", fmt.Sprint(unscored), "they have no score; look for gaps with loadstar data check"})
	}
	if r.summary != nil && len(r.summary.LeftOut) > 0 {
		left := r.summary.LeftOut
		note := "no complete training example: " + strings.Join(left[:min(len(left), 5)], ", ")
		if len(left) > 5 {
			note += ", …"
		}
		t.Rows = append(t.Rows, []string{"meters left out", fmt.Sprint(len(left)), note})
	}
	var steps, missing, silent int
	for _, x := range r.excerpts {
		for i, v := range x.actual {
			steps++
			switch {
			case math.IsNaN(v):
				missing++
			case math.IsNaN(x.leads[0].values[i]):
				silent++
			}
		}
	}
	if steps > 0 {
		share := func(n int) string { return percentFine(float64(n) / float64(steps)) }
		t.Rows = append(t.Rows,
			[]string{"readings missing", share(missing), fmt.Sprintf("of the test split of the %s with curves", textfmt.Count(len(r.excerpts), "client"))},
			[]string{"readings without a forecast", share(silent), "mostly where readings before them are missing"})
	}
	return []Table{t}
}
