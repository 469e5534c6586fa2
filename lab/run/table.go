package run

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"loadstar/internal/disk"
	"loadstar/internal/textfmt"
)

// Table is a CSV file to which rows of type T are appended. T is a struct of strings, integers,
// floats and times. Its parquet tags contain the names of the columns. NaN becomes an empty
// field. If the last field is of type []float64, it contains the values of columns whose names
// differ from run to run, such as those of quantiles.
type Table[T any] struct {
	f      *os.File
	w      *bufio.Writer
	offset int64
	row    []byte
	more   int // columns whose names differ from run to run
}

// openTable opens a table and truncates it to the offset. If the offset is 0, it creates the
// table. more contains the names of the columns whose values are in the last field.
func openTable[T any](path string, offset int64, more ...string) (*Table[T], error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() < offset {
		err = fmt.Errorf("%s has %d bytes, but had %d at the last checkpoint", path, info.Size(), offset)
	}
	if err == nil {
		err = f.Truncate(offset)
	}
	if err == nil {
		_, err = f.Seek(offset, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	t := &Table[T]{f: f, w: bufio.NewWriter(f), offset: offset, more: len(more)}
	if offset == 0 {
		t.row = append(t.row[:0], strings.Join(append(columns[T](), more...), ",")...)
		err = t.write()
	}
	return t, err
}

func columns[T any]() []string {
	var names []string
	for f := range reflect.TypeFor[T]().Fields() {
		if f.Type.Kind() != reflect.Slice {
			name, _, _ := strings.Cut(f.Tag.Get("parquet"), ",")
			names = append(names, name)
		}
	}
	return names
}

// Append adds a row to the table. Rows are buffered until the next flush.
func (t *Table[T]) Append(row T) error {
	t.row = t.row[:0]
	v := reflect.ValueOf(row)
	for i := range v.NumField() {
		if i > 0 {
			t.row = append(t.row, ',')
		}
		switch f := v.Field(i); f.Kind() {
		case reflect.Struct:
			t.row = f.Interface().(time.Time).UTC().AppendFormat(t.row, time.RFC3339)
		case reflect.Float64:
			t.number(f.Float())
		case reflect.Int, reflect.Int64:
			t.row = strconv.AppendInt(t.row, f.Int(), 10)
		case reflect.Slice:
			t.row = t.row[:len(t.row)-1]
			if f.Len() != t.more {
				return fmt.Errorf("a row has %d values for %d columns", f.Len(), t.more)
			}
			for _, x := range f.Interface().([]float64) {
				t.row = append(t.row, ',')
				t.number(x)
			}
		default:
			t.row = append(t.row, textfmt.Quoted(textfmt.Cell(f.String()))...)
		}
	}
	return t.write()
}

func (t *Table[T]) number(x float64) {
	if !math.IsNaN(x) {
		t.row = strconv.AppendFloat(t.row, x, 'g', -1, 64)
	}
}

func (t *Table[T]) write() error {
	t.row = append(t.row, '\n')
	n, err := t.w.Write(t.row)
	t.offset += int64(n)
	return err
}

// flush writes buffered rows to the operating system and returns the length of the table.
func (t *Table[T]) flush() (int64, error) { return t.offset, t.w.Flush() }

func (t *Table[T]) close() error { return errors.Join(t.w.Flush(), t.f.Close()) }

// writeTable writes a table and its Parquet copy. rows may be nil.
func writeTable[T any](path string, rows iter.Seq[T], more ...string) error {
	t, err := openTable[T](path+".csv", 0, more...)
	if err != nil {
		return err
	}
	if rows == nil {
		rows = slices.Values[[]T](nil)
	}
	for r := range rows {
		if err := t.Append(r); err != nil {
			_ = t.close() // return the first error
			return err
		}
	}
	// The tables of a finished run must survive a power failure.
	if _, err := t.flush(); err != nil {
		_ = t.close() // return the first error
		return err
	}
	if err := errors.Join(t.f.Sync(), t.close()); err != nil {
		return err
	}
	return writeParquet[T](path+".csv", path+".parquet")
}

// Read reads the table with the given name, such as rounds, from a run's folder. It
// returns nil if the folder does not have the table.
func Read[T any](dir, name string) (rows []T, err error) {
	err = readTable(filepath.Join(dir, name+".csv"), nil, func(r T) error {
		rows = append(rows, r)
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return rows, err
}

// readTable calls each for every row of a table. Unless begin is nil, readTable first calls
// begin with the names of the columns whose values are in the last field.
func readTable[T any](path string, begin func(more []string), each func(T) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r := csv.NewReader(bufio.NewReader(f))
	r.ReuseRecord = true
	head, err := r.Read()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	want, own := columns[T](), head
	if t := reflect.TypeFor[T](); t.Field(t.NumField()-1).Type.Kind() == reflect.Slice {
		own = head[:min(len(want), len(head))]
	}
	if !slices.Equal(own, want) {
		return fmt.Errorf("%s has the columns %s, not %s; it was written by another version of loadstar; run it again with this version", path, strings.Join(head, ","), strings.Join(want, ","))
	}
	if begin != nil {
		begin(slices.Clone(head[len(want):]))
	}
	for {
		fields, err := r.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		var row T
		if err := parse(reflect.ValueOf(&row).Elem(), fields); err != nil {
			line, _ := r.FieldPos(0)
			return fmt.Errorf("%s, line %d: %w", path, line, err)
		}
		if err := each(row); err != nil {
			return err
		}
	}
}

func parse(row reflect.Value, fields []string) error {
	for i, s := range fields {
		switch f := row.Field(min(i, row.NumField()-1)); f.Kind() {
		case reflect.Struct:
			x, err := time.Parse(time.RFC3339, s)
			if err != nil {
				return err
			}
			f.Set(reflect.ValueOf(x))
		case reflect.Float64:
			x, err := parseNumber(s)
			if err != nil {
				return err
			}
			f.SetFloat(x)
		case reflect.Int, reflect.Int64:
			x, err := strconv.ParseInt(s, 10, 64)
			if err != nil {
				return err
			}
			f.SetInt(x)
		case reflect.Slice:
			x, err := parseNumber(s)
			if err != nil {
				return err
			}
			f.Set(reflect.Append(f, reflect.ValueOf(x)))
		default:
			f.SetString(textfmt.Plain(s))
		}
	}
	return nil
}

// parseNumber returns NaN for an empty field.
func parseNumber(s string) (float64, error) {
	if s == "" {
		return math.NaN(), nil
	}
	return strconv.ParseFloat(s, 64)
}

// writeParquet writes the Parquet copy of a CSV table.
func writeParquet[T any](csv, path string) error {
	return disk.Write(path, func(to *os.File) error {
		options := []parquet.WriterOption{parquet.Compression(&zstd.Codec{}), parquet.CreatedBy("loadstar", "", "")}
		w := parquet.NewGenericWriter[T](to, options...)
		rows := make([]T, 0, 1024)
		flush := func() error {
			_, err := w.Write(rows)
			rows = rows[:0]
			return err
		}
		var wide *wideWriter
		err := readTable(csv, func(more []string) {
			if len(more) > 0 {
				wide = newWideWriter(to, reflect.TypeFor[T](), more, options)
			}
		}, func(r T) error {
			if wide != nil {
				return wide.write(reflect.ValueOf(r))
			}
			if rows = append(rows, r); len(rows) < cap(rows) {
				return nil
			}
			return flush()
		})
		if wide != nil {
			return errors.Join(err, wide.close())
		}
		return errors.Join(err, flush(), w.Close())
	})
}

// wideWriter writes a Parquet table that has columns whose names are not fields of the
// rows' type.
type wideWriter struct {
	w      *parquet.GenericWriter[any]
	schema *parquet.Schema
	row    reflect.Value // with a field for each column
	rows   []parquet.Row
}

func newWideWriter(to io.Writer, t reflect.Type, more []string, options []parquet.WriterOption) *wideWriter {
	var fields []reflect.StructField
	for f := range t.Fields() {
		if f.Type.Kind() != reflect.Slice {
			fields = append(fields, f)
		}
	}
	for i, name := range more {
		fields = append(fields, reflect.StructField{
			Name: fmt.Sprintf("More%d", i), Type: reflect.TypeFor[float64](), Tag: reflect.StructTag(fmt.Sprintf(`parquet:"%s"`, name)),
		})
	}
	row := reflect.New(reflect.StructOf(fields))
	schema := parquet.SchemaOf(row.Interface())
	return &wideWriter{w: parquet.NewGenericWriter[any](to, append(slices.Clip(options), schema)...), schema: schema, row: row.Elem()}
}

// write writes a row whose last field contains the values of the last columns.
func (w *wideWriter) write(row reflect.Value) error {
	last := row.NumField() - 1
	for i := range last {
		w.row.Field(i).Set(row.Field(i))
	}
	for i := range row.Field(last).Len() {
		w.row.Field(last + i).Set(row.Field(last).Index(i))
	}
	if w.rows = append(w.rows, w.schema.Deconstruct(nil, w.row.Addr().Interface())); len(w.rows) < 1024 {
		return nil
	}
	return w.flush()
}

func (w *wideWriter) flush() error {
	_, err := w.w.WriteRows(w.rows)
	w.rows = w.rows[:0]
	return err
}

func (w *wideWriter) close() error { return errors.Join(w.flush(), w.w.Close()) }
