package table

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
)

// maxLine limits the length of a line, so that a file without line breaks is not read into
// memory.
const maxLine = 1 << 18

// CSV is a table in a text file. It does not use encoding/csv, because that package reads
// the rest of the file as one field after an unclosed quote, and copies every row.
type CSV struct {
	r         *bufio.Reader
	delimiter byte
	decimal   byte
	header    []string
	line      int // line number of the line that was returned last
	scanned   int // lines
	footer    int
	held      []heldLine // the last lines, as many as the footer can have
	fields    [][]byte
	unquoted  []byte // the contents of the quoted fields of a line
}

// maxPreamble limits the number of lines above the header.
const maxPreamble = 200

// OpenCSV reads the header of a CSV file, which may be gzipped.
func OpenCSV(r io.Reader, f Format) (*CSV, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	b, err := Unpack(r)
	if err != nil {
		return nil, err
	}
	text, err := Decode(b, f.Encoding)
	if err != nil {
		return nil, err
	}
	t := &CSV{r: bufio.NewReaderSize(&lineEnds{r: text}, maxLine), decimal: f.Decimal}
	if err := t.readHeader(f); err != nil {
		return nil, err
	}
	t.footer = f.Footer
	for range f.Skip {
		if _, err := t.next(); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
	}
	return t, nil
}

// readHeader reads the file up to its header.
func (t *CSV) readHeader(f Format) error {
	for n := 0; n < maxPreamble; n++ {
		line, err := t.next()
		if errors.Is(err, io.EOF) {
			if n == 0 {
				return errors.New("the file is empty")
			}
			break
		}
		if err != nil {
			return err
		}
		if t.delimiter = f.Delimiter; t.delimiter == 0 {
			t.delimiter = Delimiter(line)
		}
		if err := t.split(line); err != nil {
			if f.Header != "" {
				continue // the preamble is not a table
			}
			return err
		}
		t.header = t.header[:0]
		found := f.Header == ""
		for _, name := range t.fields {
			name = bytes.TrimSpace(name)
			found = found || string(name) == f.Header
			t.header = append(t.header, string(name))
		}
		if found {
			return nil
		}
	}
	return fmt.Errorf("no line has a field %q, so the header cannot be found; correct header, or use data init --header", f.Header)
}

// delimiters are the characters that may separate fields.
const delimiters = ",;\t|"

// Delimiter returns the character that separates the names in a header.
func Delimiter(header []byte) byte {
	best, most := byte(','), 0
	for _, d := range []byte(delimiters) {
		if n := bytes.Count(header, []byte{d}); n > most {
			best, most = d, n
		}
	}
	return best
}

// heldLine is a line that may be part of the footer.
type heldLine struct {
	text []byte
	line int
}

// next returns the next line that is not empty and not part of the footer, or io.EOF.
func (t *CSV) next() ([]byte, error) {
	if t.footer == 0 {
		line, err := t.scan()
		t.line = t.scanned
		return line, err
	}
	for {
		line, err := t.scan()
		if errors.Is(err, io.EOF) {
			return nil, t.checkFooter()
		}
		if err != nil {
			return nil, err
		}
		t.held = append(t.held, heldLine{bytes.Clone(line), t.scanned})
		if len(t.held) <= t.footer {
			continue
		}
		first := t.held[0]
		t.line = first.line
		t.held = append(t.held[:0], t.held[1:]...)
		return first.text, nil
	}
}

// dateLike matches fields that begin with a date.
var dateLike = regexp.MustCompile(`^\s*(\d{4}[-/]\d{1,2}[-/]\d{1,2}|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{8})\b`)

// checkFooter returns io.EOF. If a line of the footer has a date in the date column, it returns
// an error instead. The number of footer lines is then wrong for this file, and a reading would
// be lost.
func (t *CSV) checkFooter() error {
	var at []int // the fields of the last row that have dates
	for i, f := range t.fields {
		if dateLike.Match(f) {
			at = append(at, i)
		}
	}
	for _, h := range t.held {
		if err := t.split(h.text); err != nil {
			continue // no row
		}
		for i, f := range t.fields {
			if dateLike.Match(f) && (at == nil || slices.Contains(at, i)) {
				return fmt.Errorf("line %d has a date (%s), but footer: %d says that it is not a row; correct footer, or delete the line", h.line, Clip(f), t.footer)
			}
		}
	}
	return io.EOF
}

// scan returns the next line that is not empty, or io.EOF.
func (t *CSV) scan() ([]byte, error) {
	for {
		line, err := t.r.ReadSlice('\n')
		t.scanned++
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("line %d is longer than %d bytes; is this a table?", t.scanned, maxLine)
		case err == io.EOF && len(line) == 0:
			return nil, io.EOF
		case err != nil && err != io.EOF:
			return nil, CutOff(err)
		}
		if line = bytes.TrimSuffix(line, []byte("\n")); len(bytes.TrimSpace(line)) > 0 {
			return line, nil
		}
	}
}

// split splits a line into fields. A field may be quoted, with doubled quotes inside it, but
// must not contain a line break. It can also be a formula whose value is a string, such as
// ="0123".
func (t *CSV) split(line []byte) error {
	t.fields, t.unquoted = t.fields[:0], t.unquoted[:0]
	for {
		text := bytes.TrimPrefix(line, []byte("=")) // the formula ="0123" prevents programs from reading the text as a number
		if len(text) > 0 && text[0] == '"' {
			field, rest, err := t.unquote(text[1:])
			if err != nil {
				return err
			}
			if n := len(field); n > 2 && field[0] == '=' && field[1] == '"' && field[n-1] == '"' {
				field = field[2 : n-1] // the same formula in quotes
			}
			t.fields = append(t.fields, field)
			if len(rest) == 0 {
				return nil
			}
			line = rest[1:]
			continue
		}
		end := bytes.IndexByte(line, t.delimiter)
		if end < 0 {
			t.fields = append(t.fields, line)
			return nil
		}
		t.fields = append(t.fields, line[:end])
		line = line[end+1:]
	}
}

// unquote returns the field whose opening quote has been read, and the rest of the line,
// which starts with the delimiter.
func (t *CSV) unquote(s []byte) (field, rest []byte, err error) {
	start := len(t.unquoted)
	for {
		end := bytes.IndexByte(s, '"')
		if end < 0 {
			return nil, nil, fmt.Errorf("line %d: a quote is not closed", t.line)
		}
		t.unquoted = append(t.unquoted, s[:end]...)
		s = s[end+1:]
		if len(s) == 0 || s[0] == t.delimiter {
			return t.unquoted[start:len(t.unquoted):len(t.unquoted)], s, nil
		}
		if s[0] != '"' {
			return nil, nil, fmt.Errorf("line %d: a closing quote is inside a field", t.line)
		}
		t.unquoted = append(t.unquoted, '"')
		s = s[1:]
	}
}

// Columns returns the names in the header.
func (t *CSV) Columns() []string { return t.header }

// Delimiter returns the character that separates the fields.
func (t *CSV) Delimiter() byte { return t.delimiter }

// Each calls f for every row that is not blank.
func (t *CSV) Each(wanted []int, f func(cells []Cell) error) error {
	cells := make([]Cell, len(wanted))
	for {
		line, err := t.next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := t.split(line); err != nil {
			return err
		}
		if len(t.fields) != len(t.header) {
			if err := t.even(); err != nil {
				return err
			}
		}
		if t.blank() {
			continue // skip blank rows, which spreadsheets export
		}
		for i, c := range wanted {
			cells[i] = Text(t.fields[c])
			cells[i].decimal = t.decimal
		}
		if err := f(cells); err != nil {
			return fmt.Errorf("line %d: %w", t.line, err)
		}
	}
}

// even corrects the number of fields of a line if only the header or only the rows end with a
// delimiter. Any other line with a wrong number of fields is an error.
func (t *CSV) even() error {
	n := len(t.header)
	switch {
	case len(t.fields) == n+1 && len(bytes.TrimSpace(t.fields[n])) == 0:
		t.fields = t.fields[:n]
		return nil
	case len(t.fields) == n-1 && t.header[n-1] == "":
		t.fields = append(t.fields, nil)
		return nil
	}
	return t.ragged()
}

func (t *CSV) blank() bool {
	for _, f := range t.fields {
		if len(f) > 0 {
			return false
		}
	}
	return true
}

// ragged returns the error for a line whose number of fields differs from the header's.
func (t *CSV) ragged() error {
	err := fmt.Errorf("line %d has %d fields, the header has %d", t.line, len(t.fields), len(t.header))
	if t.delimiter == ',' && len(t.fields) > len(t.header) {
		return fmt.Errorf("%w; a number with a decimal comma must be in quotes if commas separate the fields", err)
	}
	return err
}

// lineEnds converts the line endings of Windows and old Macs to line feeds.
type lineEnds struct {
	r  io.Reader
	cr bool // the previous byte was a carriage return
}

func (l *lineEnds) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if !l.cr && bytes.IndexByte(p[:n], '\r') < 0 {
		return n, err
	}
	out := 0
	for _, c := range p[:n] {
		after := l.cr
		l.cr = c == '\r'
		switch {
		case c == '\n' && after:
			continue // the carriage return before it already ended the line
		case c == '\r':
			c = '\n'
		}
		p[out] = c
		out++
	}
	return out, err
}

// Split splits a line into fields, as the reader of a table does.
func Split(line []byte, delimiter byte) ([]string, error) {
	t := CSV{delimiter: delimiter}
	if err := t.split(line); err != nil {
		return nil, err
	}
	fields := make([]string, len(t.fields))
	for i, f := range t.fields {
		fields[i] = string(bytes.TrimSpace(f))
	}
	return fields, nil
}
