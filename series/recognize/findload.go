package recognize

import (
	"fmt"
	"maps"
	"slices"

	"loadstar/series/table"
)

// candidates are the columns that may be the load.
type candidates struct {
	f     *Finding
	kinds []content
	rest  []int
}

// notLoad are rules for columns that are not the load, in the order in which they apply.
var notLoad = []struct {
	wide bool // the rule applies even if the user says that each column is a meter
	is   func(name string, kind content) bool
}{
	{true, func(_ string, kind content) bool { return kind == text }},
	{false, func(name string, _ content) bool { return has(name, otherWords) && !has(name, energyWords) }},
	{false, func(name string, _ content) bool { return has(name, exportWords) }},
	{false, func(name string, _ content) bool { return has(name, sumWords) }},
}

// loadRules are rules that decide which column is the load. The first rule that applies is
// used. The result -1 means that there is no load column.
var loadRules = []struct {
	applies func(c *candidates) bool
	column  func(c *candidates) int
}{
	{func(c *candidates) bool { return len(c.rest) == 1 }, func(c *candidates) int { return c.rest[0] }},
	{func(c *candidates) bool { return len(c.named()) == 1 }, func(c *candidates) int { return c.named()[0] }},
	{
		func(c *candidates) bool { return len(c.named()) > 1 && c.f.Columns["meter"] != "" },
		func(c *candidates) int { // prefer energy or power to words such as value
			better := slices.DeleteFunc(c.named(), func(i int) bool { return is(c.f.Names[i], valueWords) })
			if len(better) != 1 {
				return -1
			}
			return better[0]
		},
	},
	{func(c *candidates) bool { return len(c.withUnit()) == 1 }, func(c *candidates) int { return c.withUnit()[0] }},
}

// leave removes columns from the candidates, unless no column of numbers would remain.
func (c *candidates) leave(which func(i int) bool) {
	if !slices.ContainsFunc(c.rest, func(i int) bool { return !which(i) && c.kinds[i] == number }) {
		return
	}
	c.rest = slices.DeleteFunc(c.rest, func(i int) bool {
		if which(i) {
			c.f.Ignored = append(c.f.Ignored, c.f.Names[i])
		}
		return which(i)
	})
}

// isLoad reports whether a column has the name of a load.
func (c *candidates) isLoad(i int) bool {
	n := c.f.Names[i]
	return c.kinds[i] != text && (is(n, energyWords) || is(n, powerWords) || is(n, valueWords) || is(n, counterWords) || is(n, words("load kw")))
}

// named returns the columns with the name of a load.
func (c *candidates) named() []int {
	return slices.DeleteFunc(slices.Clone(c.rest), func(i int) bool { return !c.isLoad(i) })
}

// withUnit returns the columns whose names contain a unit.
func (c *candidates) withUnit() []int {
	return slices.DeleteFunc(slices.Clone(c.rest), func(i int) bool { return table.UnitOf(c.f.Names[i]) == "" })
}

// weather maps our names for weather columns to the names in the file.
func (c *candidates) weather() map[string]string {
	found := map[string]string{}
	for ours, entries := range weatherWords {
		for _, i := range c.rest {
			if c.kinds[i] == number && found[ours] == "" && is(c.f.Names[i], entries) {
				found[ours] = c.f.Names[i]
			}
		}
	}
	return found
}

// column returns the column of the load, or -1 if no rule finds one, for example because each
// column is a meter.
func (c *candidates) column() int {
	for _, rule := range loadRules {
		if rule.applies(c) {
			return rule.column(c)
		}
	}
	return -1
}

// findLoad finds the load: a column of a table in the long format, or the columns of the
// meters.
func (f *Finding) findLoad(h Hints, rest []int, kinds []content) error {
	c := &candidates{f, kinds, rest}
	weather := c.weather()
	if f.Columns["load"] == "" && len(weather) > 0 && !slices.ContainsFunc(rest, c.isLoad) && f.Columns["meter"] == "" && !h.Wide {
		f.Kind = Weather
		maps.Copy(f.Columns, weather)
		return nil
	}
	f.Kind = Load
	if f.Columns["load"] != "" && !h.Wide {
		f.long(h, rest, rest, kinds)
		return nil
	}
	all := slices.Clone(rest)
	for _, theirs := range slices.Sorted(maps.Values(weather)) {
		c.leave(func(i int) bool { return f.Names[i] == theirs })
	}
	for _, rule := range notLoad {
		if rule.wide || !h.Wide {
			c.leave(func(i int) bool { return rule.is(f.Names[i], kinds[i]) })
		}
	}
	c.rest = slices.DeleteFunc(c.rest, func(i int) bool { return kinds[i] == text })
	if len(c.rest) == 0 {
		return fmt.Errorf("line %d: there is a column of times (%s) but none of numbers; the columns are %s; name the load with --column load=NAME", f.Line, f.Columns["time"], list(f.Names))
	}
	if h.Wide {
		f.wide(c.rest)
		return nil
	}
	single := c.column()
	if single >= 0 {
		f.Columns["load"] = f.Names[single]
		f.long(h, slices.DeleteFunc(c.rest, func(i int) bool { return i == single }), all, kinds)
		return nil
	}
	if f.Columns["meter"] != "" {
		var names []string
		for _, i := range c.rest {
			names = append(names, f.Names[i])
		}
		return fmt.Errorf("line %d: meters are in column %s, but several columns may be the load: %s; choose one with --column load=NAME", f.Line, f.Columns["meter"], list(names))
	}
	f.wide(c.rest)
	return nil
}

// long completes a table with one column of loads. It ignores the other columns, unless one of
// them names the meter.
func (f *Finding) long(h Hints, others, all []int, kinds []content) {
	f.ignore(others)
	if h.Columns["meter"] == "" {
		f.nameMeter(all, kinds)
	}
}

// wide completes a table in which each of the given columns is a meter.
func (f *Finding) wide(columns []int) {
	f.Wide = true
	delete(f.Columns, "quality")
	for _, i := range columns {
		f.Meters = append(f.Meters, table.WithoutUnit(f.Names[i]))
	}
	f.Ignored = nil
	for i, name := range f.Names {
		if name != "" && name != f.Columns["time"] && name != f.Columns["date"] && !slices.Contains(columns, i) && !slices.Contains(f.Ignored, name) {
			f.Ignored = append(f.Ignored, name)
		}
	}
}
