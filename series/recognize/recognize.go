// Package recognize detects the format of a text file with load readings: its encoding,
// delimiter and header, the formats of dates and numbers, the columns of the time, the meter
// and the load, the unit, the interval, and whether a time is the start or the end of its
// interval. It knows headings in English, German, French, Spanish and Dutch.
//
// It examines only the beginning and the end of a file. The [Finding] leaves facts open that
// cannot be determined from these parts.
package recognize

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"loadstar/series/table"
)

// Sample is a part of a file.
type Sample struct {
	Head []byte // the beginning
	Tail []byte // the end, if Head is not the whole file; may be empty
	// Whole means that Head is the whole file.
	Whole bool
}

// Hints are facts that the caller knows.
type Hints struct {
	// Columns maps our column names to the names in the file. Our names are time, date, load,
	// meter and quality.
	Columns map[string]string
	// Ignore lists columns that must not be read.
	Ignore    []string
	Encoding  string
	Delimiter byte
	Header    string
	Decimal   byte
	Date      string // a format such as dd.mm.yyyy
	Sheet     string // the sheet of a spreadsheet
	Interval  time.Duration
	Wide      bool // every column is a meter
}

// Kind is the kind of a table.
type Kind int

// The kinds of tables. Any other table is Other.
const (
	Other Kind = iota
	Load
	Weather
	Meters
)

// Finding contains the known facts about a file.
type Finding struct {
	Kind   Kind
	Format table.Format
	// Line is the line number of the header, counted from 1, and Names are the column names in
	// the header.
	Line  int
	Names []string
	// Columns maps our column names to the names in the file. For a load table, our names are
	// time, date, meter, load and quality, if the table has these columns.
	Columns map[string]string
	// Wide means that the table has a column per meter. Meters are the names of these columns.
	// Ignored lists the columns that are not read, such as columns of a wide table that are not
	// meters.
	Wide            bool
	Meters, Ignored []string
	// Dates are the possible formats of the dates. There are two if the order of day and
	// month is ambiguous. Example is an ambiguous date.
	Dates   []table.Dates
	Example string
	// Decimals is a number, such as 1.234, that leaves the decimal separator open. It is empty
	// if there is none.
	Decimals string
	// Zoned means that all times have a UTC offset, and UTC means that all times are in UTC.
	Zoned, UTC bool
	// Interval is the time between two rows of a meter, or 0 if no meter has two rows.
	Interval time.Duration
	// Stamp is "start", "end" or empty, and Why is the evidence for Stamp.
	Stamp, Why string
	// Unit is the unit of the load, or empty. UnitFrom is the place where the unit was
	// found. Energy means that the heading denotes energy.
	Unit, UnitFrom string
	Energy         bool
	// Counter means that the values are the readings of a counter.
	Counter bool
	// Quality lists the different values of the quality column. Missing lists those values that
	// mark a missing reading.
	Quality, Missing []string

	// Spreadsheet means that the file is a spreadsheet. Notes describe the chosen and omitted
	// parts of the file.
	Spreadsheet bool
	Notes       []string

	grid *grid
}

// Encoding returns the name of the file's encoding, for a message.
func (f *Finding) Encoding() string {
	switch f.grid.format.Encoding {
	case "windows-1252":
		return "Windows-1252"
	case "utf-16le", "utf-16be":
		return "UTF-16"
	}
	return ""
}

// Sample calls yield with the times of rows, as strings for the day and the time of day, until
// yield returns false. The time of day is empty if both are in one column.
func (f *Finding) Sample(yield func(line int, day, clock string) bool) {
	for i, r := range f.grid.rows {
		if day, clock := f.times(r); !yield(f.grid.lines[i], day, clock) {
			return
		}
	}
}

// Table examines a file. It returns an error if the file is not a table, or if the file
// contradicts the hints or itself.
func Table(s Sample, h Hints) (*Finding, error) {
	g, err := newGrid(s.Head, s.Whole, h)
	if err != nil {
		return nil, err
	}
	if g.header == nil {
		return nil, g.noHeader()
	}
	g.end = g.tailLines(s)
	return g.find(h, g.tailRows())
}

// Rows examines the first rows of a table that is not a text file.
func Rows(names []string, rows [][]string, h Hints) (*Finding, error) {
	g := &grid{header: names, rows: rows}
	for i := range rows {
		g.lines = append(g.lines, i+1)
	}
	h.Decimal = '.'
	f, err := g.find(h, nil)
	if err == nil {
		f.Format = table.Format{}
	}
	return f, err
}

func (g *grid) find(h Hints, tail [][]string) (*Finding, error) {
	f := &Finding{Format: g.format, Line: g.line, Names: g.header, Columns: map[string]string{}, grid: g}
	if g.marked {
		f.Format.Encoding = ""
	}
	if err := f.findColumns(h); err != nil {
		return nil, err
	}
	if len(g.preamble) > 0 {
		f.Format.Header = f.headerName()
	}
	if f.Kind == Other || f.Kind == Meters {
		return f, nil
	}
	tail = f.findFooter(tail)
	if err := f.findDates(h, tail); err != nil {
		return nil, err
	}
	if err := f.findDecimal(h); err != nil {
		return nil, err
	}
	f.findInterval(h)
	if err := f.hoursAsColumns(); err != nil {
		return nil, err
	}
	f.findStamp(tail)
	if f.Kind == Load {
		if err := f.findUnit(); err != nil {
			return nil, err
		}
		f.findCounter()
		f.findQuality()
	}
	return f, nil
}

// hourName matches headings that are times of day, such as 00:15, H01 or Hora 24.
var hourName = regexp.MustCompile(`^(\d{1,2}[:.]\d{2}(:\d{2})?( ?- ?\d{1,2}[:.]\d{2})?|(?i:h|hour|hora|stunde|std|uur|heure|hr)[ _.]?\d{1,2})$`)

// hoursAsColumns returns an error if each row is a day and each column a time of day, because such
// columns are not meters.
func (f *Finding) hoursAsColumns() error {
	if !f.Wide || f.Interval < 24*time.Hour || len(f.Meters) < 23 {
		return nil
	}
	numbered := slices.Contains([]int{24, 25, 48, 96, 100}, len(f.Meters))
	for _, m := range f.Meters {
		if !hourName.MatchString(m) && !(numbered && allDigits(m)) {
			return nil
		}
	}
	return fmt.Errorf("line %d: each row is a day, and the columns %s to %s are times of day, not meters; rearrange the table to a row per time, with date and time in one column (melt in pandas, unpivot in a spreadsheet)",
		f.Line, f.Meters[0], f.Meters[len(f.Meters)-1])
}

// headerName returns a name that distinguishes the header from the lines above it.
func (f *Finding) headerName() string {
	for _, name := range []string{f.Columns["time"], f.Columns["date"], f.Columns["load"], f.Columns["meter"]} {
		if slices.Contains(f.Names, name) && name != table.FirstColumn {
			return name
		}
	}
	return f.Names[slices.IndexFunc(f.Names, func(name string) bool { return name != table.FirstColumn })]
}

// tailLines returns the lines at the end of the file, unless the rows already contain them.
func (g *grid) tailLines(s Sample) []string {
	lines := g.last
	if !s.Whole && len(s.Tail) > 0 {
		text, _, err := decode(s.Tail, orUTF8(g.format.Encoding))
		if err != nil {
			return nil
		}
		lines = splitLines(text, true)[1:] // the first line may be cut off
		lines = lines[max(0, len(lines)-maxTail):]
	} else if !s.Whole {
		return nil
	}
	return lines
}

// findFooter omits lines at the end that have no date, such as totals and remarks. It returns the
// remaining rows at the end.
func (f *Finding) findFooter(tail [][]string) [][]string {
	g := f.grid
	end := g.rows
	if g.end != nil {
		end = nil
		for _, l := range g.end {
			row, err := table.Split([]byte(l), g.format.Delimiter)
			if err != nil {
				row = []string{l}
			}
			if strings.TrimSpace(l) != "" {
				end = append(end, row)
			}
		}
	} else if !g.whole {
		return tail // the end of the file is not known
	}
	n := len(end)
	for n > 0 && !f.dated(end[n-1]) {
		n--
	}
	left := len(end) - n
	if n == 0 || left == 0 || left > table.MaxFooter {
		return tail
	}
	text := clip(strings.Join(end[n], " "))
	note := fmt.Sprintf("left out the last line, which has no date: %q", text)
	if left > 1 {
		note = fmt.Sprintf("left out the last %d lines, which have no date, such as %q", left, text)
	}
	f.Format.Footer, f.Notes = left, append(f.Notes, note)
	if g.end == nil {
		g.rows, g.lines = g.rows[:n], g.lines[:n]
	}
	for len(tail) > 0 && !f.dated(tail[len(tail)-1]) {
		tail = tail[:len(tail)-1]
	}
	return tail
}

// dated reports whether the date columns of a row start with a date. An invalid date is a
// mistake in the file, so its row must not be omitted.
func (f *Finding) dated(row []string) bool {
	day, _ := f.times(row)
	day = strings.TrimSpace(day)
	return day != "" && day[0] >= '0' && day[0] <= '9'
}

// tailRows splits the end of the file into rows.
func (g *grid) tailRows() [][]string {
	var rows [][]string
	for _, l := range g.end {
		if row, err := table.Split([]byte(l), g.format.Delimiter); err == nil && len(row) >= len(g.header)-1 && strings.TrimSpace(l) != "" {
			rows = append(rows, row)
		}
	}
	return rows
}

func orUTF8(encoding string) string {
	if encoding == "" {
		return "utf-8"
	}
	return encoding
}

// index returns the index of a column by its name in the file, or -1.
func (f *Finding) index(name string) int {
	if name == "" {
		return -1
	}
	return slices.Index(f.Names, name)
}

// findDates finds the date format. If the order of day and month is ambiguous, findDates uses
// the order of the rows.
func (f *Finding) findDates(h Hints, tail [][]string) error {
	day := f.index(f.Columns["date"])
	if day < 0 {
		day = f.index(f.Columns["time"])
	}
	forms := allForms
	if h.Date != "" {
		form, err := table.ParseDates(h.Date)
		if err != nil {
			return err
		}
		forms = []table.Dates{form}
	}
	last := ""
	f.Zoned, f.UTC = true, true
	for i, r := range append(slices.Clone(f.grid.rows), tail...) {
		if day >= len(r) || r[day] == "" {
			continue
		}
		s := r[day]
		if zone := unzoned(s); zone == s {
			f.Zoned, f.UTC = false, false
		} else if !strings.HasSuffix(s, "Z") {
			f.UTC = false
		}
		if s == last {
			continue
		}
		if len(forms) == 2 && f.Example == "" && !sameDay(s, forms) {
			f.Example = s
		}
		left := dateForms(s, forms)
		if len(left) == 0 {
			return f.badDate(h, i, s, last, forms)
		}
		forms, last = left, s
	}
	if clock := f.index(f.Columns["time"]); f.Columns["date"] != "" && clock >= 0 {
		f.Zoned = slices.ContainsFunc(f.grid.column(clock), isZoned)
		f.UTC = false
	}
	if len(forms) > 1 {
		forms = f.regular(forms)
	}
	if f.Example == "" && len(forms) > 1 {
		// All dates are the same in both formats. The format is American if times have AM or PM.
		american := strings.HasSuffix(strings.ToUpper(last), "M")
		forms = slices.DeleteFunc(forms, func(d table.Dates) bool { return strings.HasPrefix(d.String(), "m") != american })[:1]
	}
	if f.Dates = forms; f.Example == "" {
		f.Example = last
	}
	return f.checkHours(last)
}

// sameDay reports whether a date is the same in both formats.
func sameDay(s string, forms []table.Dates) bool {
	a, ok := label(s, "", forms[0])
	b, too := label(s, "", forms[1])
	return ok == too && a == b
}

// checkHours returns an error if dates have no time of day, although there are several rows a
// day.
func (f *Finding) checkHours(date string) error {
	if f.Columns["date"] != "" || strings.ContainsAny(date, ":h") || allDigits(date) && len(date) > 8 {
		return nil
	}
	repeated := 0
	meter := f.index(f.Columns["meter"])
	for i, r := range f.grid.rows[min(1, len(f.grid.rows)):] {
		before := f.grid.rows[i]
		day, _ := f.times(r)
		old, _ := f.times(before)
		if day == old && (meter < 0 || meter < len(r) && meter < len(before) && r[meter] == before[meter]) {
			repeated++
		}
	}
	if 2*repeated <= len(f.grid.rows) {
		return nil
	}
	return fmt.Errorf("line %d: %s has no time of day, and a day has several rows; if the time of day is in another column, write it as 01:00 and name it with --column date=%s,time=NAME",
		f.grid.lines[0], clip(date), f.Columns["time"])
}

func (f *Finding) badDate(h Hints, row int, s, last string, forms []table.Dates) error {
	where := "near the end of the file"
	if row < len(f.grid.lines) {
		where = fmt.Sprintf("line %d", f.grid.lines[row])
	}
	if h.Date != "" {
		return fmt.Errorf("%s: time %q is not in the format %s; correct --date", where, clip(s), forms[0])
	}
	if last == "" {
		return fmt.Errorf("%s: %q is not a date in a known format; give the format with --date, such as dd.mm.yyyy", where, clip(s))
	}
	return fmt.Errorf("%s: time %q is not in the format %s of the rows before it; correct the file, or give the format with --date", where, clip(s), forms[0])
}

// regular returns the formats in which the most consecutive rows have the same interval.
func (f *Finding) regular(forms []table.Dates) []table.Dates {
	best, most := []table.Dates(nil), -1
	for _, d := range forms {
		steps, _ := f.steps(d)
		n := 0
		for _, c := range steps {
			n = max(n, c)
		}
		switch {
		case n > most:
			best, most = []table.Dates{d}, n
		case n == most:
			best = append(best, d)
		}
	}
	return best
}

// times returns a row's fields for the date and the time of day. The time of day is empty if
// both are in one column.
func (f *Finding) times(r []string) (day, clock string) {
	if t := f.index(f.Columns["time"]); t >= 0 && t < len(r) {
		day = r[t]
	}
	if d := f.index(f.Columns["date"]); d >= 0 && d < len(r) {
		day, clock = r[d], day
	}
	return day, clock
}

// steps counts the times between consecutive rows of a meter, by their length in seconds. best
// is the most frequent time.
func (f *Finding) steps(form table.Dates) (count map[int64]int, best int64) {
	count = map[int64]int{}
	before := map[string]int64{}
	meter := f.index(f.Columns["meter"])
	for _, r := range f.grid.rows {
		day, clock := f.times(r)
		at, ok := label(day, clock, form)
		if !ok {
			continue
		}
		id := ""
		if meter >= 0 && meter < len(r) {
			id = r[meter]
		}
		if old, ok := before[id]; ok && at != old {
			count[max(at-old, old-at)]++
		}
		before[id] = at
	}
	for step, n := range count {
		if n > count[best] || n == count[best] && step < best {
			best = step
		}
	}
	return count, best
}

func (f *Finding) findInterval(h Hints) {
	if f.Interval = h.Interval; f.Interval == 0 && len(f.Dates) > 0 {
		_, step := f.steps(f.Dates[0])
		f.Interval = time.Duration(step) * time.Second
	}
}

// findStamp decides whether a time is the start or the end of its interval.
func (f *Finding) findStamp(tail [][]string) {
	day := time.Duration(24) * time.Hour
	rows := append(slices.Clone(f.grid.rows), tail...)
	if len(rows) == 0 || f.Interval == 0 {
		return
	}
	name := f.Columns["time"]
	if f.Columns["date"] != "" {
		name += " " + f.Columns["date"]
	}
	switch start, end := has(name, startWords), has(name, endWords); {
	case start && !end:
		f.Stamp, f.Why = "start", fmt.Sprintf("the column is named %s", f.Columns["time"])
		return
	case end && !start:
		f.Stamp, f.Why = "end", fmt.Sprintf("the column is named %s", f.Columns["time"])
		return
	}
	if f.Interval >= day {
		f.Stamp, f.Why = "start", "there is one row a day"
		return
	}
	clockOf := func(r []string) time.Duration {
		d, c := f.times(r)
		if at, ok := label(unzoned(d), unzoned(c), f.Dates[0]); ok {
			return time.Duration(at) * time.Second % day
		}
		return -1
	}
	for _, r := range rows {
		d, c := f.times(r)
		if strings.HasPrefix(c, "24:00") || strings.Contains(d, " 24:00") || strings.Contains(d, "T24:00") {
			f.Stamp, f.Why = "end", "midnight is written as 24:00"
			return
		}
		if strings.Contains(d+c, " - ") {
			f.Stamp, f.Why = "start", "times are periods"
			return
		}
	}
	for len(rows) > 1 && clockOf(rows[len(rows)-1]) < 0 {
		rows = rows[:len(rows)-1] // a total below the table
	}
	first, last := clockOf(rows[0]), clockOf(rows[len(rows)-1])
	if one, two := f.order(rows); two < one {
		first, last = last, first
	}
	if tail == nil && !(f.grid.whole && f.grid.last == nil) {
		return // the last row of the file is not known
	}
	switch {
	case first == f.Interval && last == 0:
		f.Stamp, f.Why = "end", fmt.Sprintf("the first time of a day is %s and the last midnight", clockName(first))
	case first == 0 && last == day-f.Interval:
		f.Stamp, f.Why = "start", fmt.Sprintf("the first time of a day is 00:00 and the last %s", clockName(last))
	}
}

// order returns the times of the first and the last row.
func (f *Finding) order(rows [][]string) (first, last int64) {
	d, c := f.times(rows[0])
	first, _ = label(d, c, f.Dates[0])
	d, c = f.times(rows[len(rows)-1])
	last, _ = label(d, c, f.Dates[0])
	return first, last
}

func clockName(d time.Duration) string {
	return fmt.Sprintf("%02d:%02d", int(d.Hours()), int(d.Minutes())%60)
}
