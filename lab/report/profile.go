package report

import (
	"fmt"
	"math"
	"strings"
)

// byHour returns a chart of the error by hour of the day.
func (s *dataset) byHour() (figure, bool) {
	f, ok := s.profile("hour", func(at int) string { return fmt.Sprintf("%02d:00", at) })
	if !ok {
		return f, false
	}
	d := f.data.(map[string]any)
	d["xLabel"], d["xName"], d["clock"], d["ticks"] = "hour of the day, "+s.clock(), "", true, []int{0, 3, 6, 9, 12, 15, 18, 21}
	f.Title = "Error by hour of the day"
	f.Caption = "Mean absolute error relative to the client's mean load, averaged over clients." + f.Caption
	return f, true
}

// clock names the clock of the dataset.
func (s *dataset) clock() string {
	if zone := s.trained()[0].runs[0].zone; zone != "" {
		return "local time (" + zone + ")"
	}
	return "local time of the dataset"
}

// byStep returns a chart of the error by the lead of the forecast.
func (s *dataset) byStep() (figure, bool) {
	r := s.trained()[0].runs[0]
	f, ok := s.profile("step", r.ahead)
	if !ok || len(f.Tables[0].Rows) < 2 {
		return f, false
	}
	d := f.data.(map[string]any)
	d["zero"], d["ticks"], d["xName"], d["xLabel"] = true, min(len(f.Tables[0].Rows), 12), "", "forecast step"
	if r.interval > 0 {
		hours := make([]num, 0, len(f.Tables[0].Rows))
		for _, step := range d["x"].([]int) {
			hours = append(hours, num(float64(int64(max(r.setting("model.horizon"), 1)+step-1)*r.interval)/3600))
		}
		d["x"], d["xLabel"] = hours, "lead, hours"
	}
	f.Title = "Error by lead"
	f.Caption = "Mean absolute error relative to the client's mean load, averaged over clients, from the nearest target of a forecast to the farthest." + f.Caption
	return f, true
}

// profile returns a chart of the error by hour or step. name returns the name of an hour or a
// step in tables and tooltips.
func (s *dataset) profile(by string, name func(int) string) (figure, bool) {
	t := Table{Title: "Error by " + strings.Replace(by, "step", "lead", 1), Note: "NMAE in %", Columns: []string{strings.Replace(by, "step", "lead", 1)}}
	var lines []line
	var all []*method
	var xs []int
	var said, at []string
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
		t.Rows = append(t.Rows, []string{name(x)})
		at = append(at, name(x))
	}
	least, greatest, lowest := math.Inf(1), 0.0, math.Inf(1) // lowest is the largest error of the best method
	add := func(l line, value func(x int) float64) {
		worst, where := 0.0, 0
		for i, x := range xs {
			y := value(x)
			if y > worst {
				worst, where = y, i
			}
			least = min(least, y)
			l.Y = append(l.Y, num(y))
			t.Rows[i] = append(t.Rows[i], short(y))
		}
		greatest, lowest = max(greatest, worst), min(lowest, worst)
		t.Columns = append(t.Columns, l.Name)
		lines = append(lines, l)
		said = append(said, fmt.Sprintf("%s has its largest error at %s: %s %%", l.Name, at[where], short(worst)))
	}
	for _, m := range all {
		add(line{Name: m.name, Look: m.look}, func(x int) float64 {
			var v []float64
			for _, r := range m.runs {
				for _, p := range r.profile {
					if p.By == by && p.At == x {
						v = append(v, 100*p.NMAE)
					}
				}
			}
			return mean(v)
		})
	}
	shown, note := shownLines(lines), omittedNote(lines)
	for _, b := range s.baselineProfiles(by) {
		add(line{Name: b.name, Look: b.look}, func(x int) float64 {
			if v, ok := b.at[x]; ok {
				return v
			}
			return math.NaN()
		})
		shown = append(shown[:len(shown):len(shown)], lines[len(lines)-1])
	}
	f := figure{
		Kind: "lines", Tables: []Table{t}, Layout: "narrow",
		Alt: "Line chart of the relative error by " + strings.Replace(by, "step", "lead", 1) + ". " + strings.Join(said, "; ") + ".",
	}
	d := map[string]any{"x": xs, "at": at, "series": shown, "yLabel": "↑ NMAE, % of mean load", "zero": true}
	f.data, f.Caption = d, note
	// A method that diverged for a few clients must not compress the other methods' lines.
	if top := 4 * lowest; greatest > top {
		d["range"] = []num{num(min(least, lowest/2)), num(top)}
		f.Caption += " Values beyond the axis are in the table."
	}
	return f, true
}

// baselineProfile contains the errors of a baseline in per cent, by hour or by step.
type baselineProfile struct {
	name string
	look int
	at   map[int]float64
}

// baselineProfiles returns the errors of the strongest baseline and of last week's profile.
func (s *dataset) baselineProfiles(by string) []baselineProfile {
	if s.beside == nil {
		return nil
	}
	var to []baselineProfile
	strongest := ""
	if b := s.strongest(); b != nil {
		strongest = b.name
	}
	for _, p := range s.beside.Profile {
		if p.By != by || p.Method != strongest && p.Method != "naive-week" {
			continue
		}
		if n := len(to); n == 0 || to[n-1].name != p.Method {
			to = append(to, baselineProfile{p.Method, -1 - b2i(p.Method == "naive-week"), map[int]float64{}})
		}
		to[len(to)-1].at[p.At] = 100 * p.NMAE
	}
	return to
}
