package run

import (
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
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
	options := []parquet.WriterOption{parquet.Compression(&parquet.Zstd), parquet.MaxRowsPerRowGroup(1 << 20)}
	return &parquetForecasts{f, newWideWriter(f, reflect.TypeFor[forecastRow](), []string{model}, options)}, nil
}

// forecastRow is a row of the Parquet file. Its last column has the model's name.
type forecastRow struct {
	Client string    `parquet:"unique_id,dict"`
	Cutoff time.Time `parquet:"cutoff,timestamp(millisecond)"`
	Time   time.Time `parquet:"ds,timestamp(millisecond)"`
	Actual float64   `parquet:"y"`
	Model  []float64 `parquet:"-"`
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
	return errors.Join(c.w.Error(), c.f.Close())
}

type parquetForecasts struct {
	f *os.File
	w *wideWriter
}

func (p *parquetForecasts) Write(r Forecast) error {
	return p.w.write(reflect.ValueOf(forecastRow{r.Client, r.Cutoff, r.Time, r.Actual, []float64{r.Forecast}}))
}

func (p *parquetForecasts) Close() error { return errors.Join(p.w.close(), p.f.Close()) }
