package recognize

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"loadstar/series/table"
)

// loadColumns returns the indexes of the load columns.
func (f *Finding) loadColumns() []int {
	if !f.Wide {
		return []int{f.index(f.Columns["load"])}
	}
	var out []int
	for i, name := range f.Names {
		if name != "" && name != f.Columns["time"] && name != f.Columns["date"] && !slices.Contains(f.Ignored, name) {
			out = append(out, i)
		}
	}
	return out
}

// findDecimal finds the decimal separator.
func (f *Finding) findDecimal(h Hints) error {
	if f.Format.Decimal = h.Decimal; h.Decimal != 0 {
		return nil
	}
	var columns [][]string
	if f.Kind == Load {
		for _, i := range f.loadColumns() {
			columns = append(columns, f.grid.column(i))
		}
	} else {
		for ours, theirs := range f.Columns {
			if ours != "time" && ours != "date" {
				columns = append(columns, f.grid.column(f.index(theirs)))
			}
		}
	}
	d := decide(columns)
	if d.clash != "" {
		return fmt.Errorf("the numbers %s have different decimal separators; choose one with --decimal", d.clash)
	}
	f.Format.Decimal = d.decimal
	if d.open && !(f.Format.Delimiter == ',' && strings.Contains(d.example, ".")) {
		f.Decimals = d.example
	}
	return nil
}

// findUnit looks for the unit in the headings, in the lines below the header, and above the
// header.
func (f *Finding) findUnit() error {
	columns := f.loadColumns()
	first := ""
	for _, i := range columns {
		name := f.Names[i]
		f.Energy = f.Energy || has(name, energyWords) || has(name, counterWords)
		unit, from := table.UnitOf(name), "heading"
		for _, row := range f.grid.units {
			if unit == "" && i < len(row) {
				unit, from = table.UnitOf(row[i]), "line below the header"
			}
		}
		if unit == "" {
			continue
		}
		if f.Unit != "" && unit != f.Unit {
			return fmt.Errorf("line %d: %s is in %s, but %s is in %s; leave one of them out with --ignore, or give --unit", f.Line, first, f.Unit, name, unit)
		}
		f.Unit, f.UnitFrom, first = unit, from, name
	}
	for i, name := range f.Names {
		if f.Unit == "" && is(name, unitWords) && len(f.grid.rows) > 0 && i < len(f.grid.rows[0]) {
			f.Unit, f.UnitFrom = table.UnitOf(f.grid.rows[0][i]), "column "+name
		}
	}
	if f.Unit == "" {
		if f.Unit = f.grid.unitAbove(); f.Unit != "" {
			f.UnitFrom = "lines above the header"
		}
	}
	return nil
}

// unitAbove looks for the unit above the header, in a line that contains the word unit, or
// below a field that contains this word.
func (g *grid) unitAbove() string {
	for i, line := range g.preamble {
		if !has(line, unitWords) {
			continue
		}
		if unit := table.UnitOf(line); unit != "" {
			return unit
		}
		fields, err := table.Split([]byte(line), g.format.Delimiter)
		if err != nil || i+1 == len(g.preamble) {
			continue
		}
		below, err := table.Split([]byte(g.preamble[i+1]), g.format.Delimiter)
		if k := slices.IndexFunc(fields, func(s string) bool { return is(s, unitWords) }); err == nil && k >= 0 && k < len(below) {
			return table.UnitOf(below[k])
		}
	}
	return ""
}

// Values that never decrease are assumed to be the readings of a counter if there are at least
// this many readings.
const (
	counterRows      = 96
	namedCounterRows = 2
)

// findCounter decides whether values are the readings of a counter. Such values never decrease.
// In addition, the heading must name a counter, or there must be many values.
func (f *Finding) findCounter() {
	if u := f.Unit; u == "kW" || u == "W" || u == "MW" {
		return
	}
	named := true
	rises, pairs := 0, 0
	meter := f.index(f.Columns["meter"])
	forward := len(f.grid.rows) < 2 || f.ascending()
	for _, i := range f.loadColumns() {
		named = named && has(f.Names[i], counterWords)
		before := map[string]float64{}
		for _, r := range f.grid.rows {
			if i >= len(r) {
				continue
			}
			v, ok := f.value(r[i])
			if !ok {
				continue
			}
			id := ""
			if meter >= 0 && meter < len(r) {
				id = r[meter]
			}
			if old, ok := before[id]; ok {
				if v != old && v > old != forward {
					return
				}
				pairs++
				if v != old {
					rises++
				}
			}
			before[id] = v
		}
	}
	if named && pairs >= namedCounterRows || pairs >= counterRows && 10*rises > pairs {
		f.Counter = true
		f.Stamp, f.Why = "", ""
	}
}

func (f *Finding) ascending() bool {
	d, c := f.times(f.grid.rows[0])
	first, _ := label(d, c, f.Dates[0])
	for _, r := range f.grid.rows[1:] {
		d, c := f.times(r)
		if at, ok := label(d, c, f.Dates[0]); ok && at != first {
			return at > first
		}
	}
	return true
}

func (f *Finding) value(s string) (float64, bool) {
	cell := table.Text([]byte(s))
	if cell.IsEmpty() {
		return 0, false
	}
	decimal := cmp.Or(f.Format.Decimal, '.')
	return table.ParseNumber([]byte(s), decimal)
}

// findQuality lists the different values of the quality column.
func (f *Finding) findQuality() {
	i := f.index(f.Columns["quality"])
	if i < 0 {
		return
	}
	for _, s := range f.grid.column(i) {
		if s == "" || slices.Contains(f.Quality, s) {
			continue
		}
		if f.Quality = append(f.Quality, s); len(f.Quality) > 20 {
			break
		}
	}
	// In German data, the mark W means a measured value, and F means a missing value.
	if slices.Contains(f.Quality, "W") || slices.Contains(f.Quality, "F") && slices.Contains(f.Quality, "E") {
		f.Missing = append(f.Missing, "F")
	}
	slices.Sort(f.Quality)
}
