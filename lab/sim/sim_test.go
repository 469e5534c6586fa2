package sim

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/lab/run"
	"loadstar/nn/kernel"
	"loadstar/nn/safetensors"
	"loadstar/series"
	"loadstar/series/synth"
)

var ctx = context.Background()

// tester contains the methods of *testing.T and *rapid.T that the tests use.
type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// houses generates n meters with 24 to 40 days of hourly readings that have gaps.
func houses(t testing.TB, n int) []series.Meter {
	t.Helper()
	g, err := synth.New(synth.Config{
		Seed: 3, Meters: n, Days: 40, Zone: "UTC", Faults: synth.Faults{Gap: 0.01, Outage: 0.01},
	})
	if err != nil {
		t.Fatal(err)
	}
	meters := make([]series.Meter, n)
	for i := range meters {
		load := make([]float32, g.Len())
		g.Building(i, load)
		from := i * 37 % 100
		meters[i] = series.Meter{
			ID: fmt.Sprintf("house-%d", i), Start: g.Time(from).Unix(), Load: load[from:min(from+24*(24+i*5%14), len(load))],
		}
	}
	return meters
}

func dataset(t tester, meters ...series.Meter) *series.Dataset {
	t.Helper()
	d, err := series.NewDataset(series.Dataset{Name: "houses", Generated: true, Interval: time.Hour, Clock: time.UTC}, meters)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// copyAs returns a meter's data under another name.
func copyAs(m series.Meter, id string) series.Meter {
	m.ID = id
	return m
}

// settings contains a plan's settings by dotted key, such as client.lr.
type settings map[string]any

// small returns a plan that runs in milliseconds. The name is the same for all algorithms
// because weight files contain it.
func small(algorithm string) settings {
	s := settings{
		"name": "law", "algorithm": algorithm, "rounds": 3,
		"model.name": "fekri2023", "model.lookback": 4, "model.targets": 2,
		"model.split.train": 0.7, "model.split.validation": 0.15,
		"client.batch": 8, "evaluate.every": 0,
		"evaluate.fine_tune.steps": 0,
	}
	if algorithm != "fedsgd" {
		s["client.steps"] = 2
	}
	switch algorithm {
	case "local", "pooled", "fedasync":
	case "fedbuff":
		s["schedule.buffer"] = 2
	default:
		s["schedule.cohort"] = 0
	}
	if algorithm == "fedsim" {
		s["server.clients"], s["server.batch"] = 0.2, 16
	}
	return s
}

// with returns a copy of the settings in which the settings in more are added or replaced.
func (s settings) with(more settings) settings {
	s = maps.Clone(s)
	maps.Copy(s, more)
	return s
}

func (s settings) plan(t tester) *fed.Plan {
	t.Helper()
	p, err := s.read(t)
	if err != nil {
		t.Fatalf("%v: %v", s, err)
	}
	return p
}

func (s settings) read(t tester) (*fed.Plan, error) {
	t.Helper()
	nested := map[string]any{}
	for key, v := range s {
		if o := s["client.optimizer"]; key == "client.moments" && (o == "sgd" || o == "prox") {
			continue // a law replaced the random optimizer with one without moments
		}
		path := strings.Split(key, ".")
		at := nested
		for _, name := range path[:len(path)-1] {
			if at[name] == nil {
				at[name] = map[string]any{}
			}
			at = at[name].(map[string]any)
		}
		at[path[len(path)-1]] = v
	}
	text, err := yaml.Marshal(nested)
	if err != nil {
		t.Fatal(err)
	}
	return recipe.Read(text)
}

func kernels(t tester) *kernel.Set {
	t.Helper()
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// runner runs plans, each in its own folder.
type runner struct {
	dir string
	n   atomic.Int64
}

// newRunner uses an in-memory folder if there is one, because a small run mostly waits for
// the disk.
func newRunner(t testing.TB) *runner {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "loadstar-test-")
	if err != nil {
		return &runner{dir: t.TempDir()}
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &runner{dir: dir}
}

func (b *runner) folder() string { return filepath.Join(b.dir, fmt.Sprint(b.n.Add(1))) }

// outcome is the result of a run.
type outcome struct {
	*run.Summary
	files    map[string]string // the result of comparable
	shared   []float32
	personal map[string][]float32 // by client
	rounds   []map[string]string  // rows of the table, as maps by column
}

func (b *runner) try(t tester, c Config) (*outcome, error) {
	t.Helper()
	c.Dir, c.Kernel, c.Save = b.folder(), kernels(t), time.Hour
	c.Workers = max(c.Workers, 1)
	defer os.RemoveAll(c.Dir)
	s, err := Run(ctx, c)
	if err != nil {
		return nil, err
	}
	o := &outcome{Summary: s, files: comparable(t, c.Dir), personal: map[string][]float32{}}
	o.shared = weights(t, filepath.Join(c.Dir, "shared.safetensors"))
	for name := range o.files {
		if id, ok := strings.CutPrefix(name, "personal/"); ok {
			o.personal[strings.TrimSuffix(id, ".safetensors")] = weights(t, filepath.Join(c.Dir, name))
		}
	}
	o.rounds = rows(t, o.files["rounds.csv"])
	return o, nil
}

func (b *runner) run(t tester, s settings, d *series.Dataset, workers int) *outcome {
	t.Helper()
	o, err := b.try(t, Config{Plan: s.plan(t), Dataset: d, Workers: workers, Memory: 1 << 20})
	if err != nil {
		t.Fatalf("%v: %v", s, err)
	}
	return o
}

// varying lists the files that may differ between two runs of the same plan.
var varying = []string{"events.jsonl", "checkpoint", "kept.bin", "lock"}

// comparable returns the contents of the files that must be identical in all runs of a
// plan. It removes measured times and memory from the summary.
func comparable(t tester, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		if err != nil || e.IsDir() || slices.Contains(varying, name) {
			return err
		}
		b, err := os.ReadFile(path)
		if name == "summary.json" && err == nil {
			var s map[string]any
			err = json.Unmarshal(b, &s)
			for _, measured := range []string{"seconds", "steps_per_s", "engine_share", "rss_bytes", "workers"} {
				if _, ok := s[measured]; !ok {
					t.Fatalf("the summary has no %s", measured)
				}
				delete(s, measured)
			}
			b = fmt.Append(nil, s) // maps are printed in key order
		}
		files[filepath.ToSlash(name)] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// different returns the names of the files in which two runs differ.
func different(a, b map[string]string) []string {
	var names []string
	for name := range a {
		if other, ok := b[name]; !ok || other != a[name] {
			names = append(names, name)
		}
	}
	for name := range b {
		if _, ok := a[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// weights returns the values of all tensors in a file.
func weights(t tester, path string) []float32 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tensors, _, err := safetensors.Read(f, 1<<24)
	if err != nil {
		t.Fatal(err)
	}
	var all []float32
	for _, x := range tensors {
		all = append(all, x.Data...)
	}
	for i, v := range all {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			t.Fatalf("%s: number %d is %v", path, i, v)
		}
	}
	return all
}

// rows parses a CSV table. It returns each row as a map from column to field.
func rows(t tester, text string) []map[string]string {
	t.Helper()
	lines, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var all []map[string]string
	for _, line := range lines[1:] {
		row := map[string]string{}
		for i, column := range lines[0] {
			row[column] = line[i]
		}
		all = append(all, row)
	}
	return all
}

// number returns the integer in the given column of a row.
func number(t tester, row map[string]string, column string) int {
	t.Helper()
	n, err := strconv.Atoi(row[column])
	if err != nil {
		t.Fatal(column, err)
	}
	return n
}
