package recognize

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"loadstar/series/table"
)

// Limits on the part of a file that is examined, whatever the file's size.
const (
	maxLines  = 6000
	maxFields = 1 << 17
	maxTail   = 100 // lines at the end
)

// grid is the beginning of a text file, split into lines and fields.
type grid struct {
	format   table.Format
	preamble []string   // the lines above the header
	header   []string   // the names of the columns
	units    [][]string // the lines between the header and the first row
	rows     [][]string
	lines    []int    // the line numbers of the rows, from 1
	last     []string // the last lines, if the rows end before them
	end      []string // the last lines of the file, if they are not among the rows
	line     int      // the line number of the header
	marked   bool     // the text has a byte-order mark
	whole    bool     // the sample is the whole file
}

// decode returns a text in UTF-8 and its encoding, which is empty for UTF-8.
func decode(text []byte, encoding string) ([]byte, string, error) {
	if name, n := table.Mark(text); n > 0 {
		encoding = ""
		if name != "utf-8" {
			encoding = name
		}
	} else if encoding == "" {
		encoding = guessEncoding(text)
	}
	if err := (table.Format{Encoding: encoding}).Check(); err != nil {
		return nil, "", err
	}
	r, err := table.Decode(bufio.NewReader(bytes.NewReader(text)), encoding)
	if err != nil {
		return nil, "", err
	}
	out, err := io.ReadAll(r)
	return out, encoding, err
}

// guessEncoding returns the encoding of a text without a byte-order mark. UTF-16 has a zero in
// every other byte of ASCII characters. A text that is not valid UTF-8 is assumed to be in
// Windows-1252, in which spreadsheet programs in Western Europe export.
func guessEncoding(text []byte) string {
	n := min(len(text), 4096)
	even, odd := 0, 0
	for i, c := range text[:n] {
		if c == 0 && i%2 == 0 {
			even++
		} else if c == 0 {
			odd++
		}
	}
	switch {
	case odd > n/4 && even < n/100:
		return "utf-16le"
	case even > n/4 && odd < n/100:
		return "utf-16be"
	}
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if r == utf8.RuneError && size == 1 {
			if !utf8.FullRune(text) {
				break // the sample ends within a character
			}
			return "windows-1252"
		}
		text = text[size:]
	}
	return ""
}

// splitLines splits a text at its line endings. Unless the text is complete, it omits the last
// line, which may be cut off.
func splitLines(text []byte, whole bool) []string {
	s := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(text))
	if !whole {
		i := strings.LastIndexByte(s, '\n')
		s = s[:max(i, 0)]
	}
	return strings.Split(s, "\n")
}

// ErrNoTable means that a file does not look like a table.
var ErrNoTable = errors.New("this is not a table with rows of equal length")

// compound is the start of the files of old or encrypted spreadsheets.
var compound = []byte("\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")

// newGrid finds the delimiter, the header and the rows of a text.
func newGrid(text []byte, whole bool, h Hints) (*grid, error) {
	if bytes.HasPrefix(text, compound) {
		return nil, errors.New("this is a spreadsheet of Excel 97 to 2003, or one with a password; save it as .xlsx without a password, or export it as CSV")
	}
	decoded, encoding, err := decode(text, h.Encoding)
	if err != nil {
		return nil, err
	}
	if n := bytes.IndexByte(decoded[:min(len(decoded), 4096)], 0); n >= 0 {
		return nil, errors.New("this is not a text file; export the table as CSV")
	}
	lines := splitLines(decoded, whole)
	delimiters := []byte(";\t|,")
	if h.Delimiter != 0 {
		delimiters = []byte{h.Delimiter}
	}
	var best *grid
	score := 0
	for _, d := range delimiters {
		g := &grid{format: table.Format{Encoding: encoding, Delimiter: d}}
		if n := g.arrange(lines, h); n > score {
			best, score = g, n
		}
	}
	if best == nil {
		return nil, ErrNoTable
	}
	_, mark := table.Mark(text)
	best.whole = whole
	best.marked = mark > 0
	return best, nil
}

// arrange splits the lines with the grid's delimiter and finds the header. It returns the
// number of lines that fit the table, so that delimiters can be compared.
func (g *grid) arrange(lines []string, h Hints) int {
	rows, numbers, width, most := g.split(lines)
	if width < 2 {
		return 0
	}
	fits := func(i int) bool { return len(rows[i]) >= width-1 && len(rows[i]) <= width+1 && len(rows[i]) > 1 }
	at, first := findHeader(rows, width, fits, h)
	if at < 0 || first < 0 {
		if first >= 0 && fits(first) {
			g.line, g.rows, g.lines = 0, rows[first:], numbers[first:]
			return most // a table without a header, for the error message
		}
		return 0
	}
	g.header, g.line = rows[at], numbers[at]
	for i := range at {
		g.preamble = append(g.preamble, lines[numbers[i]-1])
	}
	g.units = rows[at+1 : first]
	g.format.Skip = len(g.units)
	g.rows, g.lines = rows[first:], numbers[first:]
	n := 1
	for _, r := range g.rows {
		if len(r) == width {
			n++
		}
	}
	return n
}

// split splits lines into fields. It returns the rows, their line numbers, the usual number of
// fields, and the number of rows that have this many fields.
func (g *grid) split(lines []string) (rows [][]string, numbers []int, width, most int) {
	fields := 0
	count := map[int]int{}
	for i, l := range lines {
		if i >= maxLines || fields > maxFields {
			g.last = lines[max(i, len(lines)-maxTail):]
			break
		}
		if strings.TrimSpace(l) == "" {
			continue
		}
		row, err := table.Split([]byte(l), g.format.Delimiter)
		if err != nil {
			row = []string{l}
		}
		rows, numbers = append(rows, row), append(numbers, i+1)
		if len(row) > 1 {
			count[len(row)]++
		}
		fields += len(row)
	}
	for n := range count {
		if count[n] > count[width] || count[n] == count[width] && n > width {
			width = n
		}
	}
	return rows, numbers, width, count[width]
}

// findHeader returns the indexes of the header and of the first row of data, or -1.
func findHeader(rows [][]string, width int, fits func(int) bool, h Hints) (at, first int) {
	at, first = -1, -1
	for i := range rows {
		if fits(i) && isData(rows[i]) {
			first = i
			break
		}
	}
	switch {
	case h.Header != "":
		at = slices.IndexFunc(rows, func(r []string) bool { return slices.Contains(r, h.Header) })
		if at >= 0 && first <= at {
			first = at + 1
		}
	case first < 0:
		// The table has no times, so it may be a table of meters.
		if at = slices.IndexFunc(rows, func(r []string) bool { return len(r) == width }); at >= 0 {
			first = at + 1
		}
	default:
		at = headerAbove(rows, first, fits)
	}
	return at, first
}

// headerAbove returns the index of the header above the first row, or -1. There may be lines
// with units between the header and the first row.
func headerAbove(rows [][]string, first int, fits func(int) bool) int {
	for i := first - 1; i >= 0 && first-i <= 6 && fits(i); i-- {
		units, filled := 0, 0
		for _, f := range rows[i] {
			if f != "" {
				filled++
			}
			if f != "" && isUnit(f) {
				units++
			}
		}
		if filled == 0 || 2*units > filled && i > 0 && fits(i-1) {
			continue // a line with units
		}
		if 2*filled < len(rows[i]) {
			return -1
		}
		// In a table with a column per meter, the names may be above a line with the same field
		// in every column, such as the register.
		if i > 0 && fits(i-1) && same(rows[i]) && !same(rows[i-1]) {
			continue
		}
		return i
	}
	return -1
}

// same reports whether all fields but the first are equal.
func same(row []string) bool {
	if len(row) < 3 {
		return false
	}
	for _, f := range row[2:] {
		if f != row[1] && f != "" {
			return false
		}
	}
	return true
}

// isData reports whether a line is a row of readings. Such a row has a date, and a number or an
// empty field.
func isData(row []string) bool {
	date, value := false, false
	for _, f := range row {
		switch {
		case !date && len(f) >= 6 && len(dateForms(f, nil)) > 0 && !allDigits(f):
			date = true
		case f == "" || isNumber(f):
			value = true
		}
	}
	if !date {
		// A date without separators is also a number, so it counts as a date only if there is
		// another number.
		digits := 0
		for _, f := range row {
			if (len(f) == 8 || len(f) == 12 || len(f) == 14) && allDigits(f) && len(dateForms(f, nil)) > 0 {
				digits++
			}
		}
		date = digits > 0
	}
	return date && value
}

func allDigits(s string) bool {
	return strings.Trim(s, "0123456789") == "" && s != ""
}

// column returns the fields of a column.
func (g *grid) column(i int) []string {
	out := make([]string, len(g.rows))
	for k, r := range g.rows {
		if i < len(r) {
			out[k] = r[i]
		}
	}
	return out
}

// noHeader returns the error for a table without a header.
func (g *grid) noHeader() error {
	return fmt.Errorf("line %d is already a row (%s), and there is no header with names of columns above it; insert a line with names, such as time%cload",
		g.lines[0], clip(strings.Join(g.rows[0], string(g.format.Delimiter))), g.format.Delimiter)
}

func clip(s string) string { return table.Clip([]byte(s)) }
