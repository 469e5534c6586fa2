package recipe

import (
	"slices"
	"testing"
)

func TestDiff(t *testing.T) {
	read := func(text string) (d []Difference) {
		t.Helper()
		p, err := Read([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		usual, err := Defaults(p)
		if err != nil {
			t.Fatal(err)
		}
		if d, err = Diff(usual, p); err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := read("algorithm: fedadam\n"); len(d) > 0 {
		t.Errorf("a plan of defaults differs from the defaults: %v", d)
	}
	if d := read("algorithm: fedavg\nmodel: {name: dense, lookback: 672, interval: 15m}\n"); len(d) > 0 {
		t.Errorf("a resolved plan of defaults differs from the defaults: %v", d)
	}
	got := read("algorithm: fedadam\nrounds: 7\nmodel: {inputs: [load, temperature]}\nclient: {lr: 0.5}\n")
	want := []string{"model.inputs", "rounds", "client.lr"}
	var paths []string
	for _, d := range got {
		paths = append(paths, d.Path)
	}
	if !slices.Equal(paths, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if i := slices.Index(paths, "rounds"); i >= 0 && got[i].B != "7" {
		t.Errorf("rounds: %+v", got[i])
	}
	if i := slices.Index(paths, "model.inputs"); i >= 0 && got[i].B != "[load, temperature]" {
		t.Errorf("inputs: %+v", got[i])
	}
}
