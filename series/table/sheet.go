package table

import (
	"archive/zip"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/xuri/excelize/v2"
)

// Limits on the parts of a spreadsheet that are read. A spreadsheet is a compressed archive, so
// a small file can have large contents.
const (
	maxUnpacked = 256 << 20
	maxText     = 256 << 20
	// looked is the number of rows from which a sheet and the styles of its columns are
	// recognised.
	looked = 200
	// enough is the minimum number of dates in the date column of a table of readings. A cover
	// sheet or a monthly summary has fewer dates.
	enough = looked / 2
)

// Sheet is a sheet converted to CSV text.
type Sheet struct {
	Name string
	Text []byte
	// Notes describe the chosen and omitted parts.
	Notes []string
}

// errNot means that a file lacks a mandatory part of a spreadsheet.
var errNot = errors.New("the spreadsheet cannot be read; export it as CSV")

// check returns an error that names the type of an archive if it is not a spreadsheet.
func check(parts *zip.Reader) error {
	has := func(prefix string) bool {
		return slices.ContainsFunc(parts.File, func(f *zip.File) bool { return strings.HasPrefix(f.Name, prefix) })
	}
	switch {
	case has("xl/workbook.bin"):
		return errors.New("this is a binary spreadsheet (.xlsb); save it as .xlsx, or export it as CSV")
	case has("xl/"):
		return nil
	case has("mimetype"), has("Index/"): // OpenDocument, Numbers
		return errors.New("this is a document of a program other than Excel; save it as .xlsx, or export it as CSV")
	}
	return errors.New("this is a zip archive but not a spreadsheet; unpack it")
}

// OpenSheet returns the sheet with the given name or, if the name is empty, the first sheet
// with a column of dates.
func OpenSheet(r io.ReaderAt, size int64, name string) (*Sheet, error) {
	parts, err := zip.NewReader(r, size)
	if err == nil {
		err = check(parts)
	} else {
		err = fmt.Errorf("the file begins like a spreadsheet but is damaged; get it again, or export it as CSV (%w)", err)
	}
	if err != nil {
		return nil, err
	}
	f, err := excelize.OpenReader(io.NewSectionReader(r, 0, size), excelize.Options{UnzipSizeLimit: maxUnpacked, RawCellValue: true})
	if err != nil {
		return nil, fmt.Errorf("%w (%v)", errNot, err)
	}
	defer func() { _ = f.Close() }() // the file is only read; Close removes the temporary files of large sheets
	b := book{File: f, parts: parts}
	if props, err := f.GetWorkbookProps(); err == nil && props.Date1904 != nil {
		b.from1904 = *props.Date1904
	}
	all := f.GetSheetList()
	if name != "" && !slices.Contains(all, name) {
		return nil, fmt.Errorf("there is no sheet %q; there are %s", name, strings.Join(all, ", "))
	}
	// A cover sheet may also have a date, so a sheet with few dates is chosen only if no other
	// sheet has more.
	chosen, column, most := name, 0, 0
	for _, s := range all {
		if name != "" && s != name {
			continue
		}
		at, n, err := b.dates(s)
		if err != nil {
			return nil, err
		}
		if n > most {
			chosen, column, most = s, at, n
		}
		if n >= enough {
			break
		}
	}
	if chosen == "" {
		return nil, fmt.Errorf("no sheet has dates (%s); write the times as dates, or choose a sheet with --sheet", strings.Join(all, ", "))
	}
	out, err := b.text(chosen, column)
	if err == nil && len(all) > 1 {
		out.Notes = append([]string{fmt.Sprintf("sheet %q of %d", chosen, len(all))}, out.Notes...)
	}
	return out, err
}

// lineBreaks replaces line breaks in a cell, because a line of the CSV text must not contain
// any.
var lineBreaks = strings.NewReplacer("\r\n", " ", "\n", " ", "\r", " ")

type book struct {
	*excelize.File
	parts    *zip.Reader
	from1904 bool
	kinds    map[int]styleKind // by style
	styled   string            // the sheet whose styles the field below contains
	styles   *styles
}

// styleKind is the kind of number that a style formats.
type styleKind int

const (
	number styleKind = iota
	serialTime
	clock
)

// hasDay and hasTime match the codes of number formats with dates and times of day. Strings in
// quotes and colours in brackets are not codes.
var (
	quoted     = regexp.MustCompile(`"[^"]*"|\\.|\[[^\]]*\]`)
	hasDay     = regexp.MustCompile(`(?i)[yd]`)
	hasTime    = regexp.MustCompile(`(?i)[hs]`)
	dateFormat = regexp.MustCompile(`^\s*(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./-]\d{1,2}[./-]\d{2,4})\b`)
)

// style returns the kind of number that a cell's style formats.
func (b *book) style(sheet string, column, row int) (styleKind, error) {
	if b.styled != sheet || b.styles == nil {
		all, err := readStyles(b.parts, sheet)
		if err != nil {
			return number, err
		}
		b.styled, b.styles = sheet, all
	}
	id := b.styles.of(column, row)
	if k, ok := b.kinds[id]; ok {
		return k, nil
	}
	s, err := b.GetStyle(id)
	if err != nil {
		return number, err
	}
	k := number
	switch n := s.NumFmt; {
	case s.CustomNumFmt != nil:
		code := quoted.ReplaceAllString(*s.CustomNumFmt, "")
		switch {
		case hasDay.MatchString(code):
			k = serialTime
		case hasTime.MatchString(code):
			k = clock
		}
	case n >= 14 && n <= 17, n == 22, n >= 27 && n <= 36, n >= 50 && n <= 58:
		k = serialTime
	case n >= 18 && n <= 21, n >= 45 && n <= 47:
		k = clock
	}
	if b.kinds == nil {
		b.kinds = map[int]styleKind{}
	}
	b.kinds[id] = k
	return k, nil
}

// each calls do with the rows of a sheet, counted from 1.
func (b *book) each(sheet string, do func(row int, cells []string) (more bool, err error)) error {
	rows, err := b.Rows(sheet)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // the rows are only read
	for n := 1; rows.Next(); n++ {
		cells, err := rows.Columns()
		if err != nil {
			return err
		}
		if more, err := do(n, cells); err != nil || !more {
			return err
		}
	}
	return rows.Error()
}

// dates returns the column with the most dates at the beginning of a sheet, counted from 1, and
// the number of these dates. A title may contain a date in another column, such as the day of
// the export.
func (b *book) dates(sheet string) (best, n int, err error) {
	count := map[int]int{}
	err = b.each(sheet, func(row int, cells []string) (bool, error) {
		for i, text := range cells {
			if _, k, err := b.value(sheet, i+1, row, text); err != nil {
				return false, err
			} else if k == serialTime || dateFormat.MatchString(text) {
				count[i+1]++
			}
		}
		return row < looked, nil
	})
	for column, n := range count {
		if n > count[best] || n == count[best] && column < best {
			best = column
		}
	}
	return best, count[best], err
}

// value returns a cell's content as a string, and its kind.
func (b *book) value(sheet string, column, row int, text string) (string, styleKind, error) {
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || text == "" {
		return text, number, nil //nolint:nilerr // it is a text
	}
	k, err := b.style(sheet, column, row)
	if err != nil || k == number || x < 0 {
		return text, number, err
	}
	if k == clock && x < 1 {
		return time.Unix(int64(math.Round(x*86400)), 0).UTC().Format(time.TimeOnly), k, nil
	}
	at, err := excelize.ExcelDateToTime(x, b.from1904)
	if err != nil {
		return text, number, err
	}
	return at.Round(time.Second).Format(time.DateTime), serialTime, nil
}

// text writes a sheet as CSV. Rows at the end without a date, such as totals and remarks, are
// omitted. column is the column of the dates, or 0.
func (b *book) text(sheet string, column int) (*Sheet, error) {
	out := &Sheet{Name: sheet}
	var to bytes.Buffer
	w := csv.NewWriter(&to)
	var tail [][]string
	blank := []string{""} // an empty line, so that line numbers equal row numbers
	err := b.each(sheet, func(row int, cells []string) (bool, error) {
		line := make([]string, len(cells))
		dated, empty, timed := false, true, false
		for i, text := range cells {
			v, k, err := b.value(sheet, i+1, row, text)
			if err != nil {
				return false, err
			}
			line[i] = lineBreaks.Replace(v)
			timed = timed || k == clock
			empty = empty && strings.TrimSpace(v) == ""
			dated = dated || column == i+1 && (k == serialTime || dateFormat.MatchString(v))
		}
		if empty {
			tail = append(tail, blank)
			return len(tail) < 1<<20, nil
		}
		if timed { // day and time are in two columns
			for i := range line {
				line[i] = strings.TrimSuffix(line[i], " 00:00:00")
			}
		}
		if column > 0 && !dated {
			tail = append(tail, line)
			return len(tail) < 1<<20, nil
		}
		for _, l := range append(tail, line) {
			if err := w.Write(l); err != nil {
				return false, err
			}
		}
		tail = tail[:0]
		if w.Flush(); to.Len() > maxText {
			return false, fmt.Errorf("sheet %q has more than %d MB of text; export it as CSV", sheet, maxText>>20)
		}
		return true, nil
	})
	tail = slices.DeleteFunc(tail, func(line []string) bool { return len(line) == 1 && line[0] == "" })
	switch left := len(tail); {
	case left == 1:
		out.Notes = append(out.Notes, fmt.Sprintf("left out the last row, which has no date: %q", strings.Join(tail[0], " ")))
	case left > 1:
		out.Notes = append(out.Notes, fmt.Sprintf("left out the last %d rows, which have no date, such as %q", left, strings.Join(tail[0], " ")))
	}
	w.Flush()
	out.Text = to.Bytes()
	return out, errors.Join(err, w.Error())
}
