package readings

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"loadstar/series/store"
)

// Reasons to refuse a row, in addition to the store's.
const (
	badTime       = "time"             // not a time
	noOffset      = "time-offset"      // the time has no offset, and the site has no zone
	noSuchTime    = "nonexistent-time" // clocks skip it
	ambiguousTime = "ambiguous-time"   // clocks repeat it, and other rows do not show which of the two times is meant
	unknownClient = "unknown-client"   // the agent has no such client
	negative      = "negative"         // the client has no feed-in
	badQuality    = "quality"          // not OK, ESTIMATED, MISSING or BAD
	repeated      = "repeated"         // the file already has a row for this step
)

const maxLine = 16 << 10

// maxDocumentRows limits the rows of weather and of readings over HTTP, because such documents
// are held in memory completely. A very short row needs fifty times its size in memory.
const maxDocumentRows = 1 << 16

// errRows means that a document has too many rows.
var errRows = fmt.Errorf("it has more than %d rows; send it in parts", maxDocumentRows)

// syntaxError means that a whole document cannot be read.
type syntaxError struct {
	row int // counted from 1, without the heading; 0 for the heading
	err error
}

func (e *syntaxError) Error() string {
	if e.row == 0 {
		return e.err.Error()
	}
	return fmt.Sprintf("row %d: %v", e.row, e.err)
}

func (e *syntaxError) Unwrap() error { return e.err }

// lines calls do for each non-empty line, with its number, counted from 1.
func lines(r io.Reader, do func(n int, line []byte) error) error {
	source := &failing{r: r}
	in := bufio.NewScanner(source)
	in.Buffer(make([]byte, 0, 4096), maxLine)
	n := 0
	for in.Scan() {
		n++
		line := in.Bytes()
		if n == 1 {
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err := do(n, line); err != nil {
			return cmp.Or(source.err, err) // a truncated line is not the sender's fault
		}
	}
	if errors.Is(in.Err(), bufio.ErrTooLong) {
		return &syntaxError{n + 1, fmt.Errorf("the line is longer than %d bytes", maxLine)}
	}
	return in.Err()
}

// failing records the error of a reader.
type failing struct {
	r   io.Reader
	err error
}

// Read implements io.Reader.
func (f *failing) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}

// split returns the cells of a line of CSV.
func split(line []byte, cells []string) ([]string, error) {
	text := strings.TrimSuffix(string(line), "\r")
	cells = cells[:0]
	if !strings.Contains(text, `"`) {
		for cell := range strings.SplitSeq(text, ",") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		return cells, nil
	}
	r := csv.NewReader(strings.NewReader(text))
	r.TrimLeadingSpace = true
	got, err := r.Read()
	return append(cells, got...), err
}

// table calls row for each row of a CSV document. Known reports whether a column name is
// allowed.
func table(r io.Reader, required []string, known func(string) bool, row func(n int, cell func(name string) string) error) error {
	var head, cells []string
	cell := func(name string) string {
		if i := slices.Index(head, name); i >= 0 {
			return cells[i]
		}
		return ""
	}
	rows := 0
	err := lines(r, func(_ int, line []byte) error {
		var err error
		if head == nil {
			if head, err = split(line, nil); err != nil {
				return &syntaxError{0, err}
			}
			return checkHead(head, required, known)
		}
		rows++
		if cells, err = split(line, cells); err != nil {
			return &syntaxError{rows, err}
		}
		if len(cells) != len(head) {
			return &syntaxError{rows, fmt.Errorf("it has %d cells, but the heading has %d", len(cells), len(head))}
		}
		return row(rows, cell)
	})
	if err == nil && head == nil {
		err = &syntaxError{0, errors.New("it is empty")}
	}
	return err
}

func checkHead(head, required []string, known func(string) bool) error {
	for i, name := range head {
		switch {
		case slices.Index(head, name) != i:
			return &syntaxError{0, fmt.Errorf("two columns are named %.60q", name)}
		case !known(name):
			return &syntaxError{0, fmt.Errorf("column %.60q is not known; the cells of a row are separated by commas", name)}
		}
	}
	for _, name := range required {
		if !slices.Contains(head, name) {
			return &syntaxError{0, fmt.Errorf("there is no column %s; want %s", name, strings.Join(required, ","))}
		}
	}
	return nil
}

// rowReader turns rows into readings.
type rowReader struct {
	zone    *time.Location
	clients map[string]Client
	last    map[string]int64 // time of the previous row, by client
	names   map[string]string
}

func newRowReader(zone *time.Location, clients map[string]Client) *rowReader {
	return &rowReader{zone: zone, clients: clients, last: map[string]int64{}, names: map[string]string{}}
}

// reading converts the cells of a row to a reading, or returns the reason to refuse the row.
// The revision is -1 if there is no revision column.
func (p *rowReader) reading(client, at string, kw float64, quality string, revision int) (store.Reading, string) {
	r := store.Reading{Revision: revision + 1, KW: float32(kw)}
	c, ok := p.clients[client]
	if !ok {
		return r, unknownClient
	}
	name, ok := p.names[client]
	if !ok {
		name = strings.Clone(client) // a copy that does not refer to the document
		p.names[name] = name
	}
	r.Client = name
	var why string
	if r.Time, why = p.instant(name, at); why != "" {
		return r, why
	}
	i := slices.Index([]string{"OK", "ESTIMATED", "MISSING", "BAD"}, strings.ToUpper(quality))
	switch {
	case quality == "" && math.IsNaN(kw):
		r.Quality = store.Missing
	case quality == "":
		r.Quality = store.OK
	case i < 0:
		return r, badQuality
	default:
		r.Quality = store.Quality(i)
	}
	if kw < 0 && !c.Net && r.Quality != store.Bad {
		if kw <= -negligible {
			return r, negative
		}
		r.KW = 0
	}
	return r, ""
}

var (
	withOffset = []string{time.RFC3339, "2006-01-02 15:04:05Z07:00", "2006-01-02T15:04Z07:00", "2006-01-02 15:04Z07:00"}
	naive      = []string{"2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04"}
)

// instant reads a time: with an offset, as Unix seconds, or as local time of the site.
func (p *rowReader) instant(client, text string) (int64, string) {
	if text == "" {
		return 0, badTime
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		p.last[client] = n
		return n, ""
	}
	for _, layout := range withOffset {
		if t, err := time.Parse(layout, text); err == nil {
			if t.Nanosecond() != 0 {
				return 0, string(store.OffGrid)
			}
			p.last[client] = t.Unix()
			return t.Unix(), ""
		}
	}
	for _, layout := range naive {
		t, err := time.Parse(layout, text)
		if err != nil {
			continue
		}
		if p.zone == nil {
			return 0, noOffset
		}
		u, why := local(t, p.zone, p.last[client])
		if why == "" {
			p.last[client] = u
		}
		return u, why
	}
	return 0, badTime
}

// local returns the instant of a local time. In the hour that clocks repeat, the order of the
// rows shows which of the two instants is meant. The previous row must be at most two hours
// earlier.
func local(t time.Time, zone *time.Location, last int64) (int64, string) {
	const day = 24 * 3600
	var found []int64
	for _, near := range []int64{-day, day} {
		_, offset := time.Unix(t.Unix()+near, 0).In(zone).Zone()
		u := t.Unix() - int64(offset)
		if _, is := time.Unix(u, 0).In(zone).Zone(); is == offset && !slices.Contains(found, u) {
			found = append(found, u)
		}
	}
	slices.Sort(found)
	switch {
	case len(found) == 0:
		return 0, noSuchTime
	case len(found) == 1:
		return found[0], ""
	}
	for _, u := range found {
		if u > last && u-last <= 2*3600 {
			return u, ""
		}
	}
	return 0, ambiguousTime
}

// readCSV reads readings: unique_id, ds, y, and optionally quality and revision.
func (p *rowReader) readCSV(r io.Reader, do func(row int, r store.Reading, why string) error) error {
	known := []string{"unique_id", "ds", "y", "quality", "revision"}
	return table(r, known[:3], func(name string) bool { return slices.Contains(known, name) }, func(n int, cell func(string) string) error {
		kw, ok := number(cell("y"))
		if !ok {
			return do(n, store.Reading{}, string(store.BadValue))
		}
		revision := -1
		if text := cell("revision"); text != "" {
			var err error
			if revision, err = strconv.Atoi(text); err != nil || revision < 0 {
				return do(n, store.Reading{}, string(store.BadRevision))
			}
		}
		reading, why := p.reading(cell("unique_id"), cell("ds"), kw, cell("quality"), revision)
		return do(n, reading, why)
	})
}

// number reads a number. A missing value is NaN.
func number(text string) (float64, bool) {
	switch strings.ToLower(text) {
	case "", "nan", "null", "na":
		return math.NaN(), true
	}
	v, err := strconv.ParseFloat(text, 64)
	return v, err == nil && !math.IsInf(v, 0)
}

// jsonRow is a reading in JSON.
type jsonRow struct {
	Client   string    `json:"unique_id"`
	Time     *jsonTime `json:"ds"`
	KW       *float64  `json:"y"`
	Quality  string    `json:"quality"`
	Revision *int      `json:"revision"`
}

// jsonTime is a string, or a number of Unix seconds.
type jsonTime string

// UnmarshalJSON implements json.Unmarshaler.
func (t *jsonTime) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		var text string
		err := json.Unmarshal(b, &text)
		*t = jsonTime(text)
		return err
	}
	var n int64
	err := json.Unmarshal(b, &n)
	*t = jsonTime(strconv.FormatInt(n, 10))
	return err
}

// readJSON reads readings as JSON lines, or as one array.
func (p *rowReader) readJSON(r io.Reader, do func(row int, r store.Reading, why string) error) error {
	return objects(r, func(n int, row *jsonRow) error {
		if row.Time == nil {
			return do(n, store.Reading{}, badTime)
		}
		kw, revision := math.NaN(), -1
		if row.KW != nil {
			kw = *row.KW
		}
		if row.Revision != nil {
			if revision = *row.Revision; revision < 0 {
				return do(n, store.Reading{}, string(store.BadRevision))
			}
		}
		reading, why := p.reading(row.Client, string(*row.Time), kw, row.Quality, revision)
		return do(n, reading, why)
	})
}

// objects calls do for each object of JSON lines, or of one array.
func objects[T any](r io.Reader, do func(n int, row *T) error) error {
	in := bufio.NewReader(r)
	first, err := peek(in)
	if err != nil {
		return err
	}
	if first != '[' {
		rows := 0
		return lines(in, func(_ int, line []byte) error {
			rows++
			row := new(T)
			if err := strict(line, row); err != nil {
				return &syntaxError{rows, err}
			}
			return do(rows, row)
		})
	}
	return array(in, do)
}

// array calls do for each object of an array. It holds only one object in memory.
func array[T any](r io.Reader, do func(n int, row *T) error) error {
	source := &failing{r: r}
	fail := func(n int, err error) error {
		if source.err != nil { // a truncated array is not the sender's fault
			return source.err
		}
		return &syntaxError{n, err}
	}
	d := json.NewDecoder(source)
	d.DisallowUnknownFields()
	if _, err := d.Token(); err != nil {
		return fail(0, err)
	}
	n := 0
	for d.More() {
		n++
		row := new(T)
		if err := d.Decode(row); err != nil {
			return fail(n, err)
		}
		if err := do(n, row); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return fail(0, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fail(0, errors.New("there is text after the JSON value"))
	}
	return nil
}

// peek returns the first byte that is not white space.
func peek(in *bufio.Reader) (byte, error) {
	for {
		b, err := in.ReadByte()
		if errors.Is(err, io.EOF) {
			return 0, &syntaxError{0, errors.New("it is empty")}
		}
		if err != nil {
			return 0, err
		}
		if !bytes.ContainsRune([]byte(" \t\r\n"), rune(b)) {
			return b, in.UnreadByte()
		}
	}
}

// strict decodes one JSON value and refuses unknown members.
func strict(data []byte, to any) error {
	if _, ok := to.(json.Unmarshaler); ok { // the type checks its fields itself, without a decoder's memory for each line
		return json.Unmarshal(data, to)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is text after the JSON value")
	}
	return nil
}
