package score

import (
	"fmt"
	"math"
	"slices"
	"time"

	"loadstar/lab/report"
	"loadstar/lab/run"
	"loadstar/series"
)

// Rename sets the name of the file's method. A file with several methods keeps its names.
func (f *Forecasts) Rename(name string) error {
	if len(f.methods) != 1 {
		return fmt.Errorf("it has %d forecasts, which keep their own names; omit =%s", len(f.methods), name)
	}
	f.name, f.methods[0].name = name, name
	return nil
}

// Curves returns the forecasts of the file's first method for the drawn clients, in the format
// for reports. For each time, it returns the forecasts with the shortest and the longest lead,
// ignoring leads beyond the last step that the run forecasts.
func (f *Forecasts) Curves(d *series.Dataset, leads run.Leads, drawn map[string]bool) (name string, all []run.BaselineCurve) {
	m := f.methods[0]
	for i := range d.Len() {
		meter := d.Meter(i)
		r := f.clients[meter.ID]
		if r == nil || !drawn[meter.ID] {
			continue
		}
		type best struct {
			curve     run.BaselineCurve
			near, far int64
		}
		at := map[int64]*best{}
		for k, x := range r.keys {
			step := (x.at-x.cutoff)/d.Seconds() + 1
			v := r.values[k*f.columns+m.point]
			if math.IsNaN(v) || step > int64(leads.Targets) {
				continue
			}
			b := at[x.at]
			if b == nil {
				b = &best{near: math.MaxInt64}
				b.curve = run.BaselineCurve{Method: m.name, Client: meter.ID, Time: time.Unix(x.at, 0).In(d.Clock), Near: run.Missing, Far: run.Missing}
				at[x.at] = b
			}
			if step < b.near {
				b.near, b.curve.Near = step, run.Rounded(v)
			}
			if leads.HasFar() && step > b.far {
				b.far, b.curve.Far = step, run.Rounded(v)
			}
		}
		var one []run.BaselineCurve
		for _, b := range at {
			one = append(one, b.curve)
		}
		slices.SortFunc(one, func(a, b run.BaselineCurve) int { return a.Time.Compare(b.Time) })
		all = append(all, one...)
	}
	return m.name, all
}

// Table returns the scores for a report.
func (r *Result) Table() report.Table {
	first := r.Methods[0].Name
	t := report.Table{
		Title: "Beside the forecasts of other programs",
		Note: fmt.Sprintf("On the %d forecasts of %d clients that all methods have, so the figures of %s differ from those elsewhere on this page. Relative to the newest week that was known: below 1 is better. "+
			"Better and worse count the clients for which a method differs from %s by more than chance (Diebold-Mariano test of absolute errors, 5 %%).", r.Targets, len(r.Methods[0].Clients), first, first),
		Columns: []string{"method", "median relative MAE", "mean", "MAE, kW", "bias, kW", "in the interval", "better", "worse"},
	}
	for _, found := range r.Found {
		t.Note += " Note: " + found + "."
	}
	for _, m := range r.sorted() {
		inside, better, worse := "–", "–", "–"
		if m.Coverage != nil {
			inside = fmt.Sprintf("%.1f %% of %.0f", 100**m.Coverage, 100**m.Level)
		}
		if m.Name != first {
			better, worse = fmt.Sprint(m.Better), fmt.Sprint(m.Worse)
		}
		t.Rows = append(t.Rows, []string{m.Name, fmt.Sprintf("%.3f", m.RelativeMAE), fmt.Sprintf("%.3f", m.RelativeMean), fmt.Sprintf("%.4g", m.MAE), fmt.Sprintf("%+.3g", m.Bias), inside, better, worse})
	}
	t.Best = 1
	return t
}
