package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"loadstar/internal/textfmt"
	"loadstar/lab/run"
	"loadstar/series"
)

// fanValues is the maximum number of values in the charts of one page, which take about 2 MB.
// fanDays is the shortest part of the test period that the charts show.
const (
	fanValues = 400000
	fanDays   = 14
)

// fanClient is a client in the chart of forecasts. Its values are integers: multiples of
// Unit. A missing value is null.
type fanClient struct {
	Name   string  `json:"name"`
	Role   string  `json:"role,omitempty"` // median, best or worst
	Start  int64   `json:"start"`
	Unit   float64 `json:"unit"`
	Actual level   `json:"y"`
	Before level   `json:"w"`
}

// fanLead contains the curves of a method for one choice of leads, by client.
type fanLead struct {
	Values []level `json:"f"`
	Low    []level `json:"l,omitempty"`
	High   []level `json:"h,omitempty"`
}

type fanMethod struct {
	Name  string    `json:"name"`
	Look  int       `json:"look"`
	Leads []fanLead `json:"leads"`
}

// level is a curve in units of its client. It is written as integers, which take half the
// space of decimals.
type level struct {
	values []float64
	unit   float64
}

// MarshalJSON implements json.Marshaler.
func (l level) MarshalJSON() ([]byte, error) {
	to := []byte{'['}
	for i, v := range l.values {
		if i > 0 {
			to = append(to, ',')
		}
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			to = fmt.Appendf(to, "%d", int64(math.Round(v/l.unit)))
		} else {
			to = append(to, "null"...)
		}
	}
	return append(to, ']'), nil
}

// forecasts returns a chart of load and forecasts: first for the median, the best and the worst
// client, and on request for other clients. share is the part of the page's values that the
// chart may embed.
func (s *dataset) forecasts(share float64) (figure, bool) {
	first := s.drawnRun()
	if first == nil {
		return figure{}, false
	}
	methods := s.drawnMethods()
	base := s.drawnBaseline()
	leads := first.excerpts[0].leads
	picked, roles, steps := s.pick(first, int(share*fanValues), 2+len(leads)*(3*len(methods)+b2i(base != nil)))
	data := map[string]any{"interval": first.excerpts[0].interval}
	var clients []fanClient
	for i, x := range picked {
		unit := x.unit()
		clients = append(clients, fanClient{Name: x.client, Role: roles[i], Start: x.start, Unit: unit, Actual: level{x.actual, unit}, Before: level{x.before, unit}})
	}
	var drawn []fanMethod
	var options []string
	bands := false
	for _, m := range methods {
		d := fanMethod{Name: m.name, Look: m.look}
		for _, l := range leads {
			one := fanLead{}
			for i, x := range picked {
				of := m.runs[0].excerptOf(x.client)
				column := func(values func(lead) []float64) level {
					return level{aligned(x, of, l.steps, values), clients[i].Unit}
				}
				one.Values = append(one.Values, column(func(l lead) []float64 { return l.values }))
				one.Low = append(one.Low, column(func(l lead) []float64 { return l.low }))
				one.High = append(one.High, column(func(l lead) []float64 { return l.high }))
			}
			if !slices.ContainsFunc(one.Low, func(l level) bool { return some(l.values) }) {
				one.Low, one.High = nil, nil
			}
			bands = bands || one.Low != nil
			d.Leads = append(d.Leads, one)
		}
		drawn, options = append(drawn, d), append(options, m.name)
	}
	baseName := ""
	if base != nil {
		baseName = base.Name
		b := fanMethod{Name: base.Name, Look: -1}
		for k := range leads {
			one := fanLead{}
			for i, x := range picked {
				one.Values = append(one.Values, level{base.on(x, k == 1), clients[i].Unit})
			}
			b.Leads = append(b.Leads, one)
		}
		data["base"] = b
	}
	var ahead []string
	for _, l := range leads {
		name := first.ahead(l.steps)
		if l.until > l.steps {
			name += " to " + first.ahead(l.until)
		}
		ahead = append(ahead, name)
	}
	data["clients"], data["methods"], data["leads"], data["names"] = clients, drawn, ahead, options
	data["zone"], data["offsets"] = zoneOf(first.zone, picked)
	data["all"], data["others"] = s.everybody(first)

	f := figure{
		Kind: "fan", Layout: "wide", Title: "Load and forecasts of the median, the best and the worst client", Tables: []Table{s.shownClients(first, picked, roles)}, data: data,
	}
	f.Caption = fmt.Sprintf("Drag across a chart to zoom. Gaps in a line are times without a reading or without a forecast. Curves of %s are in this page", textfmt.Count(len(clients), "client"))
	if n := len(first.Clients); n > len(clients) {
		f.Caption += fmt.Sprintf(", of %d; the search finds the scores of the others", n)
	}
	f.Caption += fmt.Sprintf(". They show %s of the test period, which no method was trained on.", textfmt.Count(int(int64(steps)*first.excerpts[0].interval/86400), "day"))
	if bands {
		f.Caption += " The band from P10 to P90 should contain 80 % of the loads."
	}
	lines := []string{"the load", "the forecast by " + options[0], "last week's load"}
	if baseName != "" && baseName != "naive-week" {
		lines = append(lines, "the forecast by "+baseName)
	}
	f.Alt = fmt.Sprintf("Line charts of %s for %s; scores are in the table.", list(lines), list(names(picked[:min(len(picked), 3)])))
	return f, true
}

func names(all []excerpt) []string {
	var to []string
	for _, x := range all {
		to = append(to, x.client)
	}
	return to
}

func some(values []float64) bool {
	return slices.ContainsFunc(values, func(v float64) bool { return !math.IsNaN(v) })
}

// drawnRun returns the run whose clients the chart shows: the first run with curves of the best
// method that has curves.
func (s *dataset) drawnRun() *Run {
	for _, m := range s.drawnMethods() {
		return m.runs[0]
	}
	return nil
}

// drawnMethods returns the trained methods with curves, best first.
func (s *dataset) drawnMethods() []*method {
	var to []*method
	for _, m := range s.trained() {
		if len(m.runs[0].excerpts) > 0 && len(to) < shownMethods {
			to = append(to, m)
		}
	}
	return to
}

// baseCurve contains the curves of a baseline by client and time.
type baseCurve struct {
	Name string
	at   map[string]map[int64][2]float64
}

// drawnBaseline returns the curves of another program or of the strongest baseline, or nil if
// there are none.
func (s *dataset) drawnBaseline() *baseCurve {
	var curves []run.BaselineCurve
	c := &baseCurve{at: map[string]map[int64][2]float64{}}
	if o := s.others(); o != nil {
		c.Name, curves = o.Name, o.Curves
	} else if b := s.strongest(); b != nil && s.beside != nil {
		c.Name, curves = b.name, s.beside.Curves
	}
	for _, row := range curves {
		if row.Method != c.Name {
			continue
		}
		if c.at[row.Client] == nil {
			c.at[row.Client] = map[int64][2]float64{}
		}
		c.at[row.Client][row.Time.Unix()] = [2]float64{row.Near, row.Far}
	}
	if len(c.at) == 0 {
		return nil
	}
	return c
}

// on returns the curve of the baseline at the times of an excerpt.
func (c *baseCurve) on(x excerpt, far bool) []float64 {
	to := make([]float64, len(x.actual))
	for i := range to {
		v, ok := c.at[x.client][x.start+int64(i)*x.interval]
		if to[i] = v[b2i(far)]; !ok {
			to[i] = math.NaN()
		}
	}
	return to
}

// pick returns the excerpts to embed and their roles: the median, the best and the worst
// client, then other clients, evenly spaced by error. If there are too many values, it first
// reduces the number of clients, and then the part of the test period. perStep is the number of
// values of each step of a client.
func (s *dataset) pick(r *Run, values, perStep int) (to []excerpt, roles []string, steps int) {
	byName := map[string]excerpt{}
	for _, x := range r.excerpts {
		byName[x.client] = x
		steps = max(steps, len(x.actual))
	}
	interval := r.excerpts[0].interval
	extremes := run.Extremes(r.Clients)
	title := []string{"median client", "best client", "worst client"}
	if len(extremes) == 2 {
		title = []string{"better client", "worse client"}
	}
	for i, at := range extremes {
		if x, ok := byName[r.Clients[at].Client]; ok {
			to, roles = append(to, x), append(roles, title[i])
			if len(extremes) == 1 {
				roles[0] = ""
			}
			delete(byName, x.client)
		}
	}
	most := max(values/(steps*perStep), 3)
	if most < 6 { // shorten the period rather than show fewer clients
		steps = max(values/(6*perStep), int(fanDays*86400/interval))
		most = 6
	}
	var rest []excerpt
	for _, c := range r.Clients {
		if x, ok := byName[c.Client]; ok {
			rest = append(rest, x)
			delete(byName, c.Client)
		}
	}
	if n := most - len(to); n > 0 {
		for _, i := range thin(len(rest), n) {
			to, roles = append(to, rest[i]), append(roles, "")
		}
	}
	end := to[0].end()
	for i := range to {
		to[i] = to[i].cutBefore(end, steps)
	}
	steps = min(steps, len(to[0].actual))
	return to, roles, steps
}

// end returns the end of the last step with a forecast, or of the excerpt if there is none.
func (x excerpt) end() int64 {
	n := len(x.actual)
	for n > 0 && !slices.ContainsFunc(x.leads, func(l lead) bool { return !math.IsNaN(l.values[n-1]) }) {
		n--
	}
	n = cmp.Or(n, len(x.actual))
	return x.start + int64(n)*x.interval
}

// cutBefore returns the part of the excerpt that has the given number of steps and ends at the
// given time, or as close to it as the excerpt allows.
func (x excerpt) cutBefore(end int64, steps int) excerpt {
	if len(x.actual) <= steps {
		return x
	}
	from := min(max(int((end-x.start)/x.interval)-steps, 0), len(x.actual)-steps)
	cut := func(values []float64) []float64 { return values[from:][:steps] }
	x.start += int64(from) * x.interval
	x.actual, x.before = cut(x.actual), cut(x.before)
	x.leads = slices.Clone(x.leads)
	for i, l := range x.leads {
		x.leads[i].values, x.leads[i].low, x.leads[i].high = cut(l.values), cut(l.low), cut(l.high)
	}
	return x
}

// unit returns the resolution of a client's curves: a two-thousandth of the largest load.
func (x excerpt) unit() float64 {
	top := 0.0
	for _, v := range x.actual {
		if !math.IsNaN(v) {
			top = max(top, math.Abs(v))
		}
	}
	if top == 0 {
		return 0.001
	}
	return rounded(top / 2000)
}

// excerptOf returns the excerpt of a client, or an empty one.
func (r *Run) excerptOf(client string) excerpt {
	i := slices.IndexFunc(r.excerpts, func(x excerpt) bool { return x.client == client })
	if i < 0 {
		return excerpt{}
	}
	return r.excerpts[i]
}

// aligned returns values of the excerpt of at the times of the excerpt onto, for forecasts with
// the given lead time. They are NaN at times without a forecast.
func aligned(onto, of excerpt, steps int, values func(lead) []float64) []float64 {
	to := make([]float64, len(onto.actual))
	for i := range to {
		to[i] = math.NaN()
	}
	if of.interval != onto.interval {
		return to
	}
	for _, l := range of.leads {
		if l.steps != steps {
			continue
		}
		for i, v := range values(l) {
			if j := int((of.start-onto.start)/onto.interval) + i; j >= 0 && j < len(to) {
				to[j] = v
			}
		}
	}
	return to
}

// zoneOf returns the name of the clock that the chart shows, and its offsets from UTC in
// seconds, each with the time from which it applies. An unknown zone is shown in UTC.
func zoneOf(zone string, all []excerpt) (name string, offsets [][2]int64) {
	loc, err := series.ClockOf(zone)
	if err != nil || zone == "" || zone == "Local" {
		loc = time.UTC
	}
	from, to := int64(math.MaxInt64), int64(math.MinInt64)
	for _, x := range all {
		from, to = min(from, x.start), max(to, x.start+int64(len(x.actual))*x.interval)
	}
	for at := from; at < to; {
		t := time.Unix(at, 0).In(loc)
		_, offset := t.Zone()
		offsets = append(offsets, [2]int64{at, int64(offset)})
		_, end := t.ZoneBounds()
		if end.IsZero() {
			break
		}
		at = end.Unix()
	}
	return loc.String(), offsets
}

// everyClient is the largest number of clients whose scores a page embeds for the search.
const everyClient = 20000

// everybody returns the names of a run's clients and their scores for the search: the error in
// per cent of the mean load, and the error relative to the reference. For a larger fleet, it
// returns evenly spaced clients, and the number of omitted clients.
func (s *dataset) everybody(r *Run) (all map[string]any, others int) {
	var names []string
	var nmae, relative []num
	for _, i := range thin(len(r.Clients), everyClient) {
		c := r.Clients[i]
		names, nmae, relative = append(names, c.Client), append(nmae, num(100*c.NMAE)), append(relative, num(c.RelativeMAE))
	}
	return map[string]any{"names": names, "nmae": nmae, "relative": relative, "reference": s.referenceName()}, len(r.Clients) - len(names)
}

// shownClients returns a table of scores for the chart's first clients.
func (s *dataset) shownClients(r *Run, picked []excerpt, roles []string) Table {
	t := Table{
		Title: "Scores of these clients", Note: "On the whole test split, for all leads. The relative MAE refers to " + s.referenceName() + ".",
		Columns: []string{"client", "", "mean load, kW", "MAE, kW", "of mean load", "relative MAE"},
	}
	beside := s.besideStrongest(&t)
	scores := r.clientsOf()
	for i, x := range picked {
		c, ok := scores[x.client]
		if roles[i] == "" && i > 0 || !ok {
			continue
		}
		row := []string{x.client, strings.TrimSuffix(roles[i], " client"), short(c.MAE / c.NMAE), short(c.MAE), percentFine(c.NMAE), score(c.RelativeMAE)}
		t.Rows = append(t.Rows, beside(row, x.client))
	}
	return t
}
