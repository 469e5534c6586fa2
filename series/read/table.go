package read

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
)

// source is a file with a table in it, on disk or, in tests, in memory.
type source struct {
	name string
	open func() (file, error)
}

type file interface {
	io.Reader
	io.ReaderAt
	io.Seeker
	io.Closer
}

func fileSource(path string) source {
	return source{filepath.Base(path), func() (file, error) { return os.Open(path) }}
}

// stem returns the file's name up to its first dot.
func (s source) stem() string {
	stem, _, _ := strings.Cut(s.name, ".")
	return stem
}

// read opens the table and calls f with it. Errors start with the file name.
func (s source) read(f func(table) error) error {
	in, err := s.open()
	if err != nil {
		return err
	}
	defer in.Close()
	t, err := newTable(in)
	if err == nil {
		err = f(t)
	}
	if err != nil && !errors.Is(err, errEnough) {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// errEnough is returned by a callback to stop reading a table before its end.
var errEnough = errors.New("enough")

// table is a sequence of rows with named columns.
type table interface {
	// columns returns the names of the columns as they are in the file.
	columns() []string
	// each calls f for every row with the cells of the wanted columns, which are valid
	// only during the call. It stops at the first error of f and returns it with the
	// position of the row.
	each(wanted []int, f func(cells []cell) error) error
}

// newTable opens a file as Parquet, or as CSV, which may be gzipped. It detects the
// format by the first bytes.
func newTable(f file) (table, error) {
	var magic [4]byte
	n, err := io.ReadFull(f, magic[:])
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	switch string(magic[:n]) {
	case "PAR1":
		return newParquet(f, size)
	case "PK\x03\x04":
		return nil, errors.New("the file is a zip archive or a spreadsheet; unpack it, or export it as CSV")
	}
	return newCSV(f)
}

// cell is one value of a table.
type cell struct {
	kind   cellKind
	text   []byte  // for cellText, and for cellEmpty the text that means "missing"
	number float64 // for cellNumber and cellInteger
	// integer is the value of a cellInteger, or the Unix time of a cellTime.
	integer  int64
	local    bool // the time has no UTC offset
	fraction bool // the time is not a whole second
}

type cellKind int

const (
	cellText cellKind = iota
	cellEmpty
	cellNumber
	cellInteger
	cellTime
)

// textCell returns the cell for a field of a text file. The usual words for a missing
// value give an empty cell.
func textCell(s []byte) cell {
	s = bytes.TrimSpace(s)
	switch string(s) {
	case "", "NA", "N/A", "NaN", "nan", "null", "NULL", "None":
		return cell{kind: cellEmpty, text: s}
	}
	return cell{kind: cellText, text: s}
}

// numberCell returns the cell for a number. NaN gives an empty cell.
func numberCell(v float64) cell {
	if v != v {
		return cell{kind: cellEmpty}
	}
	return cell{kind: cellNumber, number: v}
}

func integerCell(v int64) cell {
	return cell{kind: cellInteger, number: float64(v), integer: v}
}

// name returns the cell's content as a name, which is valid as long as the cell is.
func (c *cell) name() []byte {
	switch c.kind {
	case cellNumber:
		return strconv.AppendFloat(nil, c.number, 'f', -1, 64)
	case cellInteger:
		return strconv.AppendInt(nil, c.integer, 10)
	case cellTime:
		return time.Unix(c.integer, 0).UTC().AppendFormat(nil, time.DateTime)
	}
	return c.text
}

// value returns the cell's content as a number, or NaN if the cell is empty.
func (c *cell) value() (float64, error) {
	switch c.kind {
	case cellEmpty:
		return math.NaN(), nil
	case cellNumber, cellInteger:
		if math.IsInf(c.number, 0) {
			return 0, fmt.Errorf("%g is not a finite number", c.number)
		}
		return c.number, nil
	case cellTime:
		return 0, errors.New("want a number, found a time")
	}
	v, err := strconv.ParseFloat(string(c.text), 64)
	switch {
	case err == nil && !math.IsInf(v, 0) && v == v:
		return v, nil
	case bytes.IndexByte(c.text, ',') >= 0:
		return 0, fmt.Errorf("%q contains a comma; export numbers with a decimal point and without a thousands separator", clip(c.text))
	}
	return 0, fmt.Errorf("%q is not a number", clip(c.text))
}

// clip shortens a text for an error message.
func clip(s []byte) string {
	if len(s) > 60 {
		return string(s[:60]) + "..."
	}
	return string(s)
}

// maxLine limits the length of a line, so that a file without line breaks need not fit
// into memory.
const maxLine = 1 << 18

// csvTable reads CSV. It does not use encoding/csv, because that package reads the rest of
// the file as one field after an unclosed quote, and copies every row.
type csvTable struct {
	r         *bufio.Reader
	delimiter byte
	header    []string
	line      int
	fields    [][]byte
	unquoted  []byte // the contents of the quoted fields of a line
}

// unpack decompresses gzip and removes a UTF-8 byte-order mark.
func unpack(r io.Reader) (*bufio.Reader, error) {
	b := bufio.NewReaderSize(r, 1<<16)
	if magic, _ := b.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		gz, err := gzip.NewReader(b)
		if err != nil {
			return nil, cutOff(err)
		}
		b = bufio.NewReaderSize(gz, 1<<16)
	}
	if mark, _ := b.Peek(3); bytes.Equal(mark, []byte("\xef\xbb\xbf")) {
		_, err := b.Discard(3)
		return b, err
	}
	if mark, _ := b.Peek(2); bytes.Equal(mark, []byte("\xff\xfe")) || bytes.Equal(mark, []byte("\xfe\xff")) {
		return nil, errors.New("the file is UTF-16; save it as UTF-8")
	}
	return b, nil
}

func newCSV(r io.Reader) (*csvTable, error) {
	b, err := unpack(r)
	if err != nil {
		return nil, err
	}
	t := &csvTable{r: bufio.NewReaderSize(&lineEnds{r: b}, maxLine)}
	line, err := t.next()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("the file is empty")
	}
	if err != nil {
		return nil, err
	}
	t.delimiter = delimiter(line)
	if err := t.split(line); err != nil {
		return nil, err
	}
	for _, name := range t.fields {
		t.header = append(t.header, string(bytes.TrimSpace(name)))
	}
	return t, nil
}

// delimiter returns the character that separates the names in a header.
func delimiter(header []byte) byte {
	best, most := byte(','), 0
	for _, d := range []byte(",;\t|") {
		if n := bytes.Count(header, []byte{d}); n > most {
			best, most = d, n
		}
	}
	return best
}

// cutOff replaces the error for an unexpected end of file by one that explains it.
func cutOff(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fmt.Errorf("the file is truncated (%w); was it copied completely?", io.ErrUnexpectedEOF)
	}
	return err
}

// next returns the next line that is not empty, or io.EOF.
func (t *csvTable) next() ([]byte, error) {
	for {
		line, err := t.r.ReadSlice('\n')
		t.line++
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("line %d is longer than %d bytes; is this a table?", t.line, maxLine)
		case err == io.EOF && len(line) == 0:
			return nil, io.EOF
		case err != nil && err != io.EOF:
			return nil, cutOff(err)
		}
		if line = bytes.TrimSuffix(line, []byte("\n")); len(bytes.TrimSpace(line)) > 0 {
			return line, nil
		}
	}
}

// split splits a line into fields. A field may be quoted, with doubled quotes inside it,
// but must not contain a line break.
func (t *csvTable) split(line []byte) error {
	t.fields, t.unquoted = t.fields[:0], t.unquoted[:0]
	for {
		if len(line) > 0 && line[0] == '"' {
			field, rest, err := t.unquote(line[1:])
			if err != nil {
				return err
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
func (t *csvTable) unquote(s []byte) (field, rest []byte, err error) {
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

func (t *csvTable) columns() []string { return t.header }

func (t *csvTable) each(wanted []int, f func(cells []cell) error) error {
	cells := make([]cell, len(wanted))
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
			return t.ragged()
		}
		if t.blank() {
			continue // skip blank rows, which spreadsheets export
		}
		for i, c := range wanted {
			cells[i] = textCell(t.fields[c])
		}
		if err := f(cells); err != nil {
			return fmt.Errorf("line %d: %w", t.line, err)
		}
	}
}

func (t *csvTable) blank() bool {
	for _, f := range t.fields {
		if len(f) > 0 {
			return false
		}
	}
	return true
}

// ragged returns the error for a line whose number of fields differs from the header's.
func (t *csvTable) ragged() error {
	err := fmt.Errorf("line %d has %d fields, the header has %d", t.line, len(t.fields), len(t.header))
	if t.delimiter == ',' && len(t.fields) > len(t.header) {
		return fmt.Errorf("%w; if a number has a decimal comma, export it with a decimal point", err)
	}
	return err
}

// lineEnds converts the line ends of Windows and old Macs to line feeds.
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
