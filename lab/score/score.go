// Package score scores the forecasts of other programs and of a run, for the same clients and
// hours, with the loads of the dataset.
package score

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"text/tabwriter"

	"loadstar/internal/textfmt"

	"loadstar/forecast/issue"
	"loadstar/lab/outlook"
	"loadstar/metric"
	"loadstar/series"
)

// Result contains the scores of all methods.
type Result struct {
	Dataset   string `json:"dataset"`
	Generated bool   `json:"generated"`
	// Targets is the number of scored targets, for which all methods have forecasts.
	Targets int      `json:"targets"`
	Found   []string `json:"found"` // notes for the reader
	Methods []Method `json:"methods"`
}

// Method contains the scores of one method.
type Method struct {
	Name string `json:"name"`
	// Clients contains the scores by client.
	Clients []Client `json:"clients"`
	// MAE and Bias are means over clients, in kW. RelativeMAE is the median over clients of the
	// error relative to the error of last week's load, and RelativeMean is the mean.
	MAE          float64 `json:"mae_kw"`
	RelativeMAE  float64 `json:"relative_mae"`
	RelativeMean float64 `json:"relative_mae_mean"`
	Bias         float64 `json:"bias_kw"`
	// Coverage is the median over clients of the share of loads in the interval, and Level the
	// intended share. They are nil if there is no interval.
	Coverage *float64 `json:"coverage,omitempty"`
	Level    *float64 `json:"level,omitempty"`
	// Better and Worse count the clients for which the method is significantly better or worse
	// than the first one, according to a Diebold-Mariano test of absolute errors at the 5 %
	// level.
	Better int `json:"better"`
	Worse  int `json:"worse"`
}

// Client contains the scores of one client.
type Client struct {
	ID          string   `json:"id"`
	Targets     int      `json:"targets"`
	MAE         float64  `json:"mae_kw"`
	RelativeMAE float64  `json:"relative_mae"`
	Bias        float64  `json:"bias_kw"`
	Coverage    *float64 `json:"coverage,omitempty"`
}

// entry is a method and the file that contains it.
type entry struct {
	method
	from *Forecasts
}

// OfRun returns the forecasts that a run would have issued at the cutoffs of others.
func OfRun(ctx context.Context, b outlook.Backtest, name string, others []*Forecasts) (*Forecasts, error) {
	f := &Forecasts{name: name, methods: []method{{name: name, point: 1, low: 0, high: 2, level: 0.8}}, columns: 3, clients: map[string]*rows{}, y: -1, ends: true}
	cutoffs := map[string]map[int64]bool{}
	for _, o := range others {
		for id, r := range o.clients {
			if cutoffs[id] == nil {
				cutoffs[id], f.clients[id] = map[int64]bool{}, &rows{}
			}
			for _, k := range r.keys {
				cutoffs[id][k.cutoff] = true
			}
		}
	}
	every := map[int64]bool{}
	for _, mine := range cutoffs {
		maps.Copy(every, mine)
	}
	err := b.Issue(ctx, func(cutoff int64) bool { return every[cutoff] }, func(x issue.Forecast) {
		r := f.clients[x.Client]
		if r == nil || !cutoffs[x.Client][x.Cutoff] {
			return
		}
		if n := len(r.keys); n > 0 && r.keys[n-1].cutoff == x.Cutoff {
			return // an issue that is both replayed and selected comes twice
		}
		for _, row := range x.Rows {
			r.keys = append(r.keys, key{x.Cutoff, row.Time})
			r.values = append(r.values, row.Values[0], row.Values[1], row.Values[2])
		}
	})
	if err != nil {
		return nil, err
	}
	for id, r := range f.clients {
		if err := r.sort(f.columns); err != nil {
			return nil, fmt.Errorf("client %s: %w", id, err)
		}
	}
	return f, nil
}

// Score scores the forecasts of several files on the same targets.
func Score(d *series.Dataset, files []*Forecasts) (*Result, error) {
	out := &Result{Dataset: d.Name, Generated: d.Generated}
	var all []entry
	names := map[string]int{}
	for _, f := range files {
		for _, m := range f.methods {
			names[m.name]++
			all = append(all, entry{m, f})
		}
	}
	for i := range all {
		if names[all[i].name] > 1 {
			all[i].name = all[i].from.name + ": " + all[i].name
		}
		out.Methods = append(out.Methods, Method{Name: all[i].name})
	}
	frame, err := series.NewFramer(d, series.Layout{Lookback: 1, Horizon: 1, Targets: 1, Inputs: []series.Input{{Name: "load"}}}, series.DefaultSplit)
	if err != nil {
		return nil, err
	}
	s := scorer{d: d, frame: frame, files: files, all: all, out: out}
	known := map[string]bool{}
	for i := range d.Len() {
		m := d.Meter(i)
		known[m.ID] = true
		if err := s.client(m); err != nil {
			return nil, fmt.Errorf("client %s: %w", m.ID, err)
		}
	}
	s.notes(known)
	if out.Targets == 0 {
		return nil, fmt.Errorf("no forecast can be scored: %s", firstOr(out.Found, "the files have no rows"))
	}
	for i := range out.Methods {
		out.Methods[i].summarize()
	}
	return out, nil
}

func firstOr(list []string, other string) string {
	if len(list) > 0 {
		return list[0]
	}
	return other
}

type scorer struct {
	d     *series.Dataset
	frame *series.Framer
	files []*Forecasts
	all   []entry
	out   *Result

	offGrid, outside, unknownLoad, incomplete, alone int
	absent                                           []string // clients without forecasts
	ys, wrong                                        int      // loads in files, and those that differ
	shifted                                          map[int]int
	example                                          string
}

// forecasts contains the methods' forecasts for one target.
type forecasts struct{ values, lows, highs []float64 }

// outcome is the result of scoring a target.
type outcome int

const (
	scored  outcome = iota
	missed          // a file does not have the target
	partial         // a file has no value for the target
)

// at reads the forecasts of all methods for a target.
func (s *scorer) at(m series.Meter, k key, x *forecasts) outcome {
	what := scored
	for i, e := range s.all {
		r := e.from.clients[m.ID]
		at := r.find(k)
		if at < 0 {
			return missed
		}
		row := r.values[at*e.from.columns:][:e.from.columns]
		if x.values[i] = row[e.point]; math.IsNaN(x.values[i]) {
			what = partial
		}
		if e.low >= 0 {
			x.lows[i], x.highs[i] = row[e.low], row[e.high]
		}
	}
	return what
}

// client scores the forecasts of a client.
func (s *scorer) client(m series.Meter) error {
	first := s.files[0].clients[m.ID]
	for _, f := range s.files {
		if f.clients[m.ID] == nil {
			if s.absent = append(s.absent, m.ID); first != nil {
				s.alone += len(first.keys)
			}
			return nil
		}
	}
	points := make([]metric.Point, len(s.all))
	inside := make([]int, len(s.all))
	errs := make([][]float64, len(s.all))
	x := forecasts{make([]float64, len(s.all)), make([]float64, len(s.all)), make([]float64, len(s.all))}
	n := 0
	for _, k := range first.keys {
		step := (k.at - m.Start) / s.d.Seconds()
		switch {
		case (k.at-m.Start)%s.d.Seconds() != 0:
			s.offGrid++
			continue
		case step < 0 || step >= int64(len(m.Load)):
			s.outside++
			continue
		}
		s.compareLoads(m, k, int(step))
		if series.Missing(m.Load[step]) {
			s.unknownLoad++
			continue
		}
		load := float64(m.Load[step])
		switch s.at(m, k, &x) {
		case missed:
			s.alone++
			continue
		case partial:
			s.incomplete++
			continue
		}
		n++
		reference := s.reference(m, int(step), k.cutoff)
		for i, e := range s.all {
			if err := points[i].Add(x.values[i], load, reference); err != nil {
				return fmt.Errorf("%s at %s: %w", e.name, stamp(k.at), err)
			}
			errs[i] = append(errs[i], x.values[i]-load)
			if e.low >= 0 && x.lows[i] <= load && load <= x.highs[i] {
				inside[i]++
			}
		}
	}
	if n == 0 {
		return nil
	}
	s.addClient(m.ID, n, points, inside, errs)
	return nil
}

// addClient adds the scores of a client with n targets.
func (s *scorer) addClient(id string, n int, points []metric.Point, inside []int, errs [][]float64) {
	s.out.Targets += n
	for i, e := range s.all {
		p := &points[i]
		c := Client{ID: id, Targets: n, MAE: p.MAE(), RelativeMAE: p.RelativeMAE(), Bias: p.Bias()}
		if e.low >= 0 {
			share, level := float64(inside[i])/float64(n), e.level
			c.Coverage, s.out.Methods[i].Level = &share, &level
		}
		s.out.Methods[i].Clients = append(s.out.Methods[i].Clients, c)
		// For too few targets or equal forecasts, the test has no statistic, and the methods
		// count as not significantly different.
		if dm, err := metric.DieboldMariano(errs[i], errs[0], metric.Absolute); i > 0 && err == nil && dm.Significant() {
			if dm.Statistic < 0 {
				s.out.Methods[i].Better++
			} else {
				s.out.Methods[i].Worse++
			}
		}
	}
}

// reference returns the load at the same clock time in the newest week that was known at the
// cutoff.
func (s *scorer) reference(m series.Meter, step int, cutoff int64) float64 {
	newest := int((cutoff - m.Start) / s.d.Seconds())
	for days := 7; days <= 28; days += 7 {
		if at := s.frame.Lag(m, step, days); at >= 0 && at < newest && !series.Missing(m.Load[at]) {
			return float64(m.Load[at])
		}
	}
	return math.NaN()
}

// compareLoads compares the loads in files with the dataset's loads at the same step and at the
// neighbouring steps, because times in files often follow another clock.
func (s *scorer) compareLoads(m series.Meter, k key, step int) {
	if s.shifted == nil {
		s.shifted = map[int]int{}
	}
	for _, f := range s.files {
		r := f.clients[m.ID]
		at := -1
		if f.y >= 0 {
			at = r.find(k)
		}
		if at < 0 || math.IsNaN(r.values[at*f.columns+f.y]) {
			continue
		}
		y := r.values[at*f.columns+f.y]
		s.ys++
		near := func(i int) bool {
			return i >= 0 && i < len(m.Load) && !series.Missing(m.Load[i]) && math.Abs(float64(m.Load[i])-y) <= 1e-4*max(1, math.Abs(y))
		}
		if near(step) {
			continue
		}
		if s.wrong++; s.example == "" {
			s.example = fmt.Sprintf("%s at %s: y is %.6g, the load is %.6g", m.ID, stamp(k.at), y, m.Load[step])
		}
		for by := -24; by <= 24; by++ {
			if near(step + by) {
				s.shifted[by]++
			}
		}
	}
}

// notes writes notes about omitted and suspicious data.
func (s *scorer) notes(known map[string]bool) {
	say := func(format string, a ...any) { s.out.Found = append(s.out.Found, fmt.Sprintf(format, a...)) }
	for _, f := range s.files {
		var strange []string
		for _, id := range slices.Sorted(maps.Keys(f.clients)) {
			if !known[id] {
				strange = append(strange, id)
			}
		}
		if len(strange) > 0 {
			say("%s: %d clients are not in the dataset, such as %s; it has clients such as %s", f.name, len(strange), strange[0], s.d.Meter(0).ID)
		}
		if !f.ends {
			say("%s: cutoffs are taken as the newest known time, because no forecast begins at its cutoff", f.name)
		}
		if f.zone {
			say("%s: times without an offset are taken as those of %s", f.name, s.d.Clock)
		}
	}
	if s.wrong > 0 {
		text := ""
		for by, n := range s.shifted {
			if by != 0 && n > s.wrong*9/10 {
				way := "later"
				if by < 0 {
					by, way = -by, "earlier"
				}
				text = fmt.Sprintf("; nearly all agree with the load %d minutes %s, so the times of the file seem to be wrong by that: write them with their UTC offset", int64(by)*s.d.Seconds()/60, way)
			}
		}
		say("%d of %d loads y differ from the dataset's (%s)%s", s.wrong, s.ys, s.example, text)
	}
	if len(s.absent) > 0 {
		say("%d clients of the dataset are not in all files, such as %s", len(s.absent), s.absent[0])
	}
	for _, x := range []struct {
		n    int
		text string
	}{
		{s.offGrid, "forecasts are not at the start of a step of the dataset"},
		{s.outside, "forecasts are before or after the readings"},
		{s.unknownLoad, "forecasts have no reading"},
		{s.alone, "forecasts are not in all files, with the same cutoff"},
		{s.incomplete, "forecasts have no value of one of the methods"},
	} {
		if x.n > 0 {
			say("%d %s: left out", x.n, x.text)
		}
	}
}

func (m *Method) summarize() {
	var relative, coverage []float64
	for _, c := range m.Clients {
		m.MAE += c.MAE / float64(len(m.Clients))
		m.Bias += c.Bias / float64(len(m.Clients))
		if !math.IsNaN(c.RelativeMAE) {
			relative = append(relative, c.RelativeMAE)
		}
		if c.Coverage != nil {
			coverage = append(coverage, *c.Coverage)
		}
	}
	all := metric.NewSpread(relative)
	m.RelativeMAE, m.RelativeMean = float64(all.Median), float64(all.Mean)
	if len(coverage) > 0 {
		median := float64(metric.NewSpread(coverage).Median)
		m.Coverage = &median
	}
}

// sorted returns the methods, lowest error first.
func (r *Result) sorted() []Method {
	all := slices.Clone(r.Methods)
	slices.SortStableFunc(all, func(a, b Method) int { return cmp.Compare(a.RelativeMAE, b.RelativeMAE) })
	return all
}

// Print writes the notes and then a table, lowest error first.
func (r *Result) Print(w io.Writer) error {
	fmt.Fprintf(w, "%s: %d forecasts of %d clients that all methods have%s\n", r.Dataset, r.Targets, len(r.Methods[0].Clients), textfmt.Synthetic(r.Generated))
	for _, f := range r.Found {
		fmt.Fprintf(w, "note: %s\n", f)
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "METHOD\tRELATIVE MAE\tMEAN\tMAE kW\tBIAS kW\tIN INTERVAL\tBETTER\tWORSE\t\n")
	for _, m := range r.sorted() {
		inside, versus := "-", "-\t-"
		if m.Coverage != nil {
			inside = fmt.Sprintf("%.1f %% of %.0f", 100**m.Coverage, 100**m.Level)
		}
		if m.Name != r.Methods[0].Name {
			versus = fmt.Sprintf("%d\t%d", m.Better, m.Worse)
		}
		fmt.Fprintf(t, "%s\t%.3f\t%.3f\t%.4g\t%+.3g\t%s\t%s\t\n", m.Name, m.RelativeMAE, m.RelativeMean, m.MAE, m.Bias, inside, versus)
	}
	err := t.Flush()
	_, last := fmt.Fprintf(w, "relative MAE: to last week's load, median client; BETTER and WORSE: clients for which the method differs from %s by more than chance\n", r.Methods[0].Name)
	return errors.Join(err, last)
}
