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

// errorsOf returns errors of four clients on 60 days. The errors of client k are proportional
// to scale[k].
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

// pair compares the runs in two folders.
func pair(t *testing.T, first, second string) (Paired, error) {
	t.Helper()
	a, err := readErrors(first)
	if err != nil {
		t.Fatal(err)
	}
	b, err := readErrors(second)
	if err != nil {
		t.Fatal(err)
	}
	return pairErrors(a, b)
}

func TestPair(t *testing.T) {
	one := runOf(t, errorsOf(1, 1, 1, 1))
	p, err := pair(t, runOf(t, errorsOf(0.5, 0.8, 1, 1.25)), one)
	if err != nil {
		t.Fatal(err)
	}
	// The third client has the same errors in both runs, so neither wins.
	want := Paired{Clients: 4, Ratio: 0.9, Won: 0.5, Better: 0.5, Worse: 0.25}
	if p.Ratio = p.Ratio - want.Ratio; math.Abs(float64(p.Ratio)) > 1e-12 {
		t.Errorf("the ratio is off by %v", p.Ratio)
	}
	// With four clients, about one sample in 20 contains a given client at least three times.
	if math.Abs(float64(p.Low)-0.5) > 1e-9 || math.Abs(float64(p.High)-1.25) > 1e-9 {
		t.Errorf("the interval is %v to %v", p.Low, p.High)
	}
	p.Low, p.High = 0, 0
	if p.Ratio = want.Ratio; p != want {
		t.Errorf("%+v, want %+v", p, want)
	}
	// A difference that is small compared with the noise of both runs is not significant.
	noisy := errorsOf(1, 1, 1, 1)
	rng := rand.New(rand.NewPCG(3, 3))
	for i := 0; i < len(noisy); i += 4 {
		// The mean of the noise over four days is zero.
		x, y := 0.5*(rng.Float64()-0.5), 0.5*(rng.Float64()-0.5)
		noisy[i].MAE += x
		noisy[i+1].MAE += y
		noisy[i+2].MAE -= x
		noisy[i+3].MAE -= y
	}
	many := make([]float64, 400)
	for i := range many {
		many[i] = 1 + 0.1*rng.NormFloat64()
	}
	// The median of n normal numbers has a standard deviation of 1.2533 / sqrt(n).
	if low, high := interval(many); math.Abs(float64(high-low)-2*1.96*0.1*1.2533/20) > 0.006 {
		t.Errorf("the interval of 400 clients is %g to %g", low, high)
	}
	if p, err = pair(t, runOf(t, noisy), one); err != nil || p.Better+p.Worse > 0 || math.Abs(float64(p.Ratio)-1) > 0.02 {
		t.Errorf("%+v, %v; want no significant difference", p, err)
	}
}

// TestPairInCommon checks that only clients and days that both methods scored are compared.
func TestPairInCommon(t *testing.T) {
	one := errorsOf(1, 1, 1, 1)
	for name, c := range map[string]struct {
		change  func(e []run.Error) []run.Error
		clients int
	}{
		"a client is missing":            {func(e []run.Error) []run.Error { return e[60:] }, 3},
		"another client":                 {func(e []run.Error) []run.Error { return rename(e, "0") }, 3},
		"a day is missing":               {func(e []run.Error) []run.Error { return slices.Delete(e, 7, 8) }, 4},
		"a day has one target less":      {func(e []run.Error) []run.Error { e[7].Targets--; return e }, 4},
		"another day before all of them": {func(e []run.Error) []run.Error { e[60].Day = "2020-12-31"; return e }, 4},
	} {
		other := errorsOf(2, 2, 2, 2)
		other[7].MAE = 1000 // must have no effect
		p, err := pair(t, runOf(t, one), runOf(t, c.change(other)))
		if name == "another day before all of them" { // this change does not affect day 7
			if p.Clients != c.clients {
				t.Errorf("%s: %d clients", name, p.Clients)
			}
			continue
		}
		if err != nil || p.Clients != c.clients || math.Abs(float64(p.Ratio)-0.5) > 1e-12 || p.Won != 1 {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	if _, err := pair(t, runOf(t, one[:60]), runOf(t, one[60:])); err == nil || !strings.Contains(err.Error(), "no day in common") {
		t.Errorf("%v, want an error for runs with different clients", err)
	}
	if _, err := readErrors(runOf(t, nil)); err == nil || !strings.Contains(err.Error(), "has no errors by day") {
		t.Errorf("%v, want an error for a run without errors", err)
	}
}

// rename gives the first client another name.
func rename(e []run.Error, name string) []run.Error {
	for i := range 60 {
		e[i].Client = name
	}
	return e
}
