package outlook

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"loadstar/internal/textfmt"

	"github.com/parquet-go/parquet-go"

	"loadstar/forecast/issue"
	"loadstar/metric"
)

// Writer writes forecasts one after the other. There is a row for each meter and step. Its
// columns are unique_id, cutoff, ds, one for each quantile such as P10, mean, model, version,
// source, quality, reason, generated, and one for each scenario such as path1. Times are UTC;
// ds is the start of the step. CSV and JSON have the precision of float32, like the agent's
// responses.
type Writer interface {
	Write(issue.Forecast) error
	// Close completes the file. Discard removes it instead.
	Close() error
	Discard()
}

// About contains the values that all rows of a file share.
type About struct {
	Levels    []float64
	Version   string
	Generated bool
	// Paths is the number of joint scenarios.
	Paths int
}

// Stdout is the path that stands for the standard output.
const Stdout = "-"

// Create creates a file of forecasts in the format of its extension: .csv, .parquet or .json.
// [Stdout] means CSV on the given writer. The file gets its name when it is closed, so no
// reader sees an unfinished file.
func Create(path string, stdout io.Writer, a About) (Writer, error) {
	if a.Levels == nil {
		a.Levels = []float64{0.1, 0.5, 0.9}
	}
	if path == Stdout {
		return newCSV(stdout, a)
	}
	open := map[string]func(io.Writer, About) (body, error){
		".csv":     func(w io.Writer, a About) (body, error) { return newCSV(w, a) },
		".parquet": func(w io.Writer, a About) (body, error) { return newParquet(w, a), nil },
		".json":    func(w io.Writer, a About) (body, error) { return newJSON(w, a), nil },
	}[strings.ToLower(filepath.Ext(path))]
	if open == nil {
		return nil, fmt.Errorf("%s: forecasts are written as .csv, .parquet or .json, or as CSV to the standard output with %s", path, Stdout)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return nil, err
	}
	w := &file{f: f, path: path}
	if w.body, err = open(f, a); err != nil {
		w.Discard()
		return nil, err
	}
	return w, nil
}

// Write makes the same forecasts as [Run], and writes the rows to a file unless path is empty.
// If a forecast fails, Write leaves no file. It also returns the forecast of the meter with the
// given name.
func Write(ctx context.Context, c Config, path string, stdout io.Writer, name string) (*Summary, issue.Forecast, error) {
	var w Writer
	var wanted issue.Forecast
	if name != "" {
		if _, err := chosen(c.Dataset, []string{name}); err != nil {
			return nil, wanted, err
		}
	}
	if path != "" {
		a := About{Levels: c.Levels, Generated: c.Dataset.Generated, Paths: c.Paths}
		_, a.Version = c.name()
		var err error
		if w, err = Create(path, stdout, a); err != nil {
			return nil, wanted, err
		}
	}
	days := newDayTable()
	s, err := Run(ctx, c, func(f issue.Forecast) error {
		if c.Days != "" {
			days.add(f)
		}
		if f.Client == name {
			wanted = f
		}
		if w == nil {
			return nil
		}
		return w.Write(f)
	})
	switch {
	case w == nil:
	case err != nil:
		w.Discard()
	default:
		err = w.Close()
	}
	if err == nil && c.Days != "" {
		err = days.write(c.Days)
	}
	return s, wanted, err
}

// body writes the content of a file.
type body interface {
	Write(issue.Forecast) error
	Close() error
}

// file is a file that is renamed when it is complete.
type file struct {
	body
	f    *os.File
	path string
}

func (w *file) Close() error {
	err := errors.Join(w.body.Close(), w.f.Chmod(0o600), w.f.Close())
	if err == nil {
		err = os.Rename(w.f.Name(), w.path)
	}
	if err != nil {
		_ = os.Remove(w.f.Name()) // the first error is more important
	}
	return err
}

func (w *file) Discard() {
	_ = w.f.Close()           // the file is discarded
	_ = os.Remove(w.f.Name()) // at worst, a temporary file remains
}

// levelNames returns the names of the columns of quantiles.
func (a About) levelNames() (names []string) {
	for _, l := range a.Levels {
		names = append(names, metric.LevelName(l))
	}
	return names
}

// meanName is the name of the column of means.
const meanName = "mean"

type csvFile struct {
	w   *bufio.Writer
	a   About
	row []byte
	// times contains the steps of the last forecast. Most meters have the same steps.
	times []timeText
}

type timeText struct {
	at   int64
	text []byte
}

func newCSV(to io.Writer, a About) (*csvFile, error) {
	w := &csvFile{w: bufio.NewWriterSize(to, 1<<16), a: a}
	_, err := fmt.Fprintf(w.w, "unique_id,cutoff,ds,%s,mean,model,version,source,quality,reason,generated%s\n", strings.Join(a.levelNames(), ","), strings.Join(append([]string{""}, a.pathNames()...), ","))
	return w, err
}

func (w *csvFile) Write(f issue.Forecast) error {
	before := textfmt.Quoted(f.Client) + "," + time.Unix(f.Cutoff, 0).UTC().Format(time.RFC3339) + ","
	about := "," + textfmt.Quoted(f.Model) + "," + textfmt.Quoted(w.a.Version) + ","
	generated := "," + strconv.FormatBool(w.a.Generated)
	for len(w.times) < len(f.Rows) {
		w.times = append(w.times, timeText{})
	}
	for i, r := range f.Rows {
		b := append(w.row[:0], before...)
		t := &w.times[i]
		if t.at != r.Time || t.text == nil {
			t.at, t.text = r.Time, time.Unix(r.Time, 0).UTC().AppendFormat(t.text[:0], time.RFC3339)
		}
		b = append(b, t.text...)
		for _, v := range r.Values {
			b = issue.AppendNumber(append(b, ','), v)
		}
		b = issue.AppendNumber(append(b, ','), r.Mean)
		b = append(b, about...)
		b = append(b, r.Source...)
		b = append(b, ',')
		b = append(b, r.Quality...)
		b = append(b, ',')
		b = append(b, r.Reason...)
		b = append(b, generated...)
		for k := range w.a.Paths {
			if b = append(b, ','); k < len(r.Paths) {
				b = issue.AppendNumber(b, r.Paths[k])
			}
		}
		b = append(b, '\n')
		w.row = b
		if _, err := w.w.Write(b); err != nil {
			return err
		}
	}
	return nil
}

func (w *csvFile) Close() error { return w.w.Flush() }

func (w *csvFile) Discard() {}

// jsonFile is a list of objects, one per row.
type jsonFile struct {
	w     *bufio.Writer
	a     About
	names []string
	begun bool
}

func newJSON(to io.Writer, a About) *jsonFile {
	return &jsonFile{w: bufio.NewWriterSize(to, 1<<16), a: a, names: append(a.levelNames(), meanName)}
}

func (w *jsonFile) Write(f issue.Forecast) error {
	texts := []string{f.Client, f.Model, w.a.Version}
	for i, s := range texts {
		b, err := json.Marshal(s)
		if err != nil {
			return err
		}
		texts[i] = string(b)
	}
	cutoff := time.Unix(f.Cutoff, 0).UTC().Format(time.RFC3339)
	for _, r := range f.Rows {
		before := ",\n"
		if !w.begun {
			w.begun, before = true, "[\n"
		}
		fmt.Fprintf(w.w, `%s{"unique_id":%s,"cutoff":"%s","ds":"%s"`, before, texts[0], cutoff, time.Unix(r.Time, 0).UTC().Format(time.RFC3339))
		values := append(r.Values[:len(r.Values):len(r.Values)], r.Mean)
		for i := range values {
			fmt.Fprintf(w.w, `,"%s":%s`, w.names[i], jsonNumber(values, i))
		}
		reason := "null"
		if r.Reason != "" {
			reason = `"` + string(r.Reason) + `"`
		}
		if _, err := fmt.Fprintf(w.w, `,"model":%s,"version":%s,"source":"%s","quality":"%s","reason":%s,"generated":%t`,
			texts[1], texts[2], r.Source, r.Quality, reason, w.a.Generated); err != nil {
			return err
		}
		for k, name := range w.a.pathNames() {
			fmt.Fprintf(w.w, `,"%s":%s`, name, jsonNumber(r.Paths, k))
		}
		if _, err := w.w.WriteString("}"); err != nil {
			return err
		}
	}
	return nil
}

// jsonNumber returns values[i] as JSON, or null if there is no such value.
func jsonNumber(values []float64, i int) []byte {
	if i < len(values) {
		if b := issue.AppendNumber(nil, values[i]); len(b) > 0 {
			return b
		}
	}
	return []byte("null")
}

func (w *jsonFile) Close() error {
	end := "\n]\n"
	if !w.begun {
		end = "[]\n"
	}
	if _, err := w.w.WriteString(end); err != nil {
		return err
	}
	return w.w.Flush()
}

// parquetFile writes Parquet. Its columns are in alphabetical order, because Parquet sorts
// groups of columns whose names are known only at run time.
type parquetFile struct {
	w     *parquet.GenericWriter[any]
	a     About
	names []string // names of the columns
	level []int    // index of each column among the quantiles, the mean and the scenarios, in this order, or -1
	rows  []parquet.Row
}

// batchRows is the number of rows that are written together. groupRows is the number of rows in
// a row group, which is in memory until it is complete.
const (
	batchRows = 1024
	groupRows = 1 << 20
)

func newParquet(to io.Writer, a About) *parquetFile {
	zstd := func(n parquet.Node) parquet.Node { return parquet.Compressed(n, &parquet.Zstd) }
	text := func() parquet.Node { return zstd(parquet.Encoded(parquet.String(), &parquet.RLEDictionary)) }
	at := func() parquet.Node { return zstd(parquet.Timestamp(parquet.Millisecond)) }
	group := parquet.Group{
		"unique_id": text(), "cutoff": at(), "ds": at(), "model": text(), "version": text(),
		"source": text(), "quality": text(), "reason": parquet.Optional(text()), "generated": zstd(parquet.Leaf(parquet.BooleanType)),
	}
	levels := append(append(a.levelNames(), meanName), a.pathNames()...)
	for _, name := range levels {
		group[name] = parquet.Optional(zstd(parquet.Leaf(parquet.DoubleType)))
	}
	schema := parquet.NewSchema("forecasts", group)
	w := &parquetFile{a: a, w: parquet.NewGenericWriter[any](to, schema, parquet.MaxRowsPerRowGroup(groupRows), parquet.CreatedBy("loadstar", "", ""),
		parquet.SortingWriterConfig(parquet.SortingColumns(parquet.Ascending("unique_id"), parquet.Ascending("ds"))))}
	for _, c := range schema.Columns() {
		w.names = append(w.names, c[0])
		w.level = append(w.level, slices.Index(levels, c[0]))
	}
	return w
}

func (w *parquetFile) Write(f issue.Forecast) error {
	for _, r := range f.Rows {
		row := make(parquet.Row, len(w.names))
		for i, name := range w.names {
			var v parquet.Value
			defined := 0
			switch name {
			case "unique_id":
				v = parquet.ByteArrayValue([]byte(f.Client))
			case "cutoff":
				v = parquet.Int64Value(1000 * f.Cutoff)
			case "ds":
				v = parquet.Int64Value(1000 * r.Time)
			case "model":
				v = parquet.ByteArrayValue([]byte(f.Model))
			case "version":
				v = parquet.ByteArrayValue([]byte(w.a.Version))
			case "source":
				v = parquet.ByteArrayValue([]byte(r.Source))
			case "quality":
				v = parquet.ByteArrayValue([]byte(r.Quality))
			case "reason":
				if r.Reason != "" {
					v, defined = parquet.ByteArrayValue([]byte(r.Reason)), 1
				}
			case "generated":
				v = parquet.BooleanValue(w.a.Generated)
			default:
				x := r.Mean
				if k := w.level[i] - len(r.Values); k < 0 {
					x = r.Values[w.level[i]]
				} else if k > 0 && k <= len(r.Paths) {
					x = r.Paths[k-1]
				} else if k > 0 {
					x = math.NaN()
				}
				if !math.IsNaN(x) {
					v, defined = parquet.DoubleValue(x), 1
				}
			}
			row[i] = v.Level(0, defined, i)
		}
		w.rows = append(w.rows, row)
	}
	if len(w.rows) < batchRows {
		return nil
	}
	return w.flush()
}

func (w *parquetFile) flush() error {
	_, err := w.w.WriteRows(w.rows)
	w.rows = w.rows[:0]
	return err
}

func (w *parquetFile) Close() error {
	if err := w.flush(); err != nil {
		return err
	}
	return w.w.Close()
}
