package read

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"github.com/parquet-go/parquet-go/compress/gzip"
	"github.com/parquet-go/parquet-go/compress/snappy"
	"github.com/parquet-go/parquet-go/compress/uncompressed"
	"github.com/parquet-go/parquet-go/compress/zstd"
	"github.com/parquet-go/parquet-go/deprecated"

	"loadstar/series"
)

func parquetFile[T any](t testing.TB, rows []T, options ...parquet.WriterOption) []byte {
	t.Helper()
	var b bytes.Buffer
	w := parquet.NewGenericWriter[T](&b, options...)
	if _, err := w.Write(rows); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func openParquet(t testing.TB, d *Description, files ...[]byte) (*series.Dataset, error) {
	t.Helper()
	var in inputs
	for i, f := range files {
		in.load = append(in.load, inMemory(fmt.Sprintf("load%d.parquet", i), f))
	}
	return d.read(in)
}

// start is local midnight in Berlin, one hour before midnight UTC.
var start = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

func hours[T any](n int, row func(i int, at time.Time) T) []T {
	rows := make([]T, n)
	for i := range rows {
		rows[i] = row(i, start.Add(time.Duration(i)*time.Hour))
	}
	return rows
}

func TestParquetTypes(t *testing.T) {
	type utcMilli struct {
		ID string    `parquet:"unique_id"`
		DS time.Time `parquet:"ds,timestamp(millisecond:utc)"`
		Y  float64   `parquet:"y"`
	}
	type utcMicro struct {
		ID string    `parquet:"unique_id,dict"`
		DS time.Time `parquet:"ds,timestamp(microsecond:utc)"`
		Y  float32   `parquet:"y"`
	}
	type utcNano struct {
		ID int64     `parquet:"unique_id"`
		DS time.Time `parquet:"ds,timestamp(nanosecond:utc),delta"`
		Y  int32     `parquet:"y"`
	}
	type localMilli struct {
		ID int32   `parquet:"unique_id"`
		DS int64   `parquet:"ds,timestamp(millisecond:local)"`
		Y  float64 `parquet:"y"`
	}
	type localMicro struct {
		ID string  `parquet:"unique_id,delta"`
		DS int64   `parquet:"ds,timestamp(microsecond:local)"`
		Y  float64 `parquet:"y,split"`
	}
	type localNano struct {
		ID string  `parquet:"unique_id,optional"`
		DS int64   `parquet:"ds,timestamp(nanosecond:local),optional"`
		Y  float64 `parquet:"y"`
	}
	type text struct {
		ID string `parquet:"unique_id,enum"`
		DS string `parquet:"ds"`
		Y  string `parquet:"y"`
	}
	type int96 struct {
		ID string           `parquet:"unique_id"`
		DS deprecated.Int96 `parquet:"ds"`
		Y  int64            `parquet:"y"`
	}
	type decimals struct {
		ID uint64 `parquet:"unique_id"`
		DS string `parquet:"ds"`
		Y  int64  `parquet:"y,decimal(2:18)"`
	}
	julian := func(at time.Time) deprecated.Int96 {
		nanos := uint64(at.Sub(at.Truncate(24 * time.Hour)))
		return deprecated.Int96{uint32(nanos), uint32(nanos >> 32), uint32(at.Unix()/86400 + 2440588)}
	}
	for _, c := range []struct {
		name string
		file []byte
		utc  bool
	}{
		{"milliseconds, UTC", parquetFile(t, hours(3, func(i int, at time.Time) utcMilli { return utcMilli{"7", at, float64(i)} })), true},
		{"microseconds, UTC", parquetFile(t, hours(3, func(i int, at time.Time) utcMicro { return utcMicro{"7", at, float32(i)} })), true},
		{"nanoseconds, UTC", parquetFile(t, hours(3, func(i int, at time.Time) utcNano { return utcNano{7, at, int32(i)} })), true},
		{"milliseconds, local", parquetFile(t, hours(3, func(i int, at time.Time) localMilli { return localMilli{7, at.UnixMilli(), float64(i)} })), false},
		{"microseconds, local", parquetFile(t, hours(3, func(i int, at time.Time) localMicro { return localMicro{"7", at.UnixMicro(), float64(i)} })), false},
		{"nanoseconds, local", parquetFile(t, hours(3, func(i int, at time.Time) localNano { return localNano{"7", at.UnixNano(), float64(i)} })), false},
		{"text with offset", parquetFile(t, hours(3, func(i int, at time.Time) text { return text{"7", at.Format(time.RFC3339), fmt.Sprint(i)} })), true},
		{"text without", parquetFile(t, hours(3, func(i int, at time.Time) text { return text{"7", at.Format(time.DateTime), fmt.Sprint(i)} })), false},
		{"int96", parquetFile(t, hours(3, func(i int, at time.Time) int96 { return int96{"7", julian(at), int64(i)} })), false},
		{"decimals", parquetFile(t, hours(3, func(i int, at time.Time) decimals { return decimals{7, at.Format(time.DateTime), int64(100 * i)} })), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ds, err := openParquet(t, describe(t, "zone: Europe/Berlin"), c.file)
			if err != nil {
				t.Fatal(err)
			}
			want := "2020-01-01T00:00:00+01:00"
			if c.utc {
				want = "2020-01-01T00:00:00Z"
			}
			if ds.Meter(0).ID != "7" {
				t.Errorf("the meter is %q", ds.Meter(0).ID)
			}
			check(t, ds.Meter(0), want, series.Faults{}, 0, 1, 2)
		})
	}
}

type row struct {
	ID string   `parquet:"meter_id,dict"`
	DS int64    `parquet:"timestamp,timestamp(millisecond:utc)"`
	Y  *float64 `parquet:"load_kw,optional"`
}

// rows returns n hours of 3 meters, with every seventh value null.
func rows(n int) (rows []row) {
	for m := range 3 {
		for i := range n {
			r := row{ID: fmt.Sprint("m", m), DS: start.Add(time.Duration(i) * time.Hour).UnixMilli()}
			if i%7 != 3 {
				v := float64(1000*m + i)
				r.Y = &v
			}
			rows = append(rows, r)
		}
	}
	return rows
}

// TestParquetLayouts checks that the same rows are read from files with several row groups
// and pages, and with every supported compression.
func TestParquetLayouts(t *testing.T) {
	const n = 3000
	for _, codec := range []compress.Codec{&uncompressed.Codec{}, &snappy.Codec{}, &gzip.Codec{}, &zstd.Codec{}} {
		for _, version := range []int{1, 2} {
			for _, group := range []int64{1 << 20, 700} {
				name := fmt.Sprintf("%s, pages of version %d, groups of %d", codec, version, group)
				f := parquetFile(
					t, rows(n), parquet.Compression(codec), parquet.DataPageVersion(version),
					parquet.MaxRowsPerRowGroup(group), parquet.PageBufferSize(2000),
				)
				ds, err := openParquet(t, describe(t), f)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if ds.Len() != 3 {
					t.Fatalf("%s: %d meters", name, ds.Len())
				}
				for m := range 3 {
					load := ds.Meter(m).Load
					if len(load) != n {
						t.Fatalf("%s: meter %d has %d steps", name, m, len(load))
					}
					for i, v := range load {
						if i%7 == 3 != series.Missing(v) || i%7 != 3 && v != float32(1000*m+i) {
							t.Fatalf("%s: meter %d has %g at step %d", name, m, v, i)
						}
					}
				}
			}
		}
	}
}

func TestParquetErrors(t *testing.T) {
	type lists struct {
		ID string    `parquet:"meter_id"`
		DS string    `parquet:"timestamp"`
		Y  []float64 `parquet:"load_kw,list"`
	}
	type number struct {
		ID string  `parquet:"meter_id"`
		DS int64   `parquet:"timestamp"`
		Y  float64 `parquet:"load_kw"`
	}
	type fraction struct {
		ID string  `parquet:"meter_id"`
		DS int64   `parquet:"timestamp,timestamp(millisecond)"`
		Y  float64 `parquet:"load_kw"`
	}
	type swapped struct {
		ID string `parquet:"meter_id"`
		DS string `parquet:"timestamp"`
		Y  int64  `parquet:"load_kw,timestamp(millisecond)"`
	}
	whole := parquetFile(t, rows(500))
	one := 1.0
	inf := one / (one - 1)
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"truncated", whole[:len(whole)/2], "the Parquet file is incomplete or damaged: the file is truncated"},
		{"magic only", whole[:4], "the Parquet file is incomplete or damaged"},
		{"no rows", parquetFile[row](t, nil), "no row matches"},
		{"lists", parquetFile(t, []lists{{"a", "2020-01-01", []float64{1, 2}}}), "found no load column; the columns are meter_id, timestamp, load_kw.list.element"},
		{"epoch", parquetFile(t, []number{{"a", 1577836800, 1}}), "row 1: time 1577836800 is a number; want a date and time"},
		{"half a second", parquetFile(t, []fraction{{"a", 1577836800500, 1}}), "row 1: time 2020-01-01 00:00:00 has a fraction"},
		{"before 1970", parquetFile(t, []fraction{{"a", -1, 1}}), "1969-12-31 23:59:59 has a fraction"},
		{"far away", parquetFile(t, []fraction{{"a", 1 << 62 / 1000 * 1000, 1}}), "is not from 1971 to 2199"},
		{"null time", parquetFile(t, []struct {
			ID string  `parquet:"meter_id"`
			DS *int64  `parquet:"timestamp,optional,timestamp(millisecond)"`
			Y  float64 `parquet:"load_kw"`
		}{{"a", nil, 1}}), "row 1: the time is missing"},
		{"null meter", parquetFile(t, []struct {
			ID *string `parquet:"meter_id,optional"`
			DS int64   `parquet:"timestamp,timestamp(millisecond)"`
			Y  float64 `parquet:"load_kw"`
		}{{nil, 1577836800000, 1}}), "row 1: the meter is missing"},
		{"infinite", parquetFile(t, []row{{"a", 1577836800000, &inf}}), "row 1: load: +Inf is not a finite number"},
		{"a time for a load", parquetFile(t, []swapped{{"a", "2020-01-01", 1}}), "want a number, found a time"},
	} {
		if _, err := openParquet(t, describe(t), c.file); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %s", c.name, err, c.want)
		}
	}
}

// TestParquetDamage checks that a file with a changed byte causes an error or a wrong
// value, but no panic.
func TestParquetDamage(t *testing.T) {
	for _, codec := range []compress.Codec{&uncompressed.Codec{}, &zstd.Codec{}} {
		whole := parquetFile(t, rows(40), parquet.Compression(codec))
		for i := range whole {
			for _, flip := range []byte{0x01, 0x80, 0xff} {
				damaged := bytes.Clone(whole)
				damaged[i] ^= flip
				openParquet(t, describe(t), damaged) // any result without a panic is allowed
			}
		}
		for i := range whole {
			if _, err := openParquet(t, describe(t), whole[:i]); err == nil {
				t.Errorf("no error for the first %d of %d bytes", i, len(whole))
			}
		}
	}
}
