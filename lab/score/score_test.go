package score

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"loadstar/series"
	"loadstar/series/read"
)

func sample(t *testing.T) *series.Dataset {
	t.Helper()
	about, err := read.Load("../../datasets/sample/dataset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	d, err := read.Open(about, "../../datasets/sample")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestForeign scores forecasts of other programs, and compares the scores with those computed
// with pandas.
func TestForeign(t *testing.T) {
	const python = "/usr/bin/python3" // Debian's interpreter, which has the packages
	if err := exec.Command(python, "-c", "import pandas, sklearn").Run(); err != nil {
		t.Skipf("needs Debian's python3-pandas and python3-sklearn: %v", err)
	}
	d, dir := sample(t), t.TempDir()
	loads, err := os.Create(filepath.Join(dir, "loads.csv"))
	if err != nil {
		t.Fatal(err)
	}
	w := csv.NewWriter(loads)
	err = w.Write([]string{"unique_id", "ds", "y"})
	for i := range d.Len() {
		m := d.Meter(i)
		for k, v := range m.Load {
			if !series.Missing(v) {
				err = errors.Join(err, w.Write([]string{m.ID, time.Unix(m.Start+int64(k)*3600, 0).UTC().Format(time.RFC3339), fmt.Sprint(float64(v))}))
			}
		}
	}
	w.Flush()
	if err := errors.Join(err, w.Error(), loads.Close()); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python, "-W", "ignore", "-c", foreign, loads.Name(), dir)
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1") // waiting threads would use CPU time that others need
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	var want struct {
		Targets              int
		SeasonalNaive, Boost struct{ Mae, Median, Mean, Bias float64 }
		Coverage             float64
	}
	if err := json.Unmarshal(said, &want); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	var files []*Forecasts
	for _, name := range []string{"naive.csv", "boost.csv"} {
		f, err := Read(filepath.Join(dir, name), d)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	got, err := Score(d, files)
	if err != nil {
		t.Fatal(err)
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if !(math.Abs(got-want) <= 1e-9*max(1, math.Abs(want))) {
			t.Errorf("%s is %v, pandas has %v", what, got, want)
		}
	}
	if got.Targets != want.Targets || got.Targets < 10000 {
		t.Errorf("%d targets, pandas has %d", got.Targets, want.Targets)
	}
	for i, want := range []struct{ Mae, Median, Mean, Bias float64 }{want.SeasonalNaive, want.Boost} {
		m := got.Methods[i]
		near(m.Name+" MAE", m.MAE, want.Mae)
		near(m.Name+" relative MAE", m.RelativeMAE, want.Median)
		near(m.Name+" mean relative MAE", m.RelativeMean, want.Mean)
		near(m.Name+" bias", m.Bias, want.Bias)
	}
	near("coverage", *got.Methods[0].Coverage, want.Coverage)
	notes := strings.Join(got.Found, "\n")
	for _, part := range []string{"naive: cutoffs are taken as the newest known time", "naive: times without an offset are taken as those of Europe/London"} {
		if !strings.Contains(notes, part) {
			t.Errorf("%q is not said:\n%s", part, notes)
		}
	}
	if strings.Contains(notes, "differ from the dataset") {
		t.Errorf("loads that agree differ:\n%s", notes)
	}
	if _, err := Read(filepath.Join(dir, "leak.csv"), d); err == nil || !strings.Contains(err.Error(), "1 rows forecast loads that were already known") {
		t.Errorf("a leak: %v", err)
	}
	late, err := Read(filepath.Join(dir, "late.csv"), d)
	if err != nil {
		t.Fatal(err)
	}
	if got, err = Score(d, []*Forecasts{late}); err != nil || !strings.Contains(strings.Join(got.Found, "\n"), "agree with the load 60 minutes earlier") {
		t.Errorf("times that are an hour late: %v, %v", got, err)
	}
}

func TestMistakes(t *testing.T) {
	d := sample(t)
	id := d.Meter(0).ID
	const head = "unique_id,cutoff,ds,y,a\n"
	row := func(cutoff, ds string) string {
		return fmt.Sprintf("%s,2016-06-01T%s:00Z,2016-06-01T%s:00Z,1,2\n", id, cutoff, ds)
	}
	for text, want := range map[string]string{
		"unique_id,ds,a\n":                                                   "there is no column cutoff",
		"unique_id,cutoff,ds,y\n":                                            "no column with a forecast",
		"unique_id,cutoff,ds,a-lo-80\n":                                      "no column with its forecast or its P50",
		"unique_id,cutoff,ds,a,a-lo-0\n":                                     "not between 0 and 100",
		head + row("00:00", "01:00") + row("00:00", "01:00"):                 "two rows with the cutoff",
		head + row("02:00", "01:00"):                                         "cutoff is after ds",
		head + row("00:00", "x"):                                             "ds:",
		strings.Replace(head+row("00:00", "01:00"), ",2\n", ",\"2,5\"\n", 1): `column a: "2,5" is not a number; forecasts are written with a decimal point`,
	} {
		path := filepath.Join(t.TempDir(), "x.csv")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path, d); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	sheet := filepath.Join(t.TempDir(), "x.xlsx")
	if err := os.WriteFile(sheet, []byte("PK\x03\x04"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(sheet, d); err == nil || !strings.Contains(err.Error(), "export it as CSV") {
		t.Error(err)
	}
	path := filepath.Join(t.TempDir(), "x.csv")
	if err := os.WriteFile(path, []byte(head+row("00:00", "00:30")+strings.ReplaceAll(row("00:00", "01:00"), id, "stranger")), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Read(path, d)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Score(d, []*Forecasts{f}); err == nil || !strings.Contains(err.Error(), "1 clients are not in the dataset, such as stranger") {
		t.Error(err)
	}
}
