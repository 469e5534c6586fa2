package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// skill returns a chart of the distribution of the relative MAE over clients, by method.
func (s *dataset) skill() (figure, bool) {
	t := Table{
		Title:   "Test scores",
		Note:    "Relative to " + s.referenceName() + ": the mean absolute error divided by that of " + s.about() + ", so a value below 1 is better. The columns 5–95 % and below 1 are over clients.",
		Columns: []string{"method", "median relative MAE", "mean", "5–95\u00a0%", "below 1", "mean MAE, kW", "of the mean load", "median"},
		Best:    1,
	}
	b := boxes{lo: math.Inf(1), lowest: math.Inf(1)}
	for _, m := range s.methods {
		scores := m.relative()
		all := slices.Collect(maps.Values(scores))
		q := quantiles(all, 0.05, 0.25, 0.5, 0.75, 0.95, 0.01, 0.99)
		if math.IsNaN(q[2]) {
			continue
		}
		share := m.belowOne()
		// Many boxes would be hard to read. The table contains all methods.
		if !(m.baseline && s.repeats(m.name)) && (len(b.rows) < shownBoxes || m == s.strongest()) {
			b.add(m, scores, q)
		}
		t.Rows = append(t.Rows, []string{
			m.label(), meanRange(m.medians()), score(mean(all)), formatRange(q[0], q[4]),
			percent(share), short(m.mae()), percentFine(m.nmae(mean)), percentFine(m.nmae(median)),
		})
	}
	if len(b.rows) == 0 {
		return figure{}, false
	}
	s.addCoverage(&t)
	t.Note += divergence(s.methods)
	beyond := b.limit()
	f := figure{
		Kind: "box", Tables: []Table{t}, Layout: "wide",
		Title:   "Error per client by method: " + b.rows[0].Name + " has the lowest median error",
		Caption: "Boxes show the quartiles and the median over clients, whiskers the 5 % and 95 % quantiles. Each dot is a client",
		Alt:     "Box and strip chart of the relative MAE per client. " + strings.Join(b.said, "; ") + ".",
		data:    map[string]any{"series": b.rows, "names": b.names, "domain": []num{num(b.lo), num(b.hi)}, "value": "relative MAE", "one": true, "xLabel": "test relative MAE, log scale (lower is better)"},
	}
	if len(b.rows) == 1 {
		f.Title = fmt.Sprintf("Error per client: better than %s for %s of clients", s.about(), t.Rows[0][4])
		f.Tables[0].Best = 0
	}
	if s.seeds() > 1 {
		f.Caption += ", as a mean over seeds"
	}
	f.Caption += ". The dashed line is the error of " + s.about() + "."
	most := 0
	for _, m := range b.drawn {
		most = max(most, m.scored())
	}
	if most > len(b.names) {
		f.Caption += fmt.Sprintf(" Dots show %d of %d clients, evenly spaced by the error of %s; boxes show all clients.", len(b.names), most, b.drawn[0].name)
	}
	if n := len(t.Rows); n > shownBoxes {
		f.Caption += fmt.Sprintf(" The chart shows %d of %d methods, those with the lowest errors and the strongest baseline; the table has all.", len(b.rows), n)
	}
	if beyond > 0 {
		f.Caption += " The numbers with arrows count the clients beyond the axis."
	}
	return f, true
}

// boxes are the rows of a chart of boxes.
type boxes struct {
	rows           []boxRow
	drawn          []*method // methods of the rows
	names          []string  // clients that are dots
	said           []string  // the rows described in words
	lo, hi, lowest float64   // the axis, and the lowest median
}

type boxRow struct {
	Name  string `json:"name"`
	Look  int    `json:"look"`
	Q     []num  `json:"q"`
	V     []num  `json:"v"`
	N     []int  `json:"n"`
	Above int    `json:"above"`
	Below int    `json:"below"`
}

// add adds the row of a method with its quantiles.
func (b *boxes) add(m *method, scores map[string]float64, q []float64) {
	b.lo, b.hi, b.lowest = min(b.lo, q[5]), max(b.hi, q[6]), min(b.lowest, q[2])
	if b.names == nil {
		b.names = sample(scores, shownDots)
	}
	r := boxRow{Name: m.name, Look: m.look, Q: nums(q[:5])}
	if m.baseline {
		r.Name += " (baseline)"
	}
	for i, name := range b.names {
		if v, ok := scores[name]; ok {
			r.V, r.N = append(r.V, num(v)), append(r.N, i)
		}
	}
	b.rows, b.drawn = append(b.rows, r), append(b.drawn, m)
	b.said = append(b.said, fmt.Sprintf("%s: median %s, %s of clients below 1", m.name, short(m.median()), percent(m.belowOne())))
}

// limit sets the ends of the axis, and counts the clients beyond them.
func (b *boxes) limit() (beyond int) {
	// A method that diverged must not compress the distributions of other methods.
	b.hi = min(b.hi, 20*max(1, b.lowest))
	b.lo = max(b.lo, b.hi/1e4, 1e-6)
	b.lo, b.hi = min(b.lo, 0.9)/1.05, max(b.hi, 1.1)*1.05
	for k, m := range b.drawn {
		for _, v := range m.relative() {
			b.rows[k].Above += b2i(v > b.hi)
			b.rows[k].Below += b2i(v < b.lo)
		}
		beyond += b.rows[k].Above + b.rows[k].Below
	}
	return beyond
}

// addCoverage adds the coverage of forecast intervals to a table with a row per method, if
// any method forecasts intervals.
func (s *dataset) addCoverage(t *Table) {
	var cells [][]string
	some := false
	for _, m := range s.methods {
		if math.IsNaN(m.median()) {
			continue
		}
		model, calibrated := m.coverage()
		some = some || !math.IsNaN(model)
		cells = append(cells, []string{percentFine(model), percentFine(calibrated)})
	}
	if !some {
		return
	}
	t.Columns = append(t.Columns, "loads in interval", "calibrated")
	for i := range t.Rows {
		t.Rows[i] = append(t.Rows[i], cells[i]...)
	}
	t.Note += " Loads in interval: between the lowest and the highest quantile, before and after calibration."
}

func percentFine(v float64) string {
	if math.IsNaN(v) {
		return none
	}
	return fmt.Sprintf("%.1f\u00a0%%", 100*v)
}

// sample returns the names of at most n clients, at evenly spaced ranks of their scores.
// It leaves out clients without a score.
func sample(scores map[string]float64, n int) []string {
	var names []string
	for name, v := range scores {
		if !math.IsNaN(v) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		if c := byError(scores[a], scores[b]); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	var to []string
	for _, i := range thin(len(names), n) {
		to = append(to, names[i])
	}
	return to
}

// cost returns a chart of each method's median relative MAE against its traffic.
func (s *dataset) cost() (figure, bool) {
	type dot struct {
		Name string `json:"name"`
		Look int    `json:"look"`
		X    num    `json:"x"`
		Y    num    `json:"y"`
		Low  num    `json:"low"`
		High num    `json:"high"`
	}
	t := Table{Title: "Traffic", Columns: []string{"method", "MB per client", "MB total", "rounds", "median relative MAE"}}
	var dots []dot
	var said []string
	for _, m := range s.methods {
		medians := m.medians()
		if math.IsNaN(m.median()) {
			continue
		}
		mb := m.megabytes()
		dots = append(dots, dot{m.name, m.look, num(mb), num(m.median()), num(slices.Min(medians)), num(slices.Max(medians))})
		rounds, all := none, 0.0
		if !m.baseline {
			rounds, all = fmt.Sprint(m.runs[0].rounds), mb*float64(m.runs[0].trained)
		}
		t.Rows = append(t.Rows, []string{m.label(), short(mb), short(all), rounds, score(m.median())})
		said = append(said, fmt.Sprintf("%s: %s MB, median relative MAE %s", m.name, short(mb), short(m.median())))
	}
	if len(s.trained()) < 2 || len(dots) > 2*shownMethods {
		return figure{}, false // the traffic table already shows it
	}
	t.Note = strings.TrimSpace(divergence(s.methods))
	caption := "Data sent and received by an average client in the whole training; lower left is better. Local training sends no data."
	if s.seeds() > 1 {
		caption += " Bars show the range over seeds."
	}
	if len(s.trained()) < len(s.methods) {
		caption += " Crosses are baselines."
	}
	return figure{
		Kind: "cost", Title: "Traffic and forecast error by method", Tables: []Table{t},
		Caption: caption,
		Alt:     "Scatter chart of megabytes per client and median relative MAE. " + strings.Join(said, "; ") + ".",
		data:    map[string]any{"points": dots, "xLabel": "sent and received, MB per client"},
	}, true
}
