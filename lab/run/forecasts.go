package run

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"

	"loadstar/internal/textfmt"
)

// ForecastWriter writes forecasts one at a time, in the long format that common forecasting
// libraries use. The columns are unique_id, cutoff, ds, y, and one with the model's name.
type ForecastWriter interface {
	Write(Forecast) error
	Close() error
}

// CreateForecasts creates a CSV or Parquet file, depending on the extension of path. model
// is the name of the last column.
func CreateForecasts(path, model string) (ForecastWriter, error) {
	ext := strings.ToLower(filepath.Ext(path))
	if ext != ".csv" && ext != ".parquet" {
		return nil, fmt.Errorf("%s: forecasts are written as .csv or .parquet", path)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	if ext == ".csv" {
		w := &csvForecasts{f: f, w: csv.NewWriter(f)}
		return w, w.w.Write([]string{"unique_id", "cutoff", "ds", "y", textfmt.Cell(model)})
	}
	// The name of the last column is the name of the model, so a Go struct cannot define
	// the schema.
	at := func() parquet.Node { return parquet.Compressed(parquet.Timestamp(parquet.Millisecond), &parquet.Zstd) }
	schema := parquet.NewSchema("forecasts", parquet.Group{
		"unique_id": parquet.Compressed(parquet.Encoded(parquet.String(), &parquet.RLEDictionary), &parquet.Zstd),
		"cutoff":    at(),
		"ds":        at(),
		"y":         parquet.Compressed(parquet.Leaf(parquet.DoubleType), &parquet.Zstd),
		model:       parquet.Compressed(parquet.Leaf(parquet.DoubleType), &parquet.Zstd),
	})
	w := &parquetForecasts{f: f, w: parquet.NewGenericWriter[any](f, schema, parquet.MaxRowsPerRowGroup(1<<20))}
	for _, c := range schema.Columns() {
		w.order = append(w.order, c[0])
	}
	w.model = model
	return w, nil
}

type csvForecasts struct {
	f *os.File
	w *csv.Writer
}

func (c *csvForecasts) Write(r Forecast) error {
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 9, 64) }
	return c.w.Write([]string{
		textfmt.Cell(r.Client), r.Cutoff.UTC().Format(time.RFC3339), r.Time.UTC().Format(time.RFC3339), number(r.Actual), number(r.Forecast),
	})
}

func (c *csvForecasts) Close() error {
	c.w.Flush()
	if err := c.w.Error(); err != nil {
		c.f.Close()
		return err
	}
	return c.f.Close()
}

type parquetForecasts struct {
	f     *os.File
	w     *parquet.GenericWriter[any]
	model string
	order []string // columns in the order of the file: Parquet groups are sorted by name
	rows  []parquet.Row
}

func (p *parquetForecasts) Write(r Forecast) error {
	row := make(parquet.Row, len(p.order))
	for i, name := range p.order {
		var v parquet.Value
		switch name {
		case "unique_id":
			v = parquet.ByteArrayValue([]byte(r.Client))
		case "cutoff":
			v = parquet.Int64Value(r.Cutoff.UnixMilli())
		case "ds":
			v = parquet.Int64Value(r.Time.UnixMilli())
		case "y":
			v = parquet.DoubleValue(r.Actual)
		case p.model:
			v = parquet.DoubleValue(r.Forecast)
		}
		row[i] = v.Level(0, 0, i)
	}
	p.rows = append(p.rows, row)
	if len(p.rows) < 1024 {
		return nil
	}
	return p.flush()
}

func (p *parquetForecasts) flush() error {
	_, err := p.w.WriteRows(p.rows)
	p.rows = p.rows[:0]
	return err
}

func (p *parquetForecasts) Close() error {
	err := p.flush()
	if err == nil {
		err = p.w.Close()
	}
	if cerr := p.f.Close(); err == nil {
		err = cerr
	}
	return err
}
