// Package write writes load data in the long format that package read, pandas, Polars and
// DuckDB read. Load and weather are Parquet files, with one row per meter and interval and the
// UTC time of its start. Meters are a CSV file.
//
// Rows are streamed, so memory does not grow with the number of meters. A file appears under
// its name only when it is complete.
package write

import (
	"encoding/csv"
	"fmt"
	"strconv"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"loadstar/internal/disk"
	"loadstar/internal/textfmt"
	"loadstar/series"
)

// groupRows is the minimum number of rows in every row group except the last one. A row
// group stays in memory, compressed, until it is written.
const groupRows = 1 << 19

// Load writes a load table with the columns meter_id, timestamp and load_kw.
type Load struct {
	file    *disk.File
	w       *parquet.GenericWriter[loadRow]
	rows    []loadRow
	inGroup int
}

type loadRow struct {
	Meter string   `parquet:"meter_id,dict"`
	Time  int64    `parquet:"timestamp,delta,timestamp(millisecond:utc)"`
	Load  *float32 `parquet:"load_kw,optional"`
}

// CreateLoad starts a load table. The file appears under its name when Close succeeds.
func CreateLoad(path string) (*Load, error) {
	file, err := disk.CreatePrivate(path)
	if err != nil {
		return nil, err
	}
	return &Load{
		file: file,
		w:    parquet.NewGenericWriter[loadRow](file, parquet.Compression(&zstd.Codec{}), parquet.CreatedBy("loadstar", "", "")),
		rows: make([]loadRow, 0, 4096),
	}, nil
}

// Meter writes a meter's rows, with null for missing values. It does not retain m.
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
			return fmt.Errorf("%s: %w", l.file.Path(), err)
		}
		at += n
	}
	clear(l.rows[:cap(l.rows)])
	if l.inGroup += len(m.Load); l.inGroup < groupRows {
		return nil
	}
	l.inGroup = 0
	if err := l.w.Flush(); err != nil {
		return fmt.Errorf("%s: %w", l.file.Path(), err)
	}
	return nil
}

// Close completes the file.
func (l *Load) Close() error { return l.file.Finish(l.w.Close()) }

// Discard deletes the file if it is not complete.
func (l *Load) Discard() { l.file.Discard() }

// Weather writes a weather table with all columns of w.
func Weather(path string, w series.Weather, interval time.Duration) error {
	file, err := disk.CreatePrivate(path)
	if err != nil {
		return err
	}
	defer file.Discard()
	columns := parquet.Group{"timestamp": parquet.Encoded(parquet.Timestamp(parquet.Millisecond), &parquet.DeltaBinaryPacked)}
	for _, name := range w.Names {
		columns[name] = parquet.Optional(parquet.Leaf(parquet.FloatType))
	}
	schema := parquet.NewSchema("weather", columns)
	number := map[string]int{}
	for i, path := range schema.Columns() {
		number[path[0]] = i
	}
	out := parquet.NewWriter(file, schema, parquet.Compression(&zstd.Codec{}), parquet.CreatedBy("loadstar", "", ""))
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
	return file.Finish(out.Close())
}

// Meters writes a table of meters with their names, labels and static values.
type Meters struct {
	file   *disk.File
	w      *csv.Writer
	labels int
	names  int
}

// CreateMeters starts a table of meters. The file appears under its name when Close succeeds.
func CreateMeters(path string, labels, statics []string) (*Meters, error) {
	file, err := disk.CreatePrivate(path)
	if err != nil {
		return nil, err
	}
	t := &Meters{file: file, w: csv.NewWriter(file), labels: len(labels), names: len(statics)}
	return t, t.row("meter_id", labels, statics)
}

// Meter writes a meter's row, with an empty field for a missing value.
func (t *Meters) Meter(m series.Meter, labels []string) error {
	if len(labels) != t.labels || len(m.Static) != t.names {
		return fmt.Errorf("%s: meter %s has %d labels and %d values, but the header has %d and %d",
			t.file.Path(), m.ID, len(labels), len(m.Static), t.labels, t.names)
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
	row := []string{textfmt.Cell(id)}
	for _, label := range labels {
		row = append(row, textfmt.Cell(label))
	}
	return t.w.Write(append(row, values...))
}

// Close completes the file.
func (t *Meters) Close() error {
	t.w.Flush()
	return t.file.Finish(t.w.Error())
}

// Discard deletes the file if it is not complete.
func (t *Meters) Discard() { t.file.Discard() }
