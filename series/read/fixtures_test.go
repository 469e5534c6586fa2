package read

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"loadstar/series"
)

// memory is a file whose content is in memory, for use as a source.
type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }

func inMemory[T string | []byte](name string, content T) source {
	return source{name, func() (file, error) { return memory{bytes.NewReader([]byte(content))}, nil }}
}

// describe parses a description that consists of defaults (UTC, 1 h and kW) and extra lines.
func describe(t testing.TB, lines ...string) *Description {
	t.Helper()
	text := "name: test\nload: {files: [load.csv]}\n"
	for _, f := range []string{"zone: UTC", "interval: 1h"} {
		key, _, _ := strings.Cut(f, " ")
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, key) }) {
			text += f + "\n"
		}
	}
	d, err := parse([]byte(text + strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func openText(t testing.TB, d *Description, load ...string) (*series.Dataset, error) {
	t.Helper()
	var in inputs
	for i, text := range load {
		in.load = append(in.load, inMemory(fmt.Sprintf("load%d.csv", i), text))
	}
	return d.read(in)
}

func mustOpen(t testing.TB, d *Description, load ...string) *series.Dataset {
	t.Helper()
	ds, err := openText(t, d, load...)
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

// check compares a meter's start, load and fault counts with the expected ones. It ignores
// the number of rows.
func check(t *testing.T, m series.Meter, start string, faults series.Faults, load ...float64) {
	t.Helper()
	want, err := time.Parse(time.RFC3339, start)
	if err != nil {
		t.Fatal(err)
	}
	if m.Start != want.Unix() {
		t.Errorf("meter %s starts at %s, want %s", m.ID, time.Unix(m.Start, 0).UTC(), want)
	}
	m.Faults.Rows = 0
	if m.Faults != faults {
		t.Errorf("meter %s has faults %+v, want %+v", m.ID, m.Faults, faults)
	}
	if !slices.EqualFunc(m.Load, load, func(a float32, b float64) bool {
		return math.Abs(float64(a)-b) < 1e-6 || series.Missing(a) && math.IsNaN(b)
	}) {
		t.Errorf("meter %s has load %v, want %v", m.ID, m.Load, load)
	}
}

var none = math.NaN()

const simple = "meter_id,timestamp,load_kw\na,2020-01-01 00:00,1\na,2020-01-01 01:00,2.5\n"

func compressed(t testing.TB, s string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
