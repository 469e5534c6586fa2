package recognize

import (
	"slices"
	"strconv"
	"strings"

	"loadstar/series/table"
)

// iso is the date format that a description need not name.
var iso = table.Dates{}

// dateForms returns the given formats that match a string. If among is nil, it tries all
// formats.
func dateForms(s string, among []table.Dates) []table.Dates {
	if len(s) > 40 || !strings.ContainsAny(s, "0123456789") {
		return nil
	}
	if among == nil {
		among = allForms
	}
	var out []table.Dates
	for _, d := range among {
		if _, ok := d.Unix([]byte(s), nil); ok {
			out = append(out, d)
		}
	}
	return out
}

var allForms = append([]table.Dates{iso}, table.AllDates()...)

// label returns the time that the strings represent, taken as UTC, and false if they do not
// have the format.
func label(day, clock string, form table.Dates) (unix int64, ok bool) {
	return form.Unix([]byte(day), []byte(clock))
}

// isClock reports whether a string is a time of day.
func isClock(s string) bool {
	if len(s) > 30 || !strings.ContainsAny(s, ":.h") {
		return false
	}
	_, ok := label("2020-01-01", s, iso)
	return ok
}

// isZoned reports whether a time has a UTC offset.
func isZoned(s string) bool { return unzoned(s) != s }

// unzoned returns a time without its UTC offset.
func unzoned(s string) string {
	i := strings.LastIndexByte(s, ':') // the colon of a time or of an offset
	if i < 0 {
		return s
	}
	if j := strings.IndexAny(s, "Z"); j > 0 {
		return s[:j]
	}
	if strings.Contains(s, " - ") {
		return s
	}
	first := strings.IndexByte(s, ':')
	if j := strings.LastIndexAny(s, "+-"); j > first {
		return strings.TrimSpace(s[:j])
	}
	return s
}

// numberForm lists the decimal separators that a number may have.
type numberForm struct {
	point, comma bool // the value is a number with this decimal separator
	grouped      bool // the value has thousands separators of either kind
}

// formOf returns the decimal separators that a number may have. A number such as 1.234 or 1,234
// has either three decimals or a thousands separator.
func formOf(s string) (numberForm, bool) {
	cell := table.Text([]byte(s))
	if cell.IsEmpty() || len(s) == 0 {
		return numberForm{}, false
	}
	_, err := strconv.ParseFloat(s, 64)
	plain := err == nil && strings.Trim(s, "0123456789+-.eE") == ""
	_, point := table.ParseNumber([]byte(s), '.')
	_, comma := table.ParseNumber([]byte(s), ',')
	f := numberForm{point: plain || point, comma: comma}
	if strings.Trim(s, "0123456789+-") == "" {
		return numberForm{true, true, false}, plain
	}
	if whole, _, _ := strings.Cut(strings.TrimLeft(s, "+-"), "."); whole == "0" || whole == "" {
		f.comma = false // 0.234 has no thousands separator
	}
	if whole, _, _ := strings.Cut(strings.TrimLeft(s, "+-"), ","); whole == "0" || whole == "" {
		f.point = false
	}
	f.grouped = f.point && !plain && !(f.comma && strings.Count(s, ",") == 1) || f.comma && !strings.Contains(s, ",") && !f.point
	return f, f.point || f.comma
}

func isNumber(s string) bool {
	_, ok := formOf(s)
	return ok
}

// decimals is the evidence that a table's numbers give about the decimal separator.
type decimals struct {
	decimal byte   // 0 for a point without thousands separators
	open    bool   // both separators are possible
	example string // a number that may have either separator
	clash   string // a number that contradicts another one
}

// decide determines the decimal separator of all numbers.
func decide(columns [][]string) decimals {
	point, comma, grouped := true, true, false
	var d decimals
	var first string
	for _, c := range columns {
		for _, s := range c {
			f, ok := formOf(s)
			if !ok {
				continue
			}
			if strings.ContainsAny(s, ".,") && f.point && f.comma && d.example == "" {
				d.example = s
			}
			if !(point && f.point || comma && f.comma) && d.clash == "" {
				d.clash = s + " and " + first
				continue
			}
			if f.point != f.comma && first == "" {
				first = s
			}
			point, comma = point && f.point, comma && f.comma
			grouped = grouped || f.grouped
		}
	}
	switch {
	case point && comma:
		d.open = d.example != ""
		if grouped {
			d.decimal = '.'
		}
	case comma:
		d.decimal = ','
	case grouped || slices.ContainsFunc(columns, func(c []string) bool {
		return slices.ContainsFunc(c, func(s string) bool { return strings.ContainsAny(s, ",") && isNumber(s) })
	}):
		d.decimal = '.'
	}
	return d
}
