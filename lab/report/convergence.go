package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// line is a method in a chart of lines.
type line struct {
	Name string `json:"name"`
	Look int    `json:"look"`
	Y    []num  `json:"y"`
	Low  []num  `json:"low,omitempty"`
	High []num  `json:"high,omitempty"`
}

// drawn are the lines that a chart shows: the methods with the lowest errors, for
// more could not be told apart.
func drawn(all []line) []line { return all[:min(len(all), shownMethods)] }

// undrawn says what a chart leaves out.
func undrawn(all []line) string {
	if len(all) <= shownMethods {
		return ""
	}
	return fmt.Sprintf(" Drawn are the %d methods of %d with the lowest errors on the test part.", shownMethods, len(all))
}

// medians is the median error over the rounds, methods over each other.
func (s *dataset) medians() (figure, bool) {
	t := Table{Title: "Median MASE on the way", Note: "on a sample of validation windows"}
	var all []*method
	set := map[int]bool{}
	shares := s.unlike()
	for _, m := range s.trained() {
		if len(m.rounds()) > 0 {
			all = append(all, m)
			for _, r := range m.rounds() {
				set[m.when(r, shares)] = true
			}
		}
	}
	rounds := thinned(set)
	if len(all) < 2 || len(rounds) < 2 {
		return figure{}, false
	}
	var lines []line
	var said []string
	highest, lowest := 0.0, math.Inf(1)
	label, name := "rounds done", "round"
	t.Columns = []string{"rounds"}
	if shares {
		label, name = "rounds done, % of each method's", "% of rounds:"
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
	caption := "The median MASE over clients on a sample of the validation part."
	if s.seeds() > 1 {
		caption = strings.TrimSuffix(caption, ".") + "; bands are from the lowest seed to the highest."
	}
	caption += undrawn(lines)
	return figure{
		Kind: "lines", Title: "How the median client's error falls over the rounds", Tables: []Table{t},
		Caption: caption,
		Alt:     "Line chart of the median validation MASE over rounds. " + strings.Join(said, "; ") + ".",
		data: map[string]any{
			"x": rounds, "series": drawn(lines), "log": highest > 4*lowest, "one": true,
			"xLabel": label, "xName": name, "yLabel": "↑ median MASE, validation",
		},
	}, true
}

// rounds are those that were evaluated.
func (m *method) rounds() []int {
	var to []int
	for _, e := range m.runs[0].evaluations {
		to = append(to, e.round)
	}
	return to
}

// unlike says whether methods have such different numbers of rounds that one axis
// would not do: where each merge is of one client, there are many more.
func (s *dataset) unlike() bool {
	least, most := math.MaxInt, 0
	for _, m := range s.trained() {
		if r := m.rounds(); len(r) > 0 {
			least, most = min(least, slices.Max(r)), max(most, slices.Max(r))
		}
	}
	return most > 2*least && least > 0
}

// when is where a round has its place among others': its number, or how much of the
// method's training was done, in per cent.
func (m *method) when(round int, share bool) int {
	if !share {
		return round
	}
	return int(math.Round(100 * float64(round) / float64(slices.Max(m.rounds()))))
}

// at are the medians of the seeds after a round.
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
	var all []int
	for r := range set {
		all = append(all, r)
	}
	slices.Sort(all)
	var to []int
	for _, i := range thin(len(all), shownRounds) {
		to = append(to, all[i])
	}
	return to
}

// convergence is how the error spreads over clients as rounds go by.
func (s *dataset) convergence() (figure, bool) {
	type panel struct {
		Name  string  `json:"name"`
		Look  int     `json:"look"`
		Round []int   `json:"round"`
		Q     [][]num `json:"q"`
	}
	t := Table{Title: "Spread over clients at the last evaluation", Columns: []string{"method", "rounds", "least", "lower quartile", "median", "upper quartile", "greatest"}}
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
	if first >= last {
		return figure{}, false
	}
	more := ""
	if most := 100 * lowest; hi > most {
		hi, more = most, " What is beyond the axis is drawn at its edge."
	}
	if s.seeds() > 1 {
		more = " Each is a mean over seeds." + more
	}
	if s.unlike() {
		more = " Methods have different numbers of rounds: look at the axes." + more
	}
	lo, hi = min(max(lo, hi/1e4), 0.9), max(hi, 1.1)
	return figure{
		Kind: "convergence", Title: "How the error spreads over clients, round by round", Tables: []Table{t}, Layout: "wide",
		Caption: "MASE on a sample of the validation part, log scale: median, quartiles and extremes over the evaluated clients." + more,
		Alt:     "The spread of the validation MASE over clients by round; at the last evaluation, " + strings.Join(said, "; ") + ".",
		data: map[string]any{
			"series": panels, "domain": []num{num(lo / 1.05), num(hi * 1.05)}, "rounds": []int{first, last}, "own": s.unlike(), "yLabel": "↑ MASE, validation",
		},
	}, true
}

// losses is the training loss, where hardly anything was evaluated on the way.
func (s *dataset) losses() (figure, bool) {
	var lines []line
	var all []*method
	set := map[int]bool{}
	for _, m := range s.trained() {
		if len(m.rounds()) > 1 {
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
		Kind: "lines", Title: "How the training loss falls over the rounds", Tables: []Table{t}, Layout: "narrow",
		Caption: "The mean over the clients of a round, of the first seed. Too few evaluations were made on the way to show errors." + undrawn(lines),
		Alt:     "Line chart of the training loss over rounds; first and last values are in the table.",
		data: map[string]any{
			"x": rounds, "series": drawn(lines), "log": lo > 0 && hi > 4*lo, "xLabel": "rounds done", "xName": "round", "yLabel": "↑ training loss",
		},
	}, true
}
