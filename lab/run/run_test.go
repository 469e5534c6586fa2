package run

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"pgregory.net/rapid"

	"loadstar/metric"
)

// row has a field of every type that tables support.
type row struct {
	Name  string  `parquet:"name,dict"`
	Count int     `parquet:"count"`
	Bytes int64   `parquet:"bytes"`
	Share float64 `parquet:"share"`
	Last  string  `parquet:"last"`
}

// equal reports whether two rows are equal. NaNs are equal to each other.
func equal(a, b row) bool {
	if math.IsNaN(a.Share) && math.IsNaN(b.Share) {
		a.Share, b.Share = 0, 0
	}
	return a == b
}

func write(t interface{ Fatal(...any) }, path string, rows []row) {
	table, err := openTable[row](path, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if err := table.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := table.close(); err != nil {
		t.Fatal(err)
	}
}

func readAll[T any](t interface{ Fatal(...any) }, path string) []T {
	var got []T
	if err := readTable(path, nil, func(r T) error { got = append(got, r); return nil }); err != nil {
		t.Fatal(err)
	}
	return got
}

func drawRows(t *rapid.T) []row {
	odd := rapid.OneOf(
		rapid.StringOf(rapid.RuneFrom([]rune(`ab ,;"'é#\/`))), // these occur in meter names
		rapid.SampledFrom([]string{"", " ", `"`, `""`, `a"b`, " a", "a ", "x,y", "two\nlines", `\.`, "#1", "NaN"}),
	)
	number := rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{
		math.NaN(), 0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.MaxFloat64, math.SmallestNonzeroFloat64, 1. / 3,
	}))
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) row {
		return row{
			odd.Draw(t, "name"), rapid.Int().Draw(t, "count"), rapid.Int64().Draw(t, "bytes"), number.Draw(t, "share"), odd.Draw(t, "last"),
		}
	}), 0, 20).Draw(t, "rows")
}

// Reading a table or its Parquet copy returns the rows that were written.
func TestTableRoundTrip(t *testing.T) {
	dir := t.TempDir()
	csv, twin := filepath.Join(dir, "t.csv"), filepath.Join(dir, "t.parquet")
	rapid.Check(t, func(t *rapid.T) {
		rows := drawRows(t)
		write(t, csv, rows)
		if got := readAll[row](t, csv); !slices.EqualFunc(got, rows, equal) {
			text, _ := os.ReadFile(csv)
			t.Fatalf("read %v, wrote %v:\n%s", got, rows, text)
		}
		if err := writeParquet[row](csv, twin); err != nil {
			t.Fatal(err)
		}
		got, err := parquet.ReadFile[row](twin)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.EqualFunc(got, rows, equal) {
			t.Fatalf("Parquet has %v, not %v", got, rows)
		}
	})
}

// Equal rows give identical Parquet files, even if there are more rows than fit into one
// batch.
func TestParquetRepeats(t *testing.T) {
	dir := t.TempDir()
	csv := filepath.Join(dir, "t.csv")
	var rows []row
	for i := range 5000 {
		rows = append(rows, row{Name: fmt.Sprint("meter ", i%7), Count: i, Share: float64(i) / 3})
	}
	write(t, csv, rows)
	var files [2][]byte
	for i := range files {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := writeParquet[row](csv, path); err != nil {
			t.Fatal(err)
		}
		files[i], _ = os.ReadFile(path)
		got, err := parquet.ReadFile[row](path)
		if err != nil || !slices.Equal(got, rows) {
			t.Fatalf("%d rows, %v", len(got), err)
		}
	}
	if !bytes.Equal(files[0], files[1]) || len(files[0]) == 0 {
		t.Error("two files with the same rows differ")
	}
}

func TestTableText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.csv")
	write(t, path, []row{{"a,b", 1, 2, 0.5, `say "hi"`}, {"c", -3, 1 << 40, math.NaN(), ""}})
	got, err := os.ReadFile(path)
	const want = "name,count,bytes,share,last\n\"a,b\",1,2,0.5,\"say \"\"hi\"\"\"\nc,-3,1099511627776,,\n"
	if err != nil || string(got) != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Reopening a table truncates it to the offset of the last checkpoint.
func TestTableResume(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.csv")
	rapid.Check(t, func(t *rapid.T) {
		before, after, instead := drawRows(t), drawRows(t), drawRows(t)
		table, err := openTable[row](path, 0)
		if err != nil {
			t.Fatal(err)
		}
		appendAll := func(rows []row) {
			for _, r := range rows {
				if err := table.Append(r); err != nil {
					t.Fatal(err)
				}
			}
		}
		appendAll(before)
		at, err := table.flush()
		if err != nil {
			t.Fatal(err)
		}
		appendAll(after)
		if rapid.Bool().Draw(t, "flushed") { // a crash may happen before or after the flush
			if _, err := table.flush(); err != nil {
				t.Fatal(err)
			}
		}
		table.f.Close()
		if table, err = openTable[row](path, at); err != nil {
			t.Fatal(err)
		}
		appendAll(instead)
		if err := table.close(); err != nil {
			t.Fatal(err)
		}
		if got, want := readAll[row](t, path), slices.Concat(before, instead); !slices.EqualFunc(got, want, equal) {
			t.Fatalf("%v, want %v", got, want)
		}
	})
	if err := os.WriteFile(path, []byte("name\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := openTable[row](path, 100); err == nil || !strings.Contains(err.Error(), "has 5 bytes, but had 100 at the last checkpoint") {
		t.Error(err)
	}
}

func TestTableOfAnotherVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.csv")
	for text, want := range map[string]string{
		"":           "EOF",
		"name,odd\n": "has the columns name,odd, not name,count",
		"name,count,bytes,share,last\na,b,1,1,\n": "invalid syntax",
		"name,count,bytes,share,last\na,1,1\n":    "wrong number of fields",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := readTable(path, nil, func(row) error { return nil }); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Every column has a unique name and a supported type.
func TestColumns(t *testing.T) {
	for _, of := range []reflect.Type{reflect.TypeFor[Round](), reflect.TypeFor[Evaluation](), reflect.TypeFor[Client]()} {
		var names []string
		for f := range of.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("parquet"), ",")
			if name == "" || slices.Contains(names, name) {
				t.Errorf("%s.%s has the missing or duplicate name %q", of, f.Name, name)
			}
			names = append(names, name)
			switch f.Type.Kind() {
			case reflect.Float64, reflect.Int, reflect.Int64, reflect.String:
			case reflect.Slice:
				if name != "-" || f.Index[0] != of.NumField()-1 {
					t.Errorf("%s.%s is a slice, but not the last field, or it is a column", of, f.Name)
				}
			default:
				t.Errorf("%s.%s has the unsupported type %s", of, f.Name, f.Type)
			}
		}
	}
}

func create(t *testing.T, dir string) *Folder {
	t.Helper()
	f, err := Create(dir, []byte("plan"))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFolderLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "run")
	f := create(t, dir)
	// The lock belongs to the open file, so a second handle acts like another process.
	if _, err := Reopen(dir, []byte("plan"), nil); err == nil || !strings.Contains(err.Error(), "another process is using this run") {
		t.Error(err)
	}
	if _, err := Create(dir, []byte("plan")); !errors.Is(err, ErrExists) {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := Create(dir, []byte("plan")); !errors.Is(err, ErrExists) {
		t.Error(err)
	}
	if _, err := Reopen(dir, []byte("other"), nil); err == nil || !strings.Contains(err.Error(), "a run of a different plan") {
		t.Error(err)
	}
	if _, err := Reopen(t.TempDir(), []byte("plan"), nil); err == nil || !strings.Contains(err.Error(), "no run to resume") {
		t.Error(err)
	}
	again, err := Reopen(dir, []byte("plan"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil { // Close works although its tables are not open
		t.Error(err)
	}
}

// A folder can be created again if its creation stopped before the plan was written.
func TestFolderWithoutPlan(t *testing.T) {
	dir := t.TempDir()
	f, err := open(dir)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	create(t, dir).Close()
}

// Reopening a folder removes temporary files of a killed process and no other files.
func TestReopenRemovesTemporaryFiles(t *testing.T) {
	dir := t.TempDir()
	create(t, dir).Close()
	if err := os.Mkdir(filepath.Join(dir, "personal"), 0o755); err != nil {
		t.Fatal(err)
	}
	left := []string{".checkpoint.123", ".plan.yaml.9", "personal/.a.safetensors.77"}
	stays := []string{"notes.txt", "personal/a.safetensors", "plan.yaml"}
	for _, name := range slices.Concat(left, stays[:2]) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := Reopen(dir, []byte("plan"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, name := range left {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	for _, name := range stays {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestFolderResume(t *testing.T) {
	dir := t.TempDir()
	f := create(t, dir)
	if c, err := f.Load(); c != nil || err != nil {
		t.Error("a checkpoint in a new folder", c, err)
	}
	round := func(i int) Round { return Round{Round: i, Outcome: "merged", Loss: math.NaN()} }
	f.Rounds.Append(round(0))                                                 // read below
	f.Evaluations.Append(Evaluation{Round: 1, Client: "a", RelativeMAE: 0.5}) // read below
	at, err := f.Flush()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Settle(), f.Save([]byte("here"))); err != nil {
		t.Fatal(err)
	}
	f.Rounds.Append(round(1))                                                  // after the checkpoint
	f.Evaluations.Append(Evaluation{Round: 2, Client: "lost", RelativeMAE: 1}) // after the checkpoint
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	if f, err = Reopen(dir, []byte("plan"), nil); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if c, err := f.Load(); err != nil || string(c) != "here" {
		t.Errorf("%q %v", c, err)
	}
	if err := f.OpenTables(at); err != nil {
		t.Fatal(err)
	}
	f.Rounds.Append(round(5)) // read below
	cutoff := time.Date(2026, 11, 15, 4, 0, 0, 0, time.UTC)
	errors := []Error{{Client: "a/b", Day: "2026-11-15", Targets: 24, MAE: 0.5}, {Client: "a/b", Day: "2026-11-16", Targets: 2, MAE: 1}}
	err = f.Finish(Results{
		Clients: []Client{{Client: "a/b", MAE: 1, MAPE: math.NaN()}}, Profile: []Profile{{By: "hour", At: 3}},
		Forecasts: []Forecast{{Client: "a/b", Cutoff: cutoff, Time: cutoff.Add(time.Hour), LastWeek: math.NaN(), P10: math.NaN(), P50: 2, P90: 3}},
		Errors:    slices.Values(errors),
	}, &Summary{Rounds: 2, MAE: metric.Number(math.NaN())})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := ReadSummary(dir); err != nil || s.Rounds != 2 || !math.IsNaN(float64(s.MAE)) {
		t.Error(s, err)
	}
	forecasts := readAll[Forecast](t, filepath.Join(dir, "forecasts.csv"))
	if len(forecasts) != 1 || !forecasts[0].Cutoff.Equal(cutoff) || !math.IsNaN(forecasts[0].LastWeek) || !math.IsNaN(forecasts[0].P10) || forecasts[0].P90 != 3 {
		t.Error(forecasts)
	}
	if got := readAll[Error](t, filepath.Join(dir, "errors.csv")); !slices.Equal(got, errors) {
		t.Errorf("errors %v, want %v", got, errors)
	}
	rounds := readAll[Round](t, filepath.Join(dir, "rounds.csv"))
	if len(rounds) != 2 || rounds[0].Round != 0 || rounds[1].Round != 5 {
		t.Error(rounds)
	}
	evaluations, err := parquet.ReadFile[Evaluation](filepath.Join(dir, "evaluations.parquet"))
	if err != nil || len(evaluations) != 1 || evaluations[0].Client != "a" {
		t.Error(evaluations, err)
	}
	clients, err := parquet.ReadFile[Client](filepath.Join(dir, "clients.parquet"))
	if err != nil || len(clients) != 1 || clients[0].Client != "a/b" || !math.IsNaN(clients[0].MAPE) {
		t.Error(clients, err)
	}
	summary, err := os.ReadFile(filepath.Join(dir, "summary.json"))
	if err != nil || !strings.Contains(string(summary), "\n  \"rounds\": 2,\n") {
		t.Errorf("%s %v", summary, err)
	}
}

// File names of clients never contain path separators, no matter what the clients' names
// are.
func TestPersonalNames(t *testing.T) {
	dir := t.TempDir()
	f := create(t, dir)
	defer f.Close()
	seen := map[string]bool{}
	for _, id := range []string{"a", "a b", "../x", "a/b", "a%2Fb", "é", ".", ".."} {
		path, name, err := f.Personal(id)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Dir(path) != filepath.Join(dir, "personal") || seen[path] || path != filepath.Join(dir, name) {
			t.Errorf("file of client %q: %s, %s", id, path, name)
		}
		seen[path] = true
	}
}

func TestEvents(t *testing.T) {
	dir := t.TempDir()
	f := create(t, dir)
	for i := range 2 {
		if err := f.Event("saved", map[string]int{"round": i}); err != nil {
			t.Fatal(err)
		}
	}
	f.Close()
	text, err := os.ReadFile(filepath.Join(dir, "events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		var e struct {
			Time, Event string
			Data        struct{ Round int }
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Event != "saved" || e.Data.Round != n || !strings.HasSuffix(e.Time, "Z") {
			t.Error(line, err)
		}
		n++
	}
	if n != 2 {
		t.Errorf("%d events", n)
	}
}
