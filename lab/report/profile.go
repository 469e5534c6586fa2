package report

import (
	"fmt"
	"math"
	"strings"
)

// byHour is the error by the hour of the day.
func (s *dataset) byHour() (figure, bool) {
	f, ok := s.profile("hour", "hour of the day on the dataset's clock", "hour")
	if !ok {
		return f, false
	}
	d := f.data.(map[string]any)
	d["clock"], d["ticks"] = true, []int{0, 3, 6, 9, 12, 15, 18, 21}
	f.Title = "Error by hour of the day"
	f.Caption = "Mean absolute error relative to a client's mean load, as a mean over clients." + f.Caption
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
	f.Caption = "Mean absolute error relative to a client's mean load, as a mean over clients, from the nearest target of a forecast to the farthest." + f.Caption
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
	least, greatest, lowest := math.Inf(1), 0.0, math.Inf(1) // lowest: the worst of the best method
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
		said = append(said, fmt.Sprintf("%s is worst at %s %d with %s %%", m.name, by, where, short(worst)))
	}
	f := figure{
		Kind: "lines", Tables: []Table{t}, Layout: "narrow",
		Alt: "Line chart of the relative error by " + by + ". " + strings.Join(said, "; ") + ".",
	}
	d := map[string]any{"x": xs, "series": drawn(lines), "xLabel": label, "xName": name, "yLabel": "↑ NMAE, % of mean load"}
	f.data, f.Caption = d, undrawn(lines)
	// A method under which a few clients blew up must not press the others together.
	if top := 4 * lowest; greatest > top {
		d["range"] = []num{num(min(least, lowest/2)), num(top)}
		f.Caption += " What is beyond the axis is in the table."
	}
	return f, true
}
