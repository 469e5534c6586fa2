package read

import (
	"bytes"
	"encoding/csv"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/snappy"
	"github.com/parquet-go/parquet-go/compress/uncompressed"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"loadstar/series"
	"loadstar/series/table"
)

// sound checks the invariants of every dataset that a reader returns.
func sound(t *testing.T, ds *series.Dataset) {
	t.Helper()
	if ds.Len() == 0 {
		t.Fatal("no meters and no error")
	}
	rows, steps := 0, 0
	for i := range ds.Len() {
		m := ds.Meter(i)
		f := m.Faults
		if m.ID == "" || len(m.Load) == 0 || f.Rows <= 0 || f.Duplicates+f.Conflicts+f.OffGrid+f.Nonexistent >= f.Rows {
			t.Fatalf("meter %q has %d steps and %+v", m.ID, len(m.Load), f)
		}
		rows, steps = rows+f.Rows, steps+len(m.Load)
		for _, v := range m.Load {
			if math.IsInf(float64(v), 0) {
				t.Fatalf("meter %q has an infinite load", m.ID)
			}
		}
	}
	if steps > 1<<24+64*rows {
		t.Fatalf("%d steps from %d rows", steps, rows)
	}
	for _, c := range ds.Weather.Columns {
		if len(c) != len(ds.Weather.Columns[0]) {
			t.Fatal("the weather columns differ in length")
		}
	}
}

func FuzzCSV(f *testing.F) {
	f.Add([]byte(simple), []byte("timestamp,temp_c\n2020-01-01 00:00,1\n"), []byte("meter_id,floor_area\na,7\n"), false)
	f.Add([]byte(compressed(f, simple)), []byte("\xef\xbb\xbftime;wind\r\n2020-01-01 00:00;1\r2020-01-01 01:00;\n"), []byte("id,x\na,\n"), true)
	f.Add([]byte("unique_id\tds\ty\na\t2021-10-31 02:00\t1\na\t2021-10-31 02:00\t2\na\t2021-03-28 02:30\t2\n"), []byte{}, []byte{}, false)
	f.Add([]byte("unique_id,ds,y\n\"a \"\"b\"\"\",1971-01-01,1\n\"a \"\"b\"\"\",2199-12-31 24:00:00.000+14:00,-1e3\n"), []byte{}, []byte("\"meter_id\"\n\"a\""), true)
	f.Add([]byte("meter;date;kwh;\n;;;\n1;2020/02/29;1,5;\n"), []byte("date,humidity,solar\n2020-02-29,,\n"), []byte{}, false)
	f.Fuzz(func(t *testing.T, load, weather, meters []byte, end bool) {
		d := &Description{
			Name: "x", Zone: "Europe/Berlin", Interval: "15m", Unit: "kWh",
			Load: Table{Files: []string{"x"}}, Weather: &Table{Files: []string{"x"}, Interval: "1h"}, Meters: &Table{Files: []string{"x"}},
		}
		if end {
			d.Stamp = StampEnd
		}
		in := inputs{load: []source{inMemory("load", load)}, weather: []source{inMemory("weather", weather)}, meters: []source{inMemory("meters", meters)}}
		if len(weather) == 0 {
			d.Weather = nil
		}
		if len(meters) == 0 {
			d.Meters = nil
		}
		if err := d.validate(); err != nil {
			t.Fatal(err)
		}
		if ds, err := d.read(in); err == nil {
			sound(t, ds)
		}
		agree(t, load)
	})
}

// agree compares our CSV parser with encoding/csv for files on which both must agree. These
// have no line breaks in quotes and no blank rows, which our parser skips.
func agree(t *testing.T, text []byte) {
	t.Helper()
	if bytes.IndexByte(text, '\r') >= 0 || bytes.HasPrefix(text, []byte("\x1f\x8b")) {
		return
	}
	ours, err := table.OpenCSV(bytes.NewReader(text), table.Format{})
	if err != nil {
		return
	}
	var columns []int
	for i := range ours.Columns() {
		columns = append(columns, i)
	}
	rows := [][]string{ours.Columns()}
	err = ours.Each(columns, func(cells []table.Cell) error {
		var row []string
		for _, c := range cells {
			row = append(row, string(c.Name()))
		}
		rows = append(rows, row)
		return nil
	})
	if err != nil {
		return
	}
	r := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))))
	r.Comma = rune(ours.Delimiter())
	theirs, err := r.ReadAll()
	if err != nil {
		return
	}
	if a, b := written(rows), written(theirs); a != b {
		t.Fatalf("rows %q, encoding/csv has %q", a, b)
	}
}

// written returns the rows that are not blank as one string, for comparison.
func written(rows [][]string) string {
	var out []string
	for _, row := range rows {
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		if line := strings.Join(row, "\x00"); strings.Trim(line, "\x00") != "" {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

func FuzzTime(f *testing.F) {
	for _, s := range []string{
		"2016-01-31 23:00", "2016-02-29T24:00:00.000", "2021-03-28 02:30", "2021-10-31 02:00:00+02:00", "2021/10/31 02:00",
		"2199-12-31", "1971-01-01T00:00:00Z", "2016-01-31 10:99", "2016-01-31 10:00:00 -0530",
	} {
		f.Add(s)
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		f.Fatal(err)
	}
	layouts := []string{
		time.RFC3339, "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05 Z07:00", "2006-01-02T15:04Z07:00", "2006-01-02 15:04Z0700", "2006-01-02 15:04:05 -0700",
		"2006-01-02T15:04:05", time.DateTime, "2006-01-02 15:04", "2006-01-02T15:04", time.DateOnly, "2006/01/02 15:04", "2006/01/02 15:04:05", "2006/01/02",
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := table.NewClock(berlin, 0, table.Dates{})
		at, err := r.Instant(new(table.Text([]byte(s))))
		if err != nil && !errors.Is(err, table.ErrNonexistent) {
			return
		}
		for _, layout := range layouts {
			want, parseErr := time.ParseInLocation(layout, s, berlin)
			if parseErr != nil {
				continue
			}
			switch {
			case err != nil:
				// Package time converts a nonexistent time to a different time.
				if want.Format(layout) == s {
					t.Errorf("%q was refused, but it exists", s)
				}
			case at.Unix != want.Unix() && at.Again != want.Unix():
				t.Errorf("%q is %d or %d, package time has %d", s, at.Unix, at.Again, want.Unix())
			}
			return
		}
	})
}

func FuzzParquet(f *testing.F) {
	f.Add(parquetFile(f, rows(5)))
	f.Add(parquetFile(f, rows(5), parquet.Compression(&zstd.Codec{}), parquet.DataPageVersion(1)))
	f.Add(parquetFile(f, rows(20), parquet.Compression(&snappy.Codec{}), parquet.MaxRowsPerRowGroup(7), parquet.PageBufferSize(50)))
	f.Add(parquetFile(f, hours(5, func(i int, at time.Time) struct {
		ID int64 `parquet:"unique_id,delta"`
		DS int64 `parquet:"ds,timestamp(nanosecond:local),delta"`
		Y  int64 `parquet:"y,decimal(2:18)"`
	} {
		return struct {
			ID int64 `parquet:"unique_id,delta"`
			DS int64 `parquet:"ds,timestamp(nanosecond:local),delta"`
			Y  int64 `parquet:"y,decimal(2:18)"`
		}{7, at.UnixNano(), int64(i)}
	}), parquet.Compression(&uncompressed.Codec{})))
	f.Add(parquetFile(f, []struct {
		ID string  `parquet:"meter,delta"`
		DS string  `parquet:"time,optional"`
		Y  float32 `parquet:"load,split"`
	}{{"a", "2020-01-01", 1}, {"a", "2020-01-02", 2}}, parquet.Compression(&uncompressed.Codec{})))
	f.Fuzz(func(t *testing.T, file []byte) {
		if !bytes.HasPrefix(file, []byte("PAR1")) {
			return
		}
		d := &Description{Name: "x", Zone: "Europe/Berlin", Interval: "1h", Load: Table{Files: []string{"x"}}}
		if err := d.validate(); err != nil {
			t.Fatal(err)
		}
		if ds, err := d.read(inputs{load: []source{inMemory("load", file)}}); err == nil {
			sound(t, ds)
		}
	})
}
