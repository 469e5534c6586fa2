package recognize

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"loadstar/series/table"
)

// content is the kind of a column's fields.
type content int

const (
	text content = iota
	blank
	number
	clockTime
	dateTime // a date, with or without a time of day
)

// contentOf determines the kind of a column's fields. A few fields of another kind are ignored.
func (g *grid) contentOf(i int) content {
	const enough = 300
	var filled, numbers, clocks, dates, digits int
	last, lastDate := "", false
	clock := has(g.header[i], clockWords) // such as 23.15, which is also a number
	for _, s := range g.column(i) {
		if filled == enough {
			break
		}
		cell := table.Text([]byte(s))
		if cell.IsEmpty() {
			continue
		}
		filled++
		if isNumber(s) {
			numbers++
		}
		if (strings.ContainsAny(s, ":h") || clock && len(s) >= 4 && strings.IndexByte(s, '.') == len(s)-3) && isClock(s) {
			clocks++
		}
		if allDigits(s) && len(s) >= 8 {
			digits++
		}
		if s != last {
			last, lastDate = s, len(dateForms(s, nil)) > 0
		}
		if lastDate {
			dates++
		}
	}
	most := func(n int) bool { return 10*n > 9*filled }
	switch {
	case filled == 0:
		return blank
	case most(dates) && (!most(numbers) || most(digits) && (has(g.header[i], dateWords) || has(g.header[i], clockWords) || has(g.header[i], startWords) || is(g.header[i], words("timestamp, zeitstempel, ds, horodate, horodatage")))):
		return dateTime
	case most(clocks):
		return clockTime
	case most(numbers):
		return number
	}
	return text
}

// findColumns determines the kind of the table and the roles of its columns.
func (f *Finding) findColumns(h Hints) error {
	g := f.grid
	for _, ours := range slices.Sorted(maps.Keys(h.Columns)) {
		theirs := h.Columns[ours]
		if strings.HasPrefix(theirs, "(") {
			continue
		}
		if !slices.Contains(f.Names, theirs) {
			return fmt.Errorf("line %d: there is no column %s for %s; the columns are %s", f.Line, theirs, ours, list(f.Names))
		}
		f.Columns[ours] = theirs
	}
	if len(f.Names) > 0 && f.Names[0] == "" && g.contentOf(0) == dateTime {
		f.Names[0] = table.FirstColumn
	}
	var rest []int // the columns whose roles are not yet known
	kinds := make([]content, len(f.Names))
	for i, name := range f.Names {
		kinds[i] = g.contentOf(i)
		if name != "" && !slices.Contains(h.Ignore, name) && !slices.Contains(slices.Collect(maps.Values(f.Columns)), name) {
			rest = append(rest, i)
		}
	}
	pick := func(ours string, good func(i int) bool) {
		if f.Columns[ours] != "" {
			return
		}
		if k := slices.IndexFunc(rest, good); k >= 0 {
			f.Columns[ours] = f.Names[rest[k]]
		}
		rest = slices.DeleteFunc(rest, func(i int) bool { return f.Names[i] == f.Columns[ours] })
	}
	f.findTimeColumns(kinds, pick)
	if i := f.index(f.Columns["date"]); i >= 0 && f.Columns["time"] == "" {
		f.Columns["time"] = f.Columns["date"]
		delete(f.Columns, "date")
	}
	// Other columns of times, such as the end of the interval, are not needed.
	rest = slices.DeleteFunc(rest, func(i int) bool {
		if kinds[i] == dateTime || kinds[i] == clockTime {
			f.Ignored = append(f.Ignored, f.Names[i])
			return true
		}
		return false
	})
	if h.Columns["meter"] == "" {
		pick("meter", func(i int) bool {
			return kinds[i] != blank && is(f.Names[i], meterWords) && !is(f.Names[i], powerWords)
		})
	}
	// A single column of numbers is the load, even if it is called state.
	numbers := 0
	for _, i := range rest {
		if kinds[i] == number {
			numbers++
		}
	}
	pick("quality", func(i int) bool {
		return kinds[i] != dateTime && !(kinds[i] == number && numbers == 1) && is(f.Names[i], qualityWords)
	})
	if f.Columns["time"] == "" {
		delete(f.Columns, "quality")
		if err := f.namedMonths(); err != nil {
			return err
		}
		if f.Columns["meter"] != "" {
			f.Kind = Meters
		}
		return nil
	}
	return f.findLoad(h, rest, kinds)
}

// monthName matches dates with the name of a month in the five languages of headings.
var monthName = regexp.MustCompile(`(?i)^\W*(\d{1,2}|\pL{2,}\.?,?)[ ./-]*\d{0,2}[ ,./-]*(jan|feb|fév|mar|mär|mrt|apr|avr|abr|may|mai|mei|jun|juin|jul|juil|aug|aoû|ago|sep|oct|okt|nov|dec|déc|dez|dic|ene)\pL*[ ,./-]+\d{1,4}`)

// namedMonths returns an error if a column has dates with names of months.
func (f *Finding) namedMonths() error {
	for i, name := range f.Names {
		n, example := 0, ""
		for _, v := range f.grid.column(i) {
			if monthName.MatchString(v) {
				n, example = n+1, v
			}
		}
		if n > 0 && 2*n > len(f.grid.rows) {
			return fmt.Errorf("line %d: column %s has names of months (%s), which are not read; write months as numbers, such as 2024-03-01 00:00", f.Line, name, clip(example))
		}
	}
	return nil
}

// findTimeColumns finds the column of the time, and the column of the date if there is a
// separate one.
func (f *Finding) findTimeColumns(kinds []content, pick func(string, func(int) bool)) {
	// A column with a date may also have a time of day, or stand next to a column that has
	// one.
	timed := func(i int) bool {
		return kinds[i] == dateTime && slices.ContainsFunc(f.grid.column(i), func(s string) bool {
			return strings.ContainsAny(s, ":h") || allDigits(s) && len(s) > 8
		})
	}
	clock := slices.Contains(kinds, clockTime)
	if f.Columns["date"] == "" {
		for _, good := range []func(i int) bool{
			func(i int) bool { return timed(i) && (!clock || f.varies(i)) && has(f.Names[i], startWords) },
			func(i int) bool { return timed(i) && (!clock || f.varies(i)) && !has(f.Names[i], endWords) },
			func(i int) bool { return timed(i) && (!clock || f.varies(i)) },
		} {
			pick("time", good)
		}
	}
	if f.Columns["time"] != "" && !(f.index(f.Columns["time"]) >= 0 && kinds[f.index(f.Columns["time"])] == clockTime) {
		return
	}
	for _, good := range []func(i int) bool{
		func(i int) bool { return kinds[i] == dateTime && has(f.Names[i], startWords) },
		func(i int) bool { return kinds[i] == dateTime && !has(f.Names[i], endWords) },
		func(i int) bool { return kinds[i] == dateTime },
	} {
		pick("date", good)
	}
	for _, good := range []func(i int) bool{
		func(i int) bool { return kinds[i] == clockTime && has(f.Names[i], startWords) },
		func(i int) bool { return kinds[i] == clockTime && !has(f.Names[i], endWords) },
		func(i int) bool { return kinds[i] == clockTime },
	} {
		pick("time", good)
	}
}

// varies reports whether the times of day in a column differ.
func (f *Finding) varies(i int) bool {
	seen := ""
	for _, s := range f.grid.column(i) {
		if _, clock, ok := strings.Cut(s, " "); ok && seen != "" && clock != seen {
			return true
		} else if ok {
			seen = clock
		}
	}
	return false
}

func (f *Finding) ignore(columns []int) {
	for _, i := range columns {
		f.Ignored = append(f.Ignored, f.Names[i])
	}
}

// nameMeter finds the meter column if no heading shows it. The only column of text is the meter
// column, provided that its values repeat. A column of units is not a meter column.
func (f *Finding) nameMeter(rest []int, kinds []content) {
	var texts []int
	for _, i := range rest {
		if kinds[i] == text && !is(f.Names[i], unitWords) {
			texts = append(texts, i)
		}
	}
	if len(texts) != 1 || f.Columns["meter"] != "" {
		return
	}
	seen := map[string]bool{}
	for _, s := range f.grid.column(texts[0]) {
		if s == "" || isUnit(s) {
			return
		}
		seen[s] = true
	}
	if len(seen) > 1 && 2*len(seen) <= len(f.grid.rows) {
		f.Columns["meter"] = f.Names[texts[0]]
		f.Ignored = slices.DeleteFunc(f.Ignored, func(name string) bool { return name == f.Columns["meter"] })
	}
}

func list(names []string) string {
	if len(names) > 12 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:12], ", "), len(names)-12)
	}
	return strings.Join(names, ", ")
}

// AsWide converts a table with a single load column to one with a column per meter, for
// files that name the load column after their meter.
func (f *Finding) AsWide() {
	if f.Wide {
		return
	}
	f.Wide = true
	f.Meters = []string{table.WithoutUnit(f.Columns["load"])}
	f.Ignored = slices.DeleteFunc(slices.Clone(f.Names), func(name string) bool {
		return name == "" || name == f.Columns["load"] || name == f.Columns["time"] || name == f.Columns["date"]
	})
	delete(f.Columns, "load")
	delete(f.Columns, "quality")
}
