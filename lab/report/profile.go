package report

import (
	"fmt"
	"math"
	"strings"
)

// byHour returns a chart of the error by hour of the day.
func (s *dataset) byHour() (figure, bool) {
	f, ok := s.profile("hour", "hour of the day in the dataset's time zone", "hour")
	if !ok {
		return f, false
	}
	d := f.data.(map[string]any)
	d["clock"], d["ticks"] = true, []int{0, 3, 6, 9, 12, 15, 18, 21}
	f.Title = "Error by hour of the day"
	f.Caption = "Mean absolute error relative to the client's mean load, averaged over clients." + f.Caption
	return f, true
}

// byStep returns a chart of the error by forecast step.
func (s *dataset) byStep() (figure, bool) {
	f, ok := s.profile("step", "forecast step", "step")
	if !ok || len(f.Tables[0].Rows) < 2 {
		return f, false
	}
	d := f.data.(map[string]any)
	d["zero"], d["ticks"] = true, min(len(f.Tables[0].Rows), 12)
	f.Title = "Error by forecast horizon"
	f.Caption = "Mean absolute error relative to the client's mean load, averaged over clients, from the first step of a forecast to the last." + f.Caption
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
	least, greatest, lowest := math.Inf(1), 0.0, math.Inf(1) // lowest: the largest error of the best method
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
			least = min(least, y)
			l.Y = append(l.Y, num(y))
			t.Rows[i] = append(t.Rows[i], short(y))
		}
		greatest, lowest = max(greatest, worst), min(lowest, worst)
		t.Columns = append(t.Columns, m.name)
		lines = append(lines, l)
		said = append(said, fmt.Sprintf("%s has its largest error at %s %d: %s %%", m.name, by, where, short(worst)))
	}
	f := figure{
		Kind: "lines", Tables: []Table{t}, Layout: "narrow",
		Alt: "Line chart of the relative error by " + by + ". " + strings.Join(said, "; ") + ".",
	}
	d := map[string]any{"x": xs, "series": shownLines(lines), "xLabel": label, "xName": name, "yLabel": "↑ NMAE, % of mean load"}
	f.data, f.Caption = d, omittedNote(lines)
	// A method that diverged for a few clients must not compress the lines of other
	// methods.
	if top := 4 * lowest; greatest > top {
		d["range"] = []num{num(min(least, lowest/2)), num(top)}
		f.Caption += " Values beyond the axis are in the table."
	}
	return f, true
}
