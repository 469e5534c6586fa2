package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// forecasts returns a chart of two weeks of forecasts for a sample of clients.
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
		Values [][][]num `json:"values"` // values by lead time and client
		// Low and High are P10 and P90 in the same form, or nil if the model does not
		// forecast them.
		Low  [][][]num `json:"low,omitempty"`
		High [][][]num `json:"high,omitempty"`
	}
	var from *Run
	for _, m := range s.trained() {
		if len(m.runs[0].excerpts) > 0 {
			from = m.runs[0]
			break
		}
	}
	if from == nil {
		return figure{}, false
	}
	var clients []client
	var names []string
	for i, x := range from.excerpts {
		clients = append(clients, client{x.client, i, x.start, nums(x.actual), nums(x.before)})
		names = append(names, x.client)
	}
	leads := from.excerpts[0].leads
	t := Table{
		Title: "Mean absolute error of these clients, kW", Note: "in the whole test period, first seed",
		Columns: []string{"client", "same time last week"},
	}
	for _, x := range from.excerpts {
		t.Rows = append(t.Rows, []string{x.client, short(x.weekMAE)})
	}
	var methods []shown
	var options []string
	bands := false
	for _, m := range s.trained() {
		if len(methods) == shownMethods || len(m.runs[0].excerpts) == 0 {
			continue
		}
		d := shown{Name: m.name, Look: m.look}
		banded := false
		t.Columns = append(t.Columns, m.name)
		for i := range clients {
			t.Rows[i] = append(t.Rows[i], none)
		}
		for k, l := range leads {
			d.Values, d.Low, d.High = append(d.Values, make([][]num, len(clients))), append(d.Low, make([][]num, len(clients))), append(d.High, make([][]num, len(clients)))
			for _, x := range m.runs[0].excerpts {
				i := slices.Index(names, x.client)
				if i < 0 || x.interval != from.excerpts[i].interval {
					continue
				}
				t.Rows[i][len(t.Columns)-1] = short(x.mae)
				d.Values[k][i] = aligned(from.excerpts[i], x, l.steps, func(l lead) []float64 { return l.values })
				d.Low[k][i] = aligned(from.excerpts[i], x, l.steps, func(l lead) []float64 { return l.low })
				d.High[k][i] = aligned(from.excerpts[i], x, l.steps, func(l lead) []float64 { return l.high })
				banded = banded || slices.ContainsFunc(d.Low[k][i], func(v num) bool { return !math.IsNaN(float64(v)) })
			}
		}
		if !banded {
			d.Low, d.High = nil, nil
		}
		bands = bands || banded
		methods = append(methods, d)
		options = append(options, m.name)
	}
	var ahead []string
	for _, l := range leads {
		name := fmt.Sprintf("step %d", l.steps)
		if l.until > l.steps {
			name = fmt.Sprintf("steps %d to %d", l.steps, l.until)
		}
		ahead = append(ahead, name)
	}
	days := math.Round(float64(len(clients[0].Actual)) * float64(from.excerpts[0].interval) / 86400)
	f := figure{
		Kind: "forecast", Title: fmt.Sprintf("Forecasts for %s of the test period", plural(int(days), "day")), Tables: []Table{t}, Layout: "wide",
		Caption: fmt.Sprintf("Forecast and actual load of %s in kW, from the middle of the test period, and the load at the same time a week earlier. The chart starts with %s.", plural(len(clients), "client"), methods[0].Name),
		Alt:     fmt.Sprintf("Line charts of the load of %s, the forecast by %s and the load a week earlier; mean errors are in the table.", list(names), methods[0].Name),
		data: map[string]any{
			"clients": clients, "methods": methods, "interval": from.excerpts[0].interval,
			"choices": []map[string]any{
				{"key": "method", "label": "Method", "options": options},
				{"key": "lead", "label": "Forecast step", "options": ahead},
			},
		},
	}
	if bands {
		f.Caption += " The band is the calibrated interval from P10 to P90, which should contain 80 % of the loads."
		f.Alt = strings.Replace(f.Alt, "and the load a week", "its interval from P10 to P90 and the load a week", 1)
	}
	if len(methods) == 1 {
		f.Caption = strings.Replace(f.Caption, " The chart starts with "+methods[0].Name+".", "", 1)
	}
	return f, true
}

// aligned returns values of the forecasts of excerpt of with the given lead time, at the
// times of excerpt onto. Times without a forecast are NaN.
func aligned(onto, of excerpt, steps int, values func(lead) []float64) []num {
	to := make([]num, len(onto.actual))
	for i := range to {
		to[i] = num(math.NaN())
	}
	for _, l := range of.leads {
		if l.steps != steps {
			continue
		}
		for i, v := range values(l) {
			if j := int((of.start-onto.start)/onto.interval) + i; j >= 0 && j < len(to) {
				to[j] = num(v)
			}
		}
	}
	return to
}
