package serve

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"loadstar/fed/recipe"
	"loadstar/internal/stateformat"
	"loadstar/internal/testkit"
	"loadstar/nn/safetensors"
	"loadstar/series"
	"loadstar/series/feature"
)

func rewrite(t testing.TB, path string, change func(string) string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(change(string(b))), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestHostileFolders opens folders that a stranger has changed.
func TestHostileFolders(t *testing.T) {
	x := sample{meters: 2, days: 60}
	d := x.dataset(t)
	replace := func(name, old, with string) func(dir string) {
		return func(dir string) {
			rewrite(t, filepath.Join(dir, name), func(s string) string {
				if !strings.Contains(s, old) {
					t.Fatalf("%s does not contain %q", name, old)
				}
				return strings.Replace(s, old, with, 1)
			})
		}
	}
	raw := func(name string, b []byte) func(dir string) {
		return func(dir string) {
			write(t, filepath.Join(dir, name), func(w *os.File) error { _, err := w.Write(b); return err })
		}
	}
	tensors := func(name string, meta map[string]string, all ...safetensors.Tensor) func(dir string) {
		return func(dir string) {
			write(t, filepath.Join(dir, name), func(w *os.File) error { return safetensors.Write(w, all, meta) })
		}
	}
	clients, _ := json.Marshal([]string{"m/0", "m/1"})
	for name, c := range map[string]struct {
		change func(dir string)
		want   string
	}{
		"no plan":           {func(dir string) { _ = os.Remove(filepath.Join(dir, planName)) }, planName},
		"a plan of nothing": {raw(planName, nil), "algorithm"},
		"a plan of 2 MB":    {raw(planName, make([]byte, 2<<20)), "at most"},
		"another model":     {replace(planName, "targets: 24", "targets: 12"), "shape"},
		"no shared weights": {func(dir string) { _ = os.Remove(filepath.Join(dir, sharedName)) }, sharedName},
		"shared of 1 byte":  {raw(sharedName, []byte{1}), "ends early"},
		"a folder as file": {func(dir string) {
			_ = os.Remove(filepath.Join(dir, sharedName))
			_ = os.Mkdir(filepath.Join(dir, sharedName), 0o755)
		}, "not a regular file"},
		"a longer header":    {raw(ScalingName, []byte("\xff\xff\xff\x7f\x00\x00\x00\x00{}")), "header"},
		"too few clients":    {replace(ScalingName, `"[\"m/0\",\"m/1\"]"`, `"[\"m/0, m/1   \"]"`), "clients are listed"},
		"a client twice":     {replace(ScalingName, `m/1`, `m/0`), "twice"},
		"no list of clients": {replace(ScalingName, `"[\"m/0\",\"m/1\"]"`, `"                 "`), "JSON list"},
		"no step":            {replace(ScalingName, `1h0m0s`, `-1h0m0`), "step"},
		"unknown group":      {replace(ScalingName, `calendar`, `calender`), "calender"},
		"wrong arrays":       {tensors(ScalingName, map[string]string{"clients": string(clients), "inputs": `["recent"]`, "step": "1h"}, safetensors.Tensor{Name: "low", Shape: []int{1}, Data: []float32{1}}), ""},
		"states of nothing":  {raw(StatesName, nil), "damaged"},
		"states cut off":     {raw(StatesName, []byte("12345678\xff\xff\xff\xff\xff\xff\xff\x7f")), "damaged"},
		"newer states": {func(dir string) {
			f := statesFormat
			f.Version++
			b := f.Wrap(nil)
			raw(StatesName, append(b, byte(len(b)), 0, 0, 0, 0, 0, 0, 0))(dir)
		}, "newer"},
	} {
		dir := x.folder(t, d)
		c.change(dir)
		f, err := Open(dir, nil, best(t))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if f != nil {
			t.Errorf("%s: a folder and an error", name)
		}
	}
}

// TestHostileClients reads clients whose files a stranger has changed.
func TestHostileClients(t *testing.T) {
	x := sample{meters: 2, days: 60}
	d := x.dataset(t)
	dir := x.folder(t, d)
	f := open(t, dir)
	for _, id := range []string{"m/0", "m/1", "m/0"} {
		// The header is parsed for the first client only.
		c, err := f.Client(id)
		if err != nil {
			t.Fatal(err)
		}
		want := slices.Clone(f.template)
		file, err := os.Open(filepath.Join(dir, personalDir, WeightsFile(id)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Model.Problem.Model.ReadWeights(file, want, f.Model.Problem.Partition.Personal()); err != nil || !slices.Equal(c.Weights, want) {
			t.Errorf("%s: other weights, %v", id, err)
		}
		file.Close()
	}
	for _, id := range []string{"", "..", "../m%2F0", "m%2F0", "/etc/passwd", "m/0\x00", strings.Repeat("x", 5000)} {
		if _, err := f.Client(id); err == nil {
			t.Errorf("%q: no error", id)
		}
	}
	if _, err := f.Client("m/2"); !errors.Is(err, ErrNoHead) {
		t.Errorf("an unknown client: %v", err)
	}
	path := filepath.Join(dir, personalDir, WeightsFile("m/0"))
	if filepath.Dir(path) != filepath.Join(dir, personalDir) {
		t.Fatal(path)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	nan := bytes.Clone(good)
	copy(nan[len(nan)-4:], []byte{0, 0, 0xc0, 0x7f})
	for name, b := range map[string][]byte{"not a number": nan, "cut off": good[:len(good)-1], "longer": append(bytes.Clone(good), 0), "empty": nil, "huge": make([]byte, 8<<20)} {
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Client("m/0"); err == nil || errors.Is(err, ErrNoHead) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(path, good, 0o644); err != nil {
		t.Fatal(err)
	}
	// Without scaling.safetensors, the folder returns weights, but no scaling.
	if err := os.Remove(filepath.Join(dir, ScalingName)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, nil, best(t)); err == nil || !strings.Contains(err.Error(), "give the data") {
		t.Errorf("no scaling and no data: %v", err)
	}
	bare, err := Open(dir, d, best(t))
	if err != nil {
		t.Fatal(err)
	}
	defer bare.Close()
	c, err := bare.Client("m/0")
	if !errors.Is(err, ErrNoScaling) || len(c.Weights) == 0 {
		t.Errorf("no scaling: %v", err)
	}
}

// TestTunedWeights checks that fine-tuned weights are used if they exist.
func TestTunedWeights(t *testing.T) {
	x := sample{meters: 2, days: 60}
	d := x.dataset(t)
	dir := x.folder(t, d)
	q := open(t, dir).Model.Problem
	tuned := q.Model.InitialWeights(5)
	write(t, filepath.Join(dir, TunedDir, WeightsFile("m/1")), func(w *os.File) error {
		return q.Model.WriteWeights(w, tuned, q.Model.Net().Layers(), nil)
	})
	f := open(t, dir)
	for id, want := range map[string]bool{"m/0": false, "m/1": true} {
		c, err := f.Client(id)
		if err != nil || reflect.DeepEqual(c.Weights, tuned) != want {
			t.Errorf("%s: tuned %t, %v", id, !want, err)
		}
	}
}

func TestStates(t *testing.T) {
	x := sample{meters: 2, days: 60}
	d := x.dataset(t)
	dir := x.folder(t, d)
	want := map[string]string{"m/0": "first", "m/1": "", "c": "third"}
	ids := []string{"m/0", "m/1", "c"}
	write(t, filepath.Join(dir, StatesName), func(w *os.File) error {
		return WriteStates(w, ids, func(i int) ([]byte, error) { return []byte(want[ids[i]]), nil })
	})
	f := open(t, dir)
	for _, id := range append(ids, "d") {
		if b, err := f.State(id, nil); err != nil || string(b) != want[id] || (b == nil) != (want[id] == "") {
			t.Errorf("%s: %q, %v", id, b, err)
		}
	}
	file, err := os.ReadFile(filepath.Join(dir, StatesName))
	if err != nil {
		t.Fatal(err)
	}
	for i := len("firstthird"); i < len(file); i++ {
		b := bytes.Clone(file)
		b[i]++
		if _, err := readIndex(bytes.NewReader(b), int64(len(b))); err == nil {
			t.Errorf("byte %d changed: no error", i)
		}
	}
	if _, err := f.State("missing", nil); err != nil {
		t.Error(err)
	}
}

func TestScalings(t *testing.T) {
	for _, x := range []sample{{meters: 2, days: 60, weather: true}, {meters: 2, days: 60, plan: windowPlan}} {
		d := x.dataset(t)
		f := open(t, x.folder(t, d))
		q, err := recipe.Frame(f.Model.Plan, d)
		if err != nil {
			t.Fatal(err)
		}
		for i := range d.Len() {
			want := scalingOf(q, d.Meter(i))
			c, err := f.Client(d.Meter(i).ID)
			if err != nil || !reflect.DeepEqual(c.Scaling, want) {
				t.Errorf("%+v, %v\nwant %+v", c.Scaling, err, want)
			}
			b := EncodeScaling(want)
			got, err := DecodeScaling(b)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("decoded %+v, %v", got, err)
			}
			for at := range b {
				damaged := bytes.Clone(b)
				damaged[at] ^= 1
				if _, err := DecodeScaling(damaged); !errors.Is(err, stateformat.ErrDamaged) && !errors.Is(err, stateformat.ErrNewer) {
					t.Fatalf("byte %d changed: %v", at, err)
				}
			}
		}
	}
}

// TestImpossibleScalings checks that a scaling that would make forecasts meaningless is not
// used.
func TestImpossibleScalings(t *testing.T) {
	x := sample{meters: 1, days: 60}
	d := x.dataset(t)
	f := open(t, x.folder(t, d))
	personal := make([]float32, f.Model.Problem.Partition.PersonalLen())
	for name, change := range map[string]func(*feature.Scaling){
		"no deviation":     func(s *feature.Scaling) { s.Deviation = 0 },
		"infinite mean":    func(s *feature.Scaling) { s.Mean = math.Inf(1) },
		"profile":          func(s *feature.Scaling) { s.Profile[3] = float32(math.NaN()) },
		"values":           func(s *feature.Scaling) { s.Ranks.Value[1] = s.Ranks.Value[0] },
		"shares":           func(s *feature.Scaling) { s.Ranks.Upto[0] = 2 },
		"too few shares":   func(s *feature.Scaling) { s.Ranks.Upto = s.Ranks.Upto[1:] },
		"wind's deviation": func(s *feature.Scaling) { s.Wind.Deviation = -1 },
	} {
		c, err := f.Client("m/0")
		if err != nil {
			t.Fatal(err)
		}
		change(c.Scaling.Features)
		if _, err := f.Model.Client(personal, c.Scaling); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	c, err := f.Client("m/0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Model.Client(personal, c.Scaling); err != nil {
		t.Error(err)
	}
	if _, err := f.Model.Client(nil, c.Scaling); !errors.Is(err, ErrNoHead) {
		t.Errorf("no personal weights: %v", err)
	}
	if _, err := f.Model.Client(personal[1:], c.Scaling); err == nil {
		t.Error("too few personal weights: no error")
	}
	personal[0] = float32(math.NaN())
	if _, err := f.Model.Client(personal, c.Scaling); err == nil {
		t.Error("NaN in personal weights: no error")
	}
	if _, err := f.Model.Client(personal, recipe.Scaling{Ranges: series.Ranges{}}); !errors.Is(err, ErrNoScaling) {
		t.Errorf("the scaling of another model: %v", err)
	}
	if _, err := Open(t.TempDir(), nil, best(t)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty folder: %v", err)
	}
}

func FuzzScaling(f *testing.F) {
	x := sample{meters: 1, days: 40}
	d := x.dataset(f)
	for _, plan := range []string{densePlan, windowPlan} {
		p, err := recipe.Read([]byte(plan))
		if err != nil {
			f.Fatal(err)
		}
		q, err := recipe.Frame(p, d)
		if err != nil {
			f.Fatal(err)
		}
		b := EncodeScaling(scalingOf(q, d.Meter(0)))
		f.Add(b[20 : len(b)-4])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeScaling(scalingFormat.Wrap(b))
		if err != nil {
			return
		}
		again, err := DecodeScaling(EncodeScaling(s))
		if err != nil || !bytes.Equal(EncodeScaling(s), EncodeScaling(again)) {
			t.Fatalf("%+v, %v", s, err)
		}
	})
}

func FuzzStates(f *testing.F) {
	var file bytes.Buffer
	if err := WriteStates(&file, []string{"a", "b"}, func(i int) ([]byte, error) { return make([]byte, i), nil }); err != nil {
		f.Fatal(err)
	}
	f.Add(file.Bytes(), []byte("xx"))
	f.Fuzz(func(t *testing.T, index, states []byte) {
		end := statesFormat.Wrap(index)
		b := append(bytes.Clone(states), end...)
		b = append(b, byte(len(end)), byte(len(end)>>8), byte(len(end)>>16), 0, 0, 0, 0, 0)
		for _, b := range [][]byte{b, index} {
			places, err := readIndex(bytes.NewReader(b), int64(len(b)))
			if err != nil {
				continue
			}
			for _, p := range places {
				if p.from < 0 || p.n < 0 || p.from+p.n > int64(len(b)) {
					t.Fatalf("%+v in %d bytes", p, len(b))
				}
			}
		}
	})
}

// TestGolden checks that later versions of the program can read the scalings and states that
// this version writes.
func TestGolden(t *testing.T) {
	features := &feature.Scaling{Mean: 2, Deviation: 0.5, Temperature: feature.Moments{Mean: 9, Deviation: 3}, Wind: feature.Moments{Deviation: 1}}
	features.Profile[7] = 1.5
	features.Ranks = feature.Ranks{Value: []float32{1, 2}, Below: []float32{0, 0.5}, Upto: []float32{0.5, 1}}
	for name, want := range map[string]recipe.Scaling{
		"features": {Features: features},
		"ranges":   {Ranges: series.Ranges{"load": {Low: 1, High: 2}, "temperature": {Low: -3, High: 20}}},
	} {
		testkit.CheckGolden(t, name, scalingFormat, EncodeScaling(want), func(b []byte) error {
			s, err := DecodeScaling(b)
			if err == nil && !reflect.DeepEqual(s, want) {
				err = errors.New("another scaling")
			}
			return err
		})
	}
	var index bytes.Buffer
	if err := WriteStates(&index, []string{"a", "b"}, func(int) ([]byte, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	wrapped := index.Bytes()[:index.Len()-8]
	testkit.CheckGolden(t, "states", statesFormat, wrapped, func(b []byte) error {
		b = binary.LittleEndian.AppendUint64(bytes.Clone(b), uint64(len(b)))
		places, err := readIndex(bytes.NewReader(b), int64(len(b)))
		if err == nil && len(places) != 2 {
			err = errors.New("another index")
		}
		return err
	})
}
