package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// line is one method's line in a line chart.
type line struct {
	Name string `json:"name"`
	Look int    `json:"look"`
	Y    []num  `json:"y"`
	Low  []num  `json:"low,omitempty"`
	High []num  `json:"high,omitempty"`
}

// The smallest numbers of evaluations for a chart of medians and for a chart of distributions,
// and the largest number of methods in the latter.
const (
	fewest       = 3
	fewestPanels = 5
	mostPanels   = 4
)

// shownLines returns the lines that a chart shows: the first shownMethods lines, which have the
// lowest errors. More lines would be hard to distinguish.
func shownLines(all []line) []line { return all[:min(len(all), shownMethods)] }

// omittedNote returns a note about the lines that a chart omits, or "" if it shows all.
func omittedNote(all []line) string {
	if len(all) <= shownMethods {
		return ""
	}
	return fmt.Sprintf(" The chart shows the %d methods of %d with the lowest test errors.", shownMethods, len(all))
}

// medians returns a chart of the median relative MAE after each evaluated round, with one
// line per method.
func (s *dataset) medians() (figure, bool) {
	t := Table{Title: "Median relative MAE during training", Note: "on a sample of validation windows"}
	var all []*method
	set := map[int]bool{}
	shares := s.differentRounds()
	for _, m := range s.trained() {
		if len(m.rounds()) > 0 {
			all = append(all, m)
			for _, r := range m.rounds() {
				set[m.when(r, shares)] = true
			}
		}
	}
	rounds := thinned(set)
	if len(all) == 0 || len(rounds) < fewest {
		return figure{}, false
	}
	var lines []line
	var said []string
	highest, lowest := 0.0, math.Inf(1)
	label, name := "rounds done", "round"
	t.Columns = []string{"rounds"}
	if shares {
		label, name = "rounds done, % of the method's total", "% of rounds:"
		t.Columns = []string{"rounds, %"}
	}
	shown := thin(len(rounds), 6)
	for _, i := range shown {
		t.Rows = append(t.Rows, []string{fmt.Sprint(rounds[i])})
	}
	for _, m := range all {
		l := line{Name: m.name, Look: m.look}
		several := len(m.runs) > 1
		var last float64
		for i, r := range rounds {
			v := m.at(r, shares)
			mid := math.NaN()
			if len(v) > 0 {
				mid = mean(v)
				highest, lowest, last = max(highest, mid), min(lowest, mid), mid
			}
			l.Y = append(l.Y, num(mid))
			if several {
				lo, hi := math.NaN(), math.NaN()
				if len(v) > 0 {
					lo, hi = slices.Min(v), slices.Max(v)
				}
				l.Low, l.High = append(l.Low, num(lo)), append(l.High, num(hi))
			}
			if k := slices.Index(shown, i); k >= 0 {
				t.Rows[k] = append(t.Rows[k], score(mid))
			}
		}
		t.Columns = append(t.Columns, m.name)
		lines = append(lines, l)
		said = append(said, fmt.Sprintf("%s ends at %s", m.name, short(last)))
	}
	caption := "Median relative MAE over clients, on a sample of validation windows."
	if s.seeds() > 1 {
		caption = strings.TrimSuffix(caption, ".") + "; bands show the range over seeds."
	}
	caption += omittedNote(lines)
	return figure{
		Kind: "lines", Title: "Median error by round", Tables: []Table{t},
		Caption: caption,
		Alt:     "Line chart of the median validation relative MAE by round. " + strings.Join(said, "; ") + ".",
		data: map[string]any{
			"x": rounds, "series": shownLines(lines), "log": highest > 4*lowest, "one": true,
			"xLabel": label, "xName": name, "yLabel": "↑ median relative MAE, validation", "fromZero": true,
		},
	}, true
}

// rounds returns the numbers of the rounds after which the method was evaluated.
func (m *method) rounds() []int {
	var to []int
	for _, e := range m.runs[0].evaluations {
		to = append(to, e.round)
	}
	return to
}

// differentRounds reports whether the methods' numbers of rounds differ too much for a
// common axis. Asynchronous methods have many more rounds than synchronous ones, because they
// merge only one update at a time.
func (s *dataset) differentRounds() bool {
	least, most := math.MaxInt, 0
	for _, m := range s.trained() {
		if r := m.rounds(); len(r) > 0 {
			least, most = min(least, slices.Max(r)), max(most, slices.Max(r))
		}
	}
	return most > 2*least && least > 0
}

// when returns the position of a round on the axis: its number or, if share is true, its
// percentage of the method's rounds.
func (m *method) when(round int, share bool) int {
	if !share {
		return round
	}
	return int(math.Round(100 * float64(round) / float64(slices.Max(m.rounds()))))
}

// at returns the median relative MAE of each seed at the given position of the axis.
func (m *method) at(when int, share bool) []float64 {
	var to []float64
	for _, r := range m.runs {
		for _, e := range r.evaluations {
			if m.when(e.round, share) == when {
				to = append(to, e.spread[2])
			}
		}
	}
	return to
}

func thinned(set map[int]bool) []int {
	all := slices.Sorted(maps.Keys(set))
	var to []int
	for _, i := range thin(len(all), shownRounds) {
		to = append(to, all[i])
	}
	return to
}

// convergence returns a chart of the distribution of the relative MAE over clients, by round.
func (s *dataset) convergence() (figure, bool) {
	type panel struct {
		Name  string  `json:"name"`
		Look  int     `json:"look"`
		Round []int   `json:"round"`
		Q     [][]num `json:"q"`
	}
	t := Table{Title: "Relative MAE over clients at the last evaluation", Columns: []string{"method", "rounds", "minimum", "lower quartile", "median", "upper quartile", "maximum"}}
	var panels []panel
	var said []string
	lo, hi, lowest := math.Inf(1), 0.0, math.Inf(1)
	first, last := math.MaxInt, 0
	for _, m := range s.trained() {
		rounds := m.rounds()
		if len(rounds) == 0 {
			continue
		}
		p := panel{Name: m.name, Look: m.look}
		var final [5]float64
		for _, i := range thin(len(rounds), shownRounds) {
			var spread [5]float64
			for k := range spread {
				var all []float64
				for _, r := range m.runs {
					if i < len(r.evaluations) {
						all = append(all, r.evaluations[i].spread[k])
					}
				}
				spread[k] = mean(all)
			}
			if spread[0] > 0 {
				lo = min(lo, spread[0])
			}
			hi, lowest = max(hi, spread[4]), min(lowest, spread[2])
			first, last = min(first, rounds[i]), max(last, rounds[i])
			p.Round, p.Q = append(p.Round, rounds[i]), append(p.Q, nums(spread[:]))
			final = spread
		}
		panels = append(panels, p)
		row := []string{m.name, fmt.Sprint(rounds[len(rounds)-1])}
		for _, v := range final {
			row = append(row, score(v))
		}
		t.Rows = append(t.Rows, row)
		said = append(said, fmt.Sprintf("%s: median %s, quartiles %s to %s", m.name, short(final[2]), short(final[1]), short(final[3])))
	}
	// A chart with fewer boxes, or many small charts, would be less informative than the chart
	// of medians.
	if first >= last || len(panels) > mostPanels || slices.ContainsFunc(panels, func(p panel) bool { return len(p.Round) < fewestPanels }) {
		return figure{}, false
	}
	more := ""
	if most := 100 * lowest; hi > most {
		hi, more = most, " Values beyond the axis are drawn at its edge."
	}
	if s.seeds() > 1 {
		more = " Values are means over seeds." + more
	}
	if s.differentRounds() {
		more = " The number of rounds differs between methods." + more
	}
	lo, hi = min(max(lo, hi/1e4), 0.9), max(hi, 1.1)
	return figure{
		Kind: "convergence", Title: "Distribution of the error over clients by round", Tables: []Table{t}, Layout: "wide",
		Caption: "Relative MAE on a sample of validation windows, log scale: median, quartiles and extremes over the evaluated clients." + more,
		Alt:     "Chart of the distribution of the validation relative MAE over clients by round; at the last evaluation, " + strings.Join(said, "; ") + ".",
		data: map[string]any{
			"series": panels, "domain": []num{num(lo / 1.05), num(hi * 1.05)}, "rounds": []int{0, last}, "own": s.differentRounds(), "yLabel": "↑ relative MAE, validation",
		},
	}, true
}

// losses returns a chart of the training loss, for runs with too few evaluations for a
// chart of the relative MAE.
func (s *dataset) losses() (figure, bool) {
	var lines []line
	var all []*method
	set := map[int]bool{}
	for _, m := range s.trained() {
		if len(m.rounds()) >= fewest {
			return figure{}, false
		}
		if len(m.runs[0].losses) > 1 {
			all = append(all, m)
		}
		for _, p := range m.runs[0].losses {
			set[int(p.x)] = true
		}
	}
	if len(all) == 0 {
		return figure{}, false
	}
	rounds := thinned(set)
	t := Table{Title: "Training loss", Columns: []string{"method", "first", "last"}}
	lo, hi := math.Inf(1), 0.0
	for _, m := range all {
		by := map[int]float64{}
		points := m.runs[0].losses
		for _, p := range points {
			by[int(p.x)] = p.y
			if p.y > 0 {
				lo, hi = min(lo, p.y), max(hi, p.y)
			}
		}
		l := line{Name: m.name, Look: m.look}
		for _, r := range rounds {
			v, ok := by[r]
			if !ok {
				v = math.NaN()
			}
			l.Y = append(l.Y, num(v))
		}
		lines = append(lines, l)
		t.Rows = append(t.Rows, []string{m.name, short(points[0].y), short(points[len(points)-1].y)})
	}
	return figure{
		Kind: "lines", Title: "Training loss by round", Tables: []Table{t}, Layout: "narrow",
		Caption: "Mean over the clients of a round, first seed. There are too few evaluations to show errors." + omittedNote(lines),
		Alt:     "Line chart of the training loss by round; first and last values are in the table.",
		data: map[string]any{
			"x": rounds, "series": shownLines(lines), "log": lo > 0 && hi > 4*lo, "xLabel": "rounds done", "xName": "round", "yLabel": "↑ training loss", "fromZero": true,
		},
	}, true
}
