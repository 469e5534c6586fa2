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

// stem is the name without what it ends in.
func (s source) stem() string {
	stem, _, _ := strings.Cut(s.name, ".")
	return stem
}

// read opens the table and calls f with it. Errors name the file.
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

// errEnough ends the reading of a table before its end.
var errEnough = errors.New("enough")

// table is rows with named columns.
type table interface {
	// columns returns the names of the columns, as the file has them.
	columns() []string
	// each calls f for every row with the cells of the wanted columns, which are
	// valid during the call only. An error of f comes back with the row's place.
	each(wanted []int, f func(cells []cell) error) error
}

// newTable opens a file by what it is: Parquet, or CSV, gzipped or not.
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
		return nil, errors.New("this is a zip archive or a workbook; unpack it, or export it as CSV")
	}
	return newCSV(f)
}

// cell is one value of a table.
type cell struct {
	kind   cellKind
	text   []byte  // of text, and of what text stands for nothing
	number float64 // of numbers and integers
	// integer is an integer, or the seconds since 1970 of a time.
	integer  int64
	local    bool // a time has no zone
	fraction bool // a time is not a whole second
}

type cellKind int

const (
	cellText cellKind = iota
	cellEmpty
	cellNumber
	cellInteger
	cellTime
)

// textCell is a field of a text file; the usual words for nothing are nothing.
func textCell(s []byte) cell {
	s = bytes.TrimSpace(s)
	switch string(s) {
	case "", "NA", "N/A", "NaN", "nan", "null", "NULL", "None":
		return cell{kind: cellEmpty, text: s}
	}
	return cell{kind: cellText, text: s}
}

// numberCell is a number; NaN is nothing.
func numberCell(v float64) cell {
	if v != v {
		return cell{kind: cellEmpty}
	}
	return cell{kind: cellNumber, number: v}
}

func integerCell(v int64) cell {
	return cell{kind: cellInteger, number: float64(v), integer: v}
}

// name returns a cell as a name. It is valid as long as the cell is.
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

// value returns a cell as a number, NaN if it is empty.
func (c *cell) value() (float64, error) {
	switch c.kind {
	case cellEmpty:
		return math.NaN(), nil
	case cellNumber, cellInteger:
		if math.IsInf(c.number, 0) {
			return 0, fmt.Errorf("%g is not a number to count with", c.number)
		}
		return c.number, nil
	case cellTime:
		return 0, errors.New("a time stands where a number is wanted")
	}
	v, err := strconv.ParseFloat(string(c.text), 64)
	switch {
	case err == nil && !math.IsInf(v, 0) && v == v:
		return v, nil
	case bytes.IndexByte(c.text, ',') >= 0:
		return 0, fmt.Errorf("%q has a comma; export numbers with a decimal point and nothing between thousands", clip(c.text))
	}
	return 0, fmt.Errorf("%q is not a number", clip(c.text))
}

// clip shortens what is quoted in an error.
func clip(s []byte) string {
	if len(s) > 60 {
		return string(s[:60]) + "..."
	}
	return string(s)
}

// maxLine bounds a row of text, so that a file without line ends does not have to
// fit into memory.
const maxLine = 1 << 18

// csvTable reads text. It does not use encoding/csv: there a quote that is not
// closed takes the rest of the file for one field, and every row is copied.
type csvTable struct {
	r         *bufio.Reader
	delimiter byte
	header    []string
	line      int
	fields    [][]byte
	unquoted  []byte // what was in quotes with quotes in it
}

// unpack takes off compression and a byte-order mark.
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

// delimiter returns what separates the names in a header.
func delimiter(header []byte) byte {
	best, most := byte(','), 0
	for _, d := range []byte(",;\t|") {
		if n := bytes.Count(header, []byte{d}); n > most {
			best, most = d, n
		}
	}
	return best
}

// cutOff explains the end of a file in the middle of something.
func cutOff(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fmt.Errorf("the file is cut off (%w); was it copied in full?", io.ErrUnexpectedEOF)
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

// split cuts a line into fields. A field may stand in quotes, with the quotes in it
// doubled; it does not go on in the next line.
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

// unquote returns the field whose opening quote has been read, and what follows it
// with the delimiter in front.
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
			return nil, nil, fmt.Errorf("line %d: a quote ends within a field", t.line)
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
			continue // spreadsheets leave such rows behind
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

// ragged explains a line that has not as many fields as the header.
func (t *csvTable) ragged() error {
	err := fmt.Errorf("line %d has %d fields, the header has %d", t.line, len(t.fields), len(t.header))
	if t.delimiter == ',' && len(t.fields) > len(t.header) {
		return fmt.Errorf("%w; if a number has a decimal comma, export it with a decimal point", err)
	}
	return err
}

// lineEnds turns the line ends of Windows and old Macs into line feeds.
type lineEnds struct {
	r  io.Reader
	cr bool // the last byte was a carriage return
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
			continue // its carriage return has ended the line
		case c == '\r':
			c = '\n'
		}
		p[out] = c
		out++
	}
	return out, err
}
