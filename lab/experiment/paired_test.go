package experiment

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/lab/run"
)

// runOf writes the folder of a finished run with the given errors.
func runOf(t *testing.T, errors []run.Error) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	f, err := run.Create(dir, []byte("plan"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Finish(run.Results{Errors: slices.Values(errors)}, &run.Summary{}); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// errorsOf returns errors of four clients on 60 days. Client k has scale[k] times the
// errors of scale 1.
func errorsOf(scale ...float64) []run.Error {
	var all []run.Error
	for k, name := range []string{"a", "b", "c", "d"} {
		rng := rand.New(rand.NewPCG(uint64(k), 2))
		for day := range 60 {
			date := time.Date(2021, 1, 1+day, 0, 0, 0, 0, time.UTC).Format(time.DateOnly)
			all = append(all, run.Error{Client: name, Day: date, Targets: 12 + day%2*12, MAE: scale[k] * (1 + rng.Float64())})
		}
	}
	return all
}

func TestPair(t *testing.T) {
	one := runOf(t, errorsOf(1, 1, 1, 1))
	p, err := Pair(runOf(t, errorsOf(0.5, 0.8, 1, 1.25)), one)
	if err != nil {
		t.Fatal(err)
	}
	// The third client has the same errors in both runs, so nobody wins.
	want := Paired{Clients: 4, Ratio: 0.9, Won: 0.5, Better: 0.5, Worse: 0.25}
	if p.Ratio = p.Ratio - want.Ratio; math.Abs(float64(p.Ratio)) > 1e-12 {
		t.Errorf("the ratio is off by %v", p.Ratio)
	}
	if p.Ratio = want.Ratio; p != want {
		t.Errorf("%+v, want %+v", p, want)
	}
	// A difference that is small against the noise of both runs is not significant.
	noisy := errorsOf(1, 1, 1, 1)
	rng := rand.New(rand.NewPCG(3, 3))
	for i := 0; i < len(noisy); i += 4 {
		// The noise of four days has a mean of zero.
		x, y := 0.5*(rng.Float64()-0.5), 0.5*(rng.Float64()-0.5)
		noisy[i].MAE += x
		noisy[i+1].MAE += y
		noisy[i+2].MAE -= x
		noisy[i+3].MAE -= y
	}
	if p, err = Pair(runOf(t, noisy), one); err != nil || p.Better+p.Worse > 0 || math.Abs(float64(p.Ratio)-1) > 0.02 {
		t.Errorf("%+v, %v; want no significant difference", p, err)
	}
}

func TestPairRefuses(t *testing.T) {
	all := errorsOf(1, 1, 1, 1)
	one := runOf(t, all)
	other := func(change func([]run.Error) []run.Error) string { return runOf(t, change(slices.Clone(all))) }
	for want, dir := range map[string]string{
		"4 and 3 clients":                                                other(func(e []run.Error) []run.Error { return e[:180] }),
		"client d has 60 days, and d has 59":                             other(func(e []run.Error) []run.Error { return e[:239] }),
		"client a has 60 days, and x has 60":                             other(func(e []run.Error) []run.Error { return rename(e, "x") }),
		"client a has 12 targets on 2021-01-01, and 11 on 2021-01-01":    other(func(e []run.Error) []run.Error { e[0].Targets--; return e }),
		"client b has 12 targets on 2021-01-01, and 12 on 2020-12-31":    other(func(e []run.Error) []run.Error { e[60].Day = "2020-12-31"; return e }),
		"has no errors by day: the run is not finished, or it has no te": other(func(e []run.Error) []run.Error { return nil }),
	} {
		if _, err := Pair(one, dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// rename gives another name to the first client.
func rename(e []run.Error, name string) []run.Error {
	for i := range 60 {
		e[i].Client = name
	}
	return e
}
