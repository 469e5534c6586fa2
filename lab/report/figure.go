package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"loadstar/lab/run"
)

// How much a picture shows of what there is more of.
const (
	shownDots    = 400
	shownMeters  = 1500
	shownMethods = 10
	shownRounds  = 150
)

// group draws what there is of a dataset.
func (s *dataset) group(i int) group {
	trained := s.trained()
	r := trained[0].runs[0]
	g := group{ID: fmt.Sprintf("data-%d", i+1), Name: s.name, Generated: s.generated}
	g.About = fmt.Sprintf("%s, %s.", plural(len(r.Clients), "client"), plural(len(trained), "trained method"))
	if n := len(s.methods) - len(trained); n > 0 {
		g.About = strings.TrimSuffix(g.About, ".") + fmt.Sprintf(" and %s.", plural(n, "baseline"))
	}
	if seeds := s.seeds(); seeds > 1 {
		upTo := ""
		if slices.ContainsFunc(trained, func(m *method) bool { return len(m.runs) != seeds }) {
			upTo = "up to "
		}
		g.About += fmt.Sprintf(" Figures are means over %s%d seeds, with the lowest and the highest in brackets.", upTo, seeds)
	}
	figures := []func() (figure, bool){s.skill, s.cost, s.medians, s.convergence, s.losses, s.byHour, s.byStep, s.forecasts, s.fleet}
	for _, f := range figures {
		if f, ok := f(); ok {
			g.Figures = append(g.Figures, f)
		}
	}
	for _, h := range s.grids {
		g.Figures = append(g.Figures, h.figure())
	}
	for j := range g.Figures {
		f := &g.Figures[j]
		f.ID, f.Generated = fmt.Sprintf("%s-%d", g.ID, j+1), s.generated
		for k := range f.Tables {
			f.Tables[k].Generated = s.generated
		}
	}
	return g
}

// fromTo is a mean with its spread over seeds.
func fromTo(values []float64) string {
	lo, hi := slices.Min(values), slices.Max(values)
	if len(values) < 2 || !(lo < hi) {
		return score(mean(values))
	}
	return fmt.Sprintf("%s (%s)", score(mean(values)), between(lo, hi))
}

// between is a range that is not broken into two lines.
func between(lo, hi float64) string { return score(lo) + "\u2060–\u2060" + score(hi) }

// skill is how the MASE spreads over clients, by method.
func (s *dataset) skill() (figure, bool) {
	type row struct {
		Name  string `json:"name"`
		Look  int    `json:"look"`
		Q     []num  `json:"q"`
		V     []num  `json:"v"`
		N     []int  `json:"n"`
		Above int    `json:"above"`
		Below int    `json:"below"`
	}
	t := Table{
		Title:   "Skill on the test part",
		Note:    "MASE is the mean absolute error over that of repeating the newest known load: below 1 is better than that. 5–95 % and below 1 are of clients.",
		Columns: []string{"method", "median MASE", "mean", "5–95\u00a0%", "below 1", "mean MAE, kW", "median NMAE"},
		Best:    1,
	}
	var rows []row
	var said []string
	var names []string
	lo, hi, lowest := math.Inf(1), 0.0, math.Inf(1)
	for _, m := range s.methods {
		scores := m.mase()
		all := make([]float64, 0, len(scores))
		for _, v := range scores {
			all = append(all, v)
		}
		q := quantiles(all, 0.05, 0.25, 0.5, 0.75, 0.95, 0.01, 0.99)
		if math.IsNaN(q[2]) {
			continue
		}
		lo, hi, lowest = min(lo, q[5]), max(hi, q[6]), min(lowest, q[2])
		if names == nil {
			names = sample(scores, shownDots)
		}
		r := row{Name: m.name, Look: m.look, Q: nums(q[:5])}
		for i, name := range names {
			if v, ok := scores[name]; ok {
				r.V, r.N = append(r.V, num(v)), append(r.N, i)
			}
		}
		rows = append(rows, r)
		share := m.belowOne()
		said = append(said, fmt.Sprintf("%s: median %s, %s of clients below 1", m.name, short(m.median()), percent(share)))
		t.Rows = append(t.Rows, []string{
			m.name, fromTo(m.medians()), score(mean(all)), between(q[0], q[4]),
			percent(share), short(m.mae()), percentFine(m.nmae()),
		})
	}
	if len(rows) == 0 {
		return figure{}, false
	}
	// A method that blew up must not press the others together.
	hi = min(hi, 20*max(1, lowest))
	lo = max(lo, hi/1e4, 1e-6)
	lo, hi = min(lo, 0.9)/1.05, max(hi, 1.1)*1.05
	k, beyond := 0, 0
	for _, m := range s.methods {
		if math.IsNaN(m.median()) {
			continue
		}
		for _, v := range m.mase() {
			rows[k].Above += b2i(v > hi)
			rows[k].Below += b2i(v < lo)
		}
		beyond += rows[k].Above + rows[k].Below
		k++
	}
	f := figure{
		Kind: "box", Tables: []Table{t}, Layout: "even",
		Title:   "Error of each client by method; the lowest median is that of " + rows[0].Name,
		Caption: "Boxes hold the middle half of the clients, with the median; whiskers reach from 5 % to 95 %. Each dot is a client",
		Alt:     "Box and strip chart of the MASE per client. " + strings.Join(said, "; ") + ".",
		data:    map[string]any{"series": rows, "names": names, "domain": []num{num(lo), num(hi)}, "xLabel": "MASE on the test part, log scale (left is better)"},
	}
	if len(rows) == 1 {
		f.Title = fmt.Sprintf("Error of each client: better than repeating the newest load for %s of clients", t.Rows[0][4])
		f.Tables[0].Best = 0
	}
	if s.seeds() > 1 {
		f.Caption += ", its mean over seeds"
	}
	f.Caption += ". The dashed line is repeating the newest known load."
	if n := len(s.methods[0].mase()); n > len(names) {
		f.Caption += fmt.Sprintf(" Dots are a sample of %d of %d clients, evenly spaced by their error; boxes are of all.", len(names), n)
	}
	if beyond > 0 {
		f.Caption += " Values beyond the axis are counted at its end."
	}
	return f, true
}

func percentFine(v float64) string {
	if math.IsNaN(v) {
		return none
	}
	return fmt.Sprintf("%.1f\u00a0%%", 100*v)
}

// sample is at most n clients, evenly spaced by their score.
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

// cost is what a method sends against how good it is.
func (s *dataset) cost() (figure, bool) {
	type dot struct {
		Name string `json:"name"`
		Look int    `json:"look"`
		X    num    `json:"x"`
		Y    num    `json:"y"`
		Low  num    `json:"low"`
		High num    `json:"high"`
	}
	t := Table{Title: "What is sent", Columns: []string{"method", "MB per client", "MB in all", "rounds", "median MASE"}}
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
			rounds, all = fmt.Sprint(m.runs[0].rounds), mb*float64(len(m.runs[0].Clients))
		}
		t.Rows = append(t.Rows, []string{m.name, short(mb), short(all), rounds, score(m.median())})
		said = append(said, fmt.Sprintf("%s: %s MB, median MASE %s", m.name, short(mb), short(m.median())))
	}
	if len(dots) < 2 {
		return figure{}, false
	}
	caption := "Weights sent and received over the whole training, for the mean client; lower left is better. Who trains alone sends nothing."
	if s.seeds() > 1 {
		caption += " Bars are from the lowest seed to the highest."
	}
	if len(s.trained()) < len(s.methods) {
		caption += " Crosses are baselines."
	}
	return figure{
		Kind: "cost", Title: "What each method sends, and how well it forecasts", Tables: []Table{t},
		Caption: caption,
		Alt:     "Scatter chart of megabytes per client and median MASE. " + strings.Join(said, "; ") + ".",
		data:    map[string]any{"points": dots, "xLabel": "sent and received, MB per client"},
	}, true
}

// line is a method in a chart of lines.
type line struct {
	Name string `json:"name"`
	Look int    `json:"look"`
	Y    []num  `json:"y"`
	Low  []num  `json:"low,omitempty"`
	High []num  `json:"high,omitempty"`
}

// medians is the median error over the rounds, methods over each other.
func (s *dataset) medians() (figure, bool) {
	t := Table{Title: "Median MASE on the way", Note: "on a sample of validation windows"}
	var all []*method
	set := map[int]bool{}
	for _, m := range s.trained() {
		if len(m.rounds()) > 0 {
			all = append(all, m)
			for _, r := range m.rounds() {
				set[r] = true
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
	t.Columns = []string{"rounds"}
	shown := thin(len(rounds), 6)
	for _, i := range shown {
		t.Rows = append(t.Rows, []string{fmt.Sprint(rounds[i])})
	}
	for _, m := range all {
		l := line{Name: m.name, Look: m.look}
		several := len(m.runs) > 1
		var last float64
		for i, r := range rounds {
			v := m.at(r)
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
	return figure{
		Kind: "lines", Title: "How the median client's error falls over the rounds", Tables: []Table{t},
		Caption: caption,
		Alt:     "Line chart of the median validation MASE over rounds. " + strings.Join(said, "; ") + ".",
		data: map[string]any{
			"x": rounds, "series": lines, "log": highest > 4*lowest, "one": true,
			"xLabel": "rounds done", "xName": "round", "yLabel": "↑ median MASE, validation",
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

// at are the medians of the seeds after a round.
func (m *method) at(round int) []float64 {
	var to []float64
	for _, r := range m.runs {
		for _, e := range r.evaluations {
			if e.round == round {
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
	lo, hi = min(max(lo, hi/1e4), 0.9), max(hi, 1.1)
	return figure{
		Kind: "convergence", Title: "How the error spreads over clients, round by round", Tables: []Table{t}, Layout: "wide",
		Caption: "MASE on a sample of the validation part, log scale: median, quartiles and extremes over the evaluated clients." + more,
		Alt:     "The spread of the validation MASE over clients by round; at the last evaluation, " + strings.Join(said, "; ") + ".",
		data: map[string]any{
			"series": panels, "domain": []num{num(lo / 1.05), num(hi * 1.05)}, "rounds": []int{first, last}, "yLabel": "↑ MASE, validation",
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
		Caption: "The mean over the clients of a round, of the first seed. Too few evaluations were made on the way to show errors.",
		Alt:     "Line chart of the training loss over rounds; first and last values are in the table.",
		data: map[string]any{
			"x": rounds, "series": lines, "log": lo > 0 && hi > 4*lo, "xLabel": "rounds done", "xName": "round", "yLabel": "↑ training loss",
		},
	}, true
}

// byHour is the error by the hour of the day.
func (s *dataset) byHour() (figure, bool) {
	f, ok := s.profile("hour", "hour of the day on the dataset's clock", "hour")
	if !ok {
		return f, false
	}
	d := f.data.(map[string]any)
	d["clock"], d["ticks"] = true, []int{0, 3, 6, 9, 12, 15, 18, 21}
	f.Title = "Error by hour of the day"
	f.Caption = "Mean absolute error relative to a client's mean load, as a mean over clients."
	return f, true
}

// byStep is the error by how far ahead the target is.
func (s *dataset) byStep() (figure, bool) {
	f, ok := s.profile("step", "target, steps from the first", "step")
	if !ok || len(f.Tables[0].Rows) < 2 {
		return f, false
	}
	d := f.data.(map[string]any)
	d["zero"], d["ticks"] = true, min(len(f.Tables[0].Rows), 12)
	f.Title = "Error by distance of the target"
	f.Caption = "Mean absolute error relative to a client's mean load, as a mean over clients, from the nearest target of a forecast to the farthest."
	return f, true
}

func (s *dataset) profile(by, label, name string) (figure, bool) {
	t := Table{Title: "Error by " + by, Note: "NMAE in %", Columns: []string{by}}
	var lines []line
	var all []*method
	var xs []int
	var said []string
	for _, m := range s.trained() {
		var mine []int
		for _, p := range m.runs[0].profile {
			if p.By == by {
				mine = append(mine, p.At)
			}
		}
		if len(mine) > 0 {
			all = append(all, m)
		}
		if len(mine) > len(xs) {
			xs = mine
		}
	}
	if len(all) == 0 {
		return figure{}, false
	}
	for _, x := range xs {
		t.Rows = append(t.Rows, []string{fmt.Sprint(x)})
	}
	for _, m := range all {
		l := line{Name: m.name, Look: m.look}
		worst, where := 0.0, 0
		for i, x := range xs {
			var v []float64
			for _, r := range m.runs {
				for _, p := range r.profile {
					if p.By == by && p.At == x {
						v = append(v, 100*p.NMAE)
					}
				}
			}
			y := mean(v)
			if y > worst {
				worst, where = y, x
			}
			l.Y = append(l.Y, num(y))
			t.Rows[i] = append(t.Rows[i], short(y))
		}
		t.Columns = append(t.Columns, m.name)
		lines = append(lines, l)
		said = append(said, fmt.Sprintf("%s is worst at %s %d with %s %%", m.name, by, where, short(worst)))
	}
	return figure{
		Kind: "lines", Tables: []Table{t}, Layout: "narrow",
		Alt:  "Line chart of the relative error by " + by + ". " + strings.Join(said, "; ") + ".",
		data: map[string]any{"x": xs, "series": lines, "xLabel": label, "xName": name, "yLabel": "↑ NMAE, % of mean load"},
	}, true
}

// forecasts is two weeks of some clients.
func (s *dataset) forecasts() (figure, bool) {
	type client struct {
		Name   string `json:"name"`
		At     int    `json:"at"`
		Start  int64  `json:"start"`
		Actual []num  `json:"actual"`
		Before []num  `json:"before"`
	}
	type shown struct {
		Name   string    `json:"name"`
		Look   int       `json:"look"`
		Values [][][]num `json:"values"` // by lead and client
	}
	var from *Run
	for _, m := range s.trained() {
		if len(m.runs[0].stretches) > 0 {
			from = m.runs[0]
			break
		}
	}
	if from == nil {
		return figure{}, false
	}
	var clients []client
	var names []string
	for i, x := range from.stretches {
		clients = append(clients, client{x.client, i, x.start, nums(x.actual), nums(x.before)})
		names = append(names, x.client)
	}
	leads := from.stretches[0].leads
	t := Table{
		Title: "Mean absolute error of these clients, kW", Note: "over the whole test part, first seed",
		Columns: []string{"client", "the week before"},
	}
	for _, x := range from.stretches {
		t.Rows = append(t.Rows, []string{x.client, short(x.weekMAE)})
	}
	var methods []shown
	var options []string
	for _, m := range s.trained() {
		if len(methods) == shownMethods || len(m.runs[0].stretches) == 0 {
			continue
		}
		d := shown{Name: m.name, Look: m.look}
		t.Columns = append(t.Columns, m.name)
		for i := range clients {
			t.Rows[i] = append(t.Rows[i], none)
		}
		for k, l := range leads {
			d.Values = append(d.Values, make([][]num, len(clients)))
			for _, x := range m.runs[0].stretches {
				i := slices.Index(names, x.client)
				if i < 0 || x.interval != from.stretches[i].interval {
					continue
				}
				t.Rows[i][len(t.Columns)-1] = short(x.mae)
				d.Values[k][i] = aligned(from.stretches[i], x, l.steps)
			}
		}
		methods = append(methods, d)
		options = append(options, m.name)
	}
	var ahead []string
	for _, l := range leads {
		ahead = append(ahead, fmt.Sprintf("target %d", l.steps))
	}
	days := math.Round(float64(len(clients[0].Actual)) * float64(from.stretches[0].interval) / 86400)
	f := figure{
		Kind: "forecast", Title: fmt.Sprintf("%s of the test part: forecast, actual load and the week before", plural(int(days), "day")), Tables: []Table{t}, Layout: "wide",
		Caption: fmt.Sprintf("Load in kW of %s, out of the middle of their test part; the week before is at the same clock time. %s shown first.", plural(len(clients), "client"), methods[0].Name),
		Alt:     fmt.Sprintf("Line charts of the load of %s with the forecast by %s and the load of the week before; mean errors are in the table.", list(names), methods[0].Name),
		data: map[string]any{
			"clients": clients, "methods": methods, "interval": from.stretches[0].interval,
			"choices": []map[string]any{
				{"key": "method", "label": "Method", "options": options},
				{"key": "lead", "label": "Distance", "options": ahead},
			},
		},
	}
	if len(methods) == 1 {
		f.Caption = strings.TrimSuffix(f.Caption, " "+methods[0].Name+" shown first.")
	}
	return f, true
}

// aligned puts a stretch's forecasts onto the times of another.
func aligned(onto, of stretch, steps int) []num {
	to := make([]num, len(onto.actual))
	for i := range to {
		to[i] = num(math.NaN())
	}
	for _, l := range of.leads {
		if l.steps != steps {
			continue
		}
		for i, v := range l.values {
			if j := int((of.start-onto.start)/onto.interval) + i; j >= 0 && j < len(to) {
				to[j] = num(v)
			}
		}
	}
	return to
}

// fleet is how large and how restless the clients are.
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
	t := Table{Title: "The fleet's spread", Note: "over the training part", Columns: []string{"clients", "mean, kW", "deviation, kW", "deviation / mean", "examples"}}
	for i, name := range []string{"least", "5 %", "25 %", "median", "75 %", "95 %", "greatest"} {
		t.Rows = append(t.Rows, []string{name, short(level[i]), short(spread[i]), short(ratio[i]), short(examples[i])})
	}
	f := figure{
		Kind: "fleet", Tables: []Table{t},
		Title:   fmt.Sprintf("How different the clients are: mean loads from %s to %s kW", short(level[0]), short(level[6])),
		Caption: "Level and spread of each client's load, both on log scales. Lines mark where the standard deviation is the mean, and a tenth of it.",
		Alt:     fmt.Sprintf("Scatter chart of mean load and standard deviation of %s; means from %s to %s kW with median %s.", plural(len(all), "client"), short(level[0]), short(level[6]), short(level[3])),
		data:    map[string]any{"x": xs, "y": ys, "names": names},
	}
	if len(names) < len(all) {
		f.Caption += fmt.Sprintf(" A sample of %d of %d clients, evenly spaced by level.", len(names), len(all))
	}
	return f, true
}
