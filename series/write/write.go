// Package write writes load data in the long format that package read opens and
// that pandas, Polars and DuckDB open too: load and weather as Parquet, one row for
// a meter and an interval, with UTC times of its start; meters as CSV.
//
// Rows are streamed: memory does not grow with the number of meters. A file appears
// under its name when it is complete.
package write

import (
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"loadstar/series"
)

// groupRows is how many rows a row group has at least, but for the last: what is
// held in memory, compressed, before it is written.
const groupRows = 1 << 19

// Load writes a load table with the columns meter_id, timestamp and load_kw.
type Load struct {
	file    pending
	w       *parquet.GenericWriter[loadRow]
	rows    []loadRow
	inGroup int
}

type loadRow struct {
	Meter string   `parquet:"meter_id,dict"`
	Time  int64    `parquet:"timestamp,delta,timestamp(millisecond:utc)"`
	Load  *float32 `parquet:"load_kw,optional"`
}

// CreateLoad begins a load table. Only Close makes it a file of that name.
func CreateLoad(path string) (*Load, error) {
	file, err := create(path)
	if err != nil {
		return nil, err
	}
	return &Load{
		file: file,
		w:    parquet.NewGenericWriter[loadRow](file.f, parquet.Compression(&zstd.Codec{}), parquet.CreatedBy("loadstar", "", "")),
		rows: make([]loadRow, 0, 4096),
	}, nil
}

// Meter writes a meter's rows, with null for a missing value. It does not keep m.
func (l *Load) Meter(m series.Meter, interval time.Duration) error {
	step := interval.Milliseconds()
	for at := 0; at < len(m.Load); {
		n := min(len(m.Load)-at, cap(l.rows))
		l.rows = l.rows[:n]
		for i := range l.rows {
			l.rows[i] = loadRow{Meter: m.ID, Time: 1000*m.Start + int64(at+i)*step}
			if v := &m.Load[at+i]; !series.Missing(*v) {
				l.rows[i].Load = v
			}
		}
		if _, err := l.w.Write(l.rows); err != nil {
			return fmt.Errorf("%s: %w", l.file.path, err)
		}
		at += n
	}
	clear(l.rows[:cap(l.rows)])
	if l.inGroup += len(m.Load); l.inGroup < groupRows {
		return nil
	}
	l.inGroup = 0
	if err := l.w.Flush(); err != nil {
		return fmt.Errorf("%s: %w", l.file.path, err)
	}
	return nil
}

// Close completes the file.
func (l *Load) Close() error { return l.file.finish(l.w.Close()) }

// Discard gives the file up, if it is not complete.
func (l *Load) Discard() { l.file.discard() }

// Weather writes a weather table, with a column for each of the weather's.
func Weather(path string, w series.Weather, interval time.Duration) error {
	file, err := create(path)
	if err != nil {
		return err
	}
	defer file.discard()
	columns := parquet.Group{"timestamp": parquet.Encoded(parquet.Timestamp(parquet.Millisecond), &parquet.DeltaBinaryPacked)}
	for _, name := range w.Names {
		columns[name] = parquet.Optional(parquet.Leaf(parquet.FloatType))
	}
	schema := parquet.NewSchema("weather", columns)
	number := map[string]int{}
	for i, path := range schema.Columns() {
		number[path[0]] = i
	}
	out := parquet.NewWriter(file.f, schema, parquet.Compression(&zstd.Codec{}), parquet.CreatedBy("loadstar", "", ""))
	row := make(parquet.Row, len(number))
	steps := 0
	if len(w.Columns) > 0 {
		steps = len(w.Columns[0])
	}
	for i := range steps {
		t := 1000*w.Start + int64(i)*interval.Milliseconds()
		row[number["timestamp"]] = parquet.Int64Value(t).Level(0, 0, number["timestamp"])
		for j, name := range w.Names {
			c := number[name]
			if v := w.Columns[j][i]; series.Missing(v) {
				row[c] = parquet.NullValue().Level(0, 0, c)
			} else {
				row[c] = parquet.FloatValue(v).Level(0, 1, c)
			}
		}
		if _, err := out.WriteRows([]parquet.Row{row}); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return file.finish(out.Close())
}

// Meters writes a table of meters: their names, labels, and static values.
type Meters struct {
	file   pending
	w      *csv.Writer
	labels int
	names  int
}

// CreateMeters begins a table of meters. Only Close makes it a file of that name.
func CreateMeters(path string, labels, statics []string) (*Meters, error) {
	file, err := create(path)
	if err != nil {
		return nil, err
	}
	t := &Meters{file: file, w: csv.NewWriter(file.f), labels: len(labels), names: len(statics)}
	return t, t.row("meter_id", labels, statics)
}

// Meter writes a meter's row; a value that is missing stays empty.
func (t *Meters) Meter(m series.Meter, labels []string) error {
	if len(labels) != t.labels || len(m.Static) != t.names {
		return fmt.Errorf("%s: meter %s has %d labels and %d values, the header %d and %d",
			t.file.path, m.ID, len(labels), len(m.Static), t.labels, t.names)
	}
	values := make([]string, len(m.Static))
	for i, v := range m.Static {
		if !series.Missing(v) {
			values[i] = strconv.FormatFloat(float64(v), 'g', -1, 32)
		}
	}
	return t.row(m.ID, labels, values)
}

func (t *Meters) row(id string, labels, values []string) error {
	return t.w.Write(append(append([]string{id}, labels...), values...))
}

// Close completes the file.
func (t *Meters) Close() error {
	t.w.Flush()
	return t.file.finish(t.w.Error())
}

// Discard gives the file up, if it is not complete.
func (t *Meters) Discard() { t.file.discard() }

// pending is a file that has not got its name yet.
type pending struct {
	f    *os.File
	path string
	done bool
}

func create(path string) (pending, error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".loadstar-*")
	return pending{f: f, path: path}, err
}

// finish gives the file its name, unless writing it failed.
func (p *pending) finish(err error) error {
	if p.done {
		return errors.New("write: closed twice")
	}
	if err == nil {
		err = p.f.Chmod(0o644)
	}
	if err != nil {
		p.discard()
		return fmt.Errorf("%s: %w", p.path, err)
	}
	p.done = true
	if err := p.f.Close(); err != nil {
		os.Remove(p.f.Name())
		return fmt.Errorf("%s: %w", p.path, err)
	}
	return os.Rename(p.f.Name(), p.path)
}

func (p *pending) discard() {
	if !p.done {
		p.done = true
		p.f.Close()
		os.Remove(p.f.Name())
	}
}
