package terms

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"loadstar/fed"
	"loadstar/fed/exact"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	v1 "loadstar/proto/loadstar/v1"
)

// small is a model with few weights.
const small = "model: {name: fekri2023, lookback: 2, targets: 1, inputs: [load, hour]}\nevaluate: {every: 0}\n"

func planOf(t testing.TB, text string) *fed.Plan {
	t.Helper()
	p, err := recipe.Read([]byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return p
}

var hourly = []time.Duration{time.Hour}

func TestSettle(t *testing.T) {
	p := planOf(t, "algorithm: fedavg\nmodel: {name: bose2023}\n")
	before, err := recipe.Write(p)
	if err != nil {
		t.Fatal(err)
	}
	q, err := Settle(p, 7, []string{"floor_area", "rain", "temperature"}, hourly)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"load", "time_of_day", "day_of_week", "temperature", "floor_area"}; !slices.Equal(q.Model.Inputs, want) {
		t.Errorf("inputs %v, want the paper's that all clients have: %v", q.Model.Inputs, want)
	}
	if q.Schedule.Cohort != 7 {
		t.Errorf("cohort %d", q.Schedule.Cohort)
	}
	if after, err := recipe.Write(p); err != nil || string(after) != string(before) {
		t.Errorf("the submitted plan was changed: %v\n%s", err, after)
	}
	// A settled plan does not change if it is written, read and settled again.
	text, err := recipe.Write(q)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Read(string(text), "blob", 7)
	if err != nil {
		t.Fatal(err)
	}
	if twice, err := recipe.Write(again.Plan); err != nil || string(twice) != string(text) || again.Blob != "blob" || again.Fleet != 7 {
		t.Errorf("%v, %+v\n%s\nwas\n%s", err, again, twice, text)
	}
	if q, err = Settle(planOf(t, "algorithm: fedavg\nschedule: {cohort: 3}\n"+small), 7, nil, hourly); err != nil || q.Schedule.Cohort != 3 || len(q.Model.Inputs) != 2 {
		t.Errorf("explicit values must stay: %+v, %v", q, err)
	}
}

// TestStored checks that a plan that stores masked results individually is refused above 2 GB.
func TestStored(t *testing.T) {
	const private = "algorithm: fedavg\nmodel: {name: bose2023}\npartition: none\nprivacy: {mode: private, keepers: [a]}\n" // 343 kB
	nearest := planOf(t, private+"server: {robust: nearest}\n")
	if _, err := Settle(nearest, 6_000, nil, hourly); err != nil {
		t.Error(err)
	}
	if _, err := Settle(nearest, 7_000, nil, hourly); err == nil || !strings.Contains(err.Error(), "the limit is 2048 MB; choose a smaller schedule.cohort") {
		t.Errorf("7,000 clients: %v", err)
	}
	if _, err := Settle(planOf(t, private), 7_000, nil, hourly); err != nil {
		t.Errorf("without nearest: %v", err)
	}
}

// TestSettleRows checks that a settled plan with rows of features lists the groups and the
// interval that agents use.
func TestSettleRows(t *testing.T) {
	p := planOf(t, "algorithm: fedavg\nmodel: {name: dense}\nclient: {moments: averaged}\n")
	half := []time.Duration{30 * time.Minute}
	q, err := Settle(p, 7, []string{"temperature", "holiday"}, half)
	if err != nil {
		t.Fatal(err)
	}
	in := q.Model.Inputs
	if !slices.Contains(in, "temperature") || !slices.Contains(in, "holidays") || slices.Contains(in, "wind") || q.Model.Interval != fed.Duration(half[0]) {
		t.Errorf("inputs %v every %v", in, q.Model.Interval)
	}
	text, err := recipe.Write(q)
	if err != nil {
		t.Fatal(err)
	}
	x, err := Read(string(text), "blob", 7)
	if err != nil {
		t.Fatal(err)
	}
	problem, err := recipe.Frame(q, nil)
	if err != nil {
		t.Fatal(err)
	}
	if weights := problem.Partition.SharedLen(); x.Shared != 3*weights || len(x.Server().Shared()) != 3*weights {
		t.Errorf("a shared vector of %d, want three times %d", x.Shared, weights)
	}
	hour, err := recipe.Frame(p, nil)
	if err != nil || hour.Model.Net().Inputs() == problem.Model.Net().Inputs() {
		t.Errorf("the inputs do not depend on the interval: %v", err)
	}
	// An agent reports the interval of its readings, and an operator chooses the number of
	// targets. The server must not allocate memory in proportion to these numbers.
	if _, err := Settle(p, 7, nil, []time.Duration{time.Second}); err == nil || !strings.Contains(err.Error(), "must be at least 1m") {
		t.Errorf("readings every second: %v", err)
	}
	for want, bad := range map[string]string{
		"it must be at most 336":                            "model: {name: dense, targets: 337}",
		"not all clients have the data for the inputs wind": "model: {name: dense, inputs: [recent, wind]}",
		"model.interval is 1h, but the readings are 30m":    "model: {name: dense, interval: 1h}",
	} {
		if _, err := Settle(planOf(t, "algorithm: fedavg\n"+bad), 7, nil, half); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestSettleDurations checks that durations become numbers of steps of the fleet's readings, so
// that server and agents agree on these numbers. When a plan is submitted, the server assumes
// steps of an hour.
func TestSettleDurations(t *testing.T) {
	p := planOf(t, "algorithm: fedavg\nmodel: {name: dense, targets: 24h, inputs: [recent, calendar]}\n")
	if err := Federated(p, false); err != nil {
		t.Fatal(err)
	}
	for step, want := range map[time.Duration]int{time.Hour: 24, 30 * time.Minute: 48, 15 * time.Minute: 96} {
		q, err := Settle(p, 7, nil, []time.Duration{step})
		if err != nil {
			t.Fatal(err)
		}
		if q.Model.Targets != fed.Steps(want) || time.Duration(q.Model.Interval) != step || p.Model.Targets != fed.Lasting(24*time.Hour) {
			t.Errorf("steps of %s: targets %s every %s", step, q.Model.Targets, q.Model.Interval)
		}
	}
	for _, plan := range []string{"model: {name: dense, targets: 24h}", "model: {name: bose2023, lookback: 12h}"} {
		if _, err := Settle(planOf(t, "algorithm: fedavg\n"+plan), 7, nil, []time.Duration{7 * time.Minute}); err == nil || !strings.Contains(err.Error(), "h is not a multiple of the data's step of 7m") {
			t.Errorf("%s: %v", plan, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		plan, want string
		fleet      bool // the error depends on the fleet, so Federated accepts the plan
	}{
		"local":         {"algorithm: local\npartition: all\n" + small, "shares no layers", false},
		"pooled":        {"algorithm: pooled\n" + small, "shares no layers", false},
		"fleet scaling": {"algorithm: fedavg\nmodel: {name: bose2023, scaling: fleet}\n", "scaling is fleet", false},
		"start":         {"algorithm: fedavg\nstart: runs/other\n" + small, "start is runs/other, a path that the server cannot read", false},
		"small batch":   {"algorithm: fedsim\nserver: {batch: 8}\n" + small, "server.batch is 8; in a fleet it must be at least 16", false},
		"too large":     {"algorithm: scaffold\nmodel: {name: bose2023, lookback: 800, inputs: [load]}\n", "the limit is 12 MB", false},
		// An individual update would be small enough, but a sum would not.
		"sum too large": {"algorithm: fedavg\nmodel: {name: bose2023, lookback: 800, inputs: [load]}\n", "results of 14 MB", false},
		"cohort":        {"algorithm: fedavg\nschedule: {cohort: 6}\n" + small, "only 5 clients train", true},
		"buffer":        {"algorithm: fedbuff\nschedule: {buffer: 6, cohort: 2}\n" + small, "only 5 clients train", true},
		"input":         {"algorithm: fedavg\nmodel: {name: bose2023, inputs: [load, temperature]}\n", "no temperature; it has load", true},
		"lag":           {"algorithm: fedavg\nmodel: {name: bose2023, horizon: 48, inputs: [load, load@target-24h]}\n", "48 steps ahead", true},
	} {
		t.Run(name, func(t *testing.T) {
			p := planOf(t, c.plan)
			err := Federated(p, true)
			if c.fleet != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("submitted: %v", err)
			}
			if _, err := Settle(p, 5, []string{"wind"}, hourly); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("settled: %v, want %q", err, c.want)
			}
		})
	}
	good := planOf(t, "algorithm: fedavg\n"+small)
	for name, c := range map[string]struct {
		fleet int64
		steps []time.Duration
		want  string
	}{
		"several steps": {5, []time.Duration{30 * time.Minute, time.Hour}, "30m0s 1h0m0s"},
		"an odd step":   {5, []time.Duration{7 * time.Second}, "does not divide a day"},
		"no clients":    {0, nil, "no clients"},
	} {
		if _, err := Settle(good, c.fleet, nil, c.steps); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	// With more than 500 clients, a plan without a cohort gets one.
	for fleet, want := range map[int64]int{500: 500, 501: 200} {
		if q, err := Settle(good, fleet, nil, hourly); err != nil || q.Schedule.Cohort != want {
			t.Errorf("%d clients: cohort %d, %v", fleet, q.Schedule.Cohort, err)
		}
	}
	for _, text := range []string{"", "algorithm: fedavg\nrounds: many\n", "algorithm: fedavg\nschedule: {cohort: 9}\n" + small} {
		if _, err := Read(text, "blob", 5); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

// TestEveryAlgorithm checks that, for every algorithm that a server accepts, the terms provide
// a round.Server at version 0 and the size of results.
func TestEveryAlgorithm(t *testing.T) {
	for _, name := range recipe.Names() {
		text := "algorithm: " + name + "\n" + small
		if name == "local" {
			text += "partition: all\n"
		}
		p, err := Settle(planOf(t, text), 12, nil, hourly)
		if err != nil {
			if !slices.Contains([]string{"local", "pooled"}, name) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		settled, err := recipe.Write(p)
		if err != nil {
			t.Fatal(err)
		}
		x, err := Read(string(settled), "", 12)
		if err != nil {
			t.Fatal(err)
		}
		s := x.Server()
		if len(s.Shared()) != x.Shared || x.Shared == 0 || s.Version() != 0 || x.Machine().Round() != 0 {
			t.Errorf("%s: version %d, %d shared weights, want %d", name, s.Version(), len(s.Shared()), x.Shared)
		}
		if again := x.Server(); again == s || !slices.Equal(again.Shared(), s.Shared()) {
			t.Errorf("%s: two servers have different initial weights", name)
		}
		if each := slices.Contains([]string{"fedavgadaptive", "fedasync", "fednorm", "fedsim"}, name); x.Folds() == each {
			t.Errorf("%s: folds is %v", name, x.Folds())
		}
	}
}

// termsOf returns the terms of a small plan for a fleet of ten clients.
func termsOf(t testing.TB, algorithm string) *Terms {
	t.Helper()
	more := "server: {bound: 2, max_examples: 100, weighting: examples}\nschedule: {cohort: 5}\n"
	x, err := Read("algorithm: "+algorithm+"\n"+more+small, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// single returns a valid result of one client.
func single(x *Terms, client string, version int) *Result {
	n := x.Shared
	if x.Rules.Needs.Control {
		n *= 2
	}
	numbers := make([]float32, n)
	for i := range numbers {
		numbers[i] = float32(i%7)/8 - 0.25
	}
	return &Result{
		Version: version, Shares: []Share{{Client: client, Examples: 40, Steps: 3, TrainLoss: 0.5, Loss: 0.25}}, Numbers: round.AppendFloats(nil, numbers),
	}
}

// sumOf returns the sum of several results, as an agent sends it.
func sumOf(t testing.TB, x *Terms, all ...*Result) *Result {
	t.Helper()
	f := round.NewFold(x.Rules)
	r := &Result{Version: all[0].Version, Sum: true}
	for _, one := range all {
		if err := x.Add(f, one, nil); err != nil {
			t.Fatal(err)
		}
		r.Shares = append(r.Shares, one.Shares...)
	}
	var err error
	if r.Numbers, err = round.AppendSums(nil, &f.Sums()[0]); err != nil {
		t.Fatal(err)
	}
	return r
}

// stored returns the complete content of a fold as a string, for comparison.
func stored(t interface{ Fatal(...any) }, f *round.Fold) string {
	text := fmt.Sprint(f.Len())
	for _, s := range f.Sums() {
		b, err := round.AppendSums(nil, &s)
		if err != nil {
			t.Fatal(err)
		}
		text += fmt.Sprintf(" %d:%x", s.Version, b)
	}
	return text
}

func TestAddRefuses(t *testing.T) {
	float := func(at int, v float64) func(r *Result) {
		return func(r *Result) { binary.LittleEndian.PutUint32(r.Numbers[4*at:], math.Float32bits(float32(v))) }
	}
	word := func(at int, v int64) func(r *Result) {
		return func(r *Result) { binary.LittleEndian.PutUint64(r.Numbers[8*at:], uint64(v)) }
	}
	share := func(change func(s *Share)) func(r *Result) { return func(r *Result) { change(&r.Shares[0]) } }
	anyResult := map[string]struct {
		spoil func(r *Result)
		want  string
	}{
		"no clients":          {func(r *Result) { r.Shares = nil }, "no clients"},
		"no example":          {share(func(s *Share) { s.Examples = 0 }), "3 steps on 0 examples"},
		"negative examples":   {share(func(s *Share) { s.Examples = math.MinInt }), "examples"},
		"negative steps":      {share(func(s *Share) { s.Steps = -1 }), "-1 steps"},
		"loss NaN":            {share(func(s *Share) { s.Loss = math.NaN() }), "loss"},
		"loss infinite":       {share(func(s *Share) { s.Loss = math.Inf(-1) }), "loss"},
		"train loss NaN":      {share(func(s *Share) { s.TrainLoss = math.NaN() }), "loss"},
		"train loss infinite": {share(func(s *Share) { s.TrainLoss = math.Inf(1) }), "loss"},
		"train loss too much": {share(func(s *Share) { s.TrainLoss = math.MaxFloat64 }), "loss"},
		"no numbers":          {func(r *Result) { r.Numbers = nil }, "bytes"},
		"too few numbers":     {func(r *Result) { r.Numbers = r.Numbers[:len(r.Numbers)-8] }, ""},
		"too many numbers":    {func(r *Result) { r.Numbers = append(r.Numbers, make([]byte, 16)...) }, ""},
		"in the other form":   {func(r *Result) { r.Sum = !r.Sum }, ""},
	}
	for _, algorithm := range []string{"fedavg", "scaffold", "fednorm"} {
		x := termsOf(t, algorithm)
		updates, sums := maps(anyResult), maps(anyResult)
		updates["two clients"] = refusal{func(r *Result) { r.Shares = append(r.Shares, r.Shares[0]) }, "2 clients, want 1"}
		updates["NaN"] = refusal{float(0, math.NaN()), "not finite"}
		updates["infinite"] = refusal{float(x.Shared-1, math.Inf(1)), "not finite"}
		updates["beyond the bound"] = refusal{float(1, 2.0001), "beyond"}
		if x.Rules.Needs.Control {
			updates["control NaN"] = refusal{float(x.Shared, math.NaN()), "not finite"}
			updates["control beyond"] = refusal{float(2*x.Shared-1, 1<<21), "beyond"}
		}
		sums["twice the same"] = refusal{func(r *Result) { r.Shares[1].Client = r.Shares[0].Client }, "same client twice"}
		sums["one too few"] = refusal{func(r *Result) { r.Shares = r.Shares[:1] }, "holds 2 updates"}
		sums["one too many"] = refusal{func(r *Result) { r.Shares = append(r.Shares, Share{Client: "c", Examples: 1}) }, "holds 2 updates"}
		sums["other weights"] = refusal{share(func(s *Share) { s.Examples++ }), "of weight 80, but the shares state 2 of weight 81"}
		sums["other scale"] = refusal{word(0, 1), "fractional bits"}
		sums["claimed lighter"] = refusal{word(2, 79), ""}
		sums["a number beyond"] = refusal{word(3, math.MaxInt64), "beyond"}
		sums["too many updates"] = refusal{word(1, 6), "6 updates"}
		if x.Rules.Needs.Control {
			sums["controls of others"] = refusal{word(3+x.Shared+1, 1), ""}
			sums["control beyond"] = refusal{word(3+x.Shared+3, math.MinInt64), "beyond"}
		}
		for kind, all := range map[string]map[string]refusal{"update": updates, "sum": sums} {
			for name, c := range all {
				f := round.NewFold(x.Rules)
				if err := x.Add(f, single(x, "before", 3), nil); err != nil {
					t.Fatal(err)
				}
				before := stored(t, f)
				bad := single(x, "a", 3)
				if kind == "sum" {
					if !x.Folds() {
						continue
					}
					bad = sumOf(t, x, bad, single(x, "b", 3))
				}
				c.spoil(bad)
				if err := x.Add(f, bad, nil); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s, %s, %s: %v, want %q", algorithm, kind, name, err, c.want)
				}
				if after := stored(t, f); after != before {
					t.Errorf("%s, %s, %s: the fold was changed", algorithm, kind, name)
				}
				if err := x.Add(f, single(x, "after", 3), nil); err != nil || f.Len() != 2 {
					t.Errorf("%s, %s, %s: a valid result is refused afterwards: %v", algorithm, kind, name, err)
				}
			}
		}
	}
	x := termsOf(t, "fednorm")
	foreign := sumOf(t, termsOf(t, "fedavg"), single(termsOf(t, "fedavg"), "a", 3))
	if err := x.Add(round.NewFold(x.Rules), foreign, nil); err == nil || !strings.Contains(err.Error(), "each update") {
		t.Error(err)
	}
}

type refusal = struct {
	spoil func(r *Result)
	want  string
}

func maps(of map[string]refusal) map[string]refusal {
	c := map[string]refusal{}
	for k, v := range of {
		c[k] = v
	}
	return c
}

// TestAddIsFull checks that adding an individual update or a sum to a full fold returns an
// error and does not change the fold.
func TestAddIsFull(t *testing.T) {
	for _, algorithm := range []string{"fedavg", "scaffold"} {
		x := termsOf(t, algorithm)
		f := round.NewFold(x.Rules)
		for i := range 4 {
			if err := x.Add(f, single(x, fmt.Sprint(i), 3), nil); err != nil {
				t.Fatal(err)
			}
		}
		before := stored(t, f)
		if err := x.Add(f, sumOf(t, x, single(x, "a", 3), single(x, "b", 3)), nil); !errors.Is(err, exact.ErrFull) {
			t.Errorf("%s: %v", algorithm, err)
		}
		if stored(t, f) != before {
			t.Errorf("%s: the fold was changed", algorithm)
		}
		if err := x.Add(f, single(x, "c", 3), nil); err != nil {
			t.Errorf("%s: %v", algorithm, err)
		}
		if err := x.Add(f, single(x, "d", 3), nil); !errors.Is(err, exact.ErrFull) || f.Len() != 5 {
			t.Errorf("%s: %v", algorithm, err)
		}
	}
}

// TestCheck checks that Prepare accepts a valid result and refuses a result beyond the bound,
// even if it is called repeatedly and concurrently.
func TestCheck(t *testing.T) {
	for _, algorithm := range []string{"fedavg", "scaffold", "fednorm"} {
		x := termsOf(t, algorithm)
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := range 25 {
					good, bad := single(x, "a", i), single(x, "b", i)
					binary.LittleEndian.PutUint32(bad.Numbers[4*((w+i)%x.Shared):], math.Float32bits(3))
					if err := x.Prepare(good); err != nil {
						t.Errorf("%s: %v", algorithm, err)
					}
					if err := x.Prepare(bad); !errors.Is(err, exact.ErrBound) {
						t.Errorf("%s: %v", algorithm, err)
					}
				}
			})
		}
		wg.Wait()
	}
}

// TestSumsAddUp checks that sums that agents compute give bit for bit the same result as the
// individual updates.
func TestSumsAddUp(t *testing.T) {
	all := map[string]*Terms{"fedavg": termsOf(t, "fedavg"), "scaffold": termsOf(t, "scaffold")}
	rapid.Check(t, func(t *rapid.T) {
		x := all[rapid.SampledFrom([]string{"fedavg", "scaffold"}).Draw(t, "algorithm")]
		one, folded := round.NewFold(x.Rules), round.NewFold(x.Rules)
		client := 0
		for left := rapid.IntRange(1, 5).Draw(t, "clients"); left > 0; {
			n := rapid.IntRange(1, left).Draw(t, "in a sum")
			left -= n
			f := round.NewFold(x.Rules)
			r := &Result{Version: 2, Sum: true}
			for range n {
				u := single(x, fmt.Sprint(client), 2)
				client++
				// Some clients have more examples than the plan's limit on a client's weight.
				u.Shares[0].Examples = rapid.IntRange(1, 1000).Draw(t, "examples")
				binary.LittleEndian.PutUint32(u.Numbers[4*rapid.IntRange(0, x.Shared-1).Draw(t, "at"):],
					math.Float32bits(rapid.Float32Range(-2, 2).Draw(t, "delta")))
				for _, into := range []*round.Fold{one, f} {
					if err := x.Add(into, u, nil); err != nil {
						t.Fatal(err)
					}
				}
				r.Shares = append(r.Shares, u.Shares...)
			}
			var err error
			if r.Numbers, err = round.AppendSums(nil, &f.Sums()[0]); err != nil {
				t.Fatal(err)
			}
			if int64(len(r.Numbers)) != x.SumBytes() {
				t.Fatalf("%d bytes, want %d", len(r.Numbers), x.SumBytes())
			}
			if err := x.Add(folded, r, nil); err != nil {
				t.Fatal(err)
			}
		}
		if stored(t, one) != stored(t, folded) {
			t.Fatal("the sums differ")
		}
	})
}

func TestOf(t *testing.T) {
	a := &v1.Result{
		Run: "r", Round: 4, Version: 3, Form: v1.Form_FORM_SUM,
		Shares: []*v1.Share{{Client: "c", Examples: 5, Steps: 6, TrainLoss: 7, Loss: 8, Norm: 9, ControlNorm: 10}, {Client: "d"}},
	}
	want := &Result{Version: 3, Sum: true, Numbers: []byte{1, 2}, Shares: []Share{{"c", 5, 6, 7, 8, 9, 10}, {Client: "d"}}}
	if got := Of(a, []byte{1, 2}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestBook checks that a Cache loads the terms of a run once, does not cache errors, and holds
// a limited number of runs.
func TestBook(t *testing.T) {
	loads := map[string]int{}
	away := errors.New("away")
	b := NewCache(func(_ context.Context, run string) (*Terms, error) {
		loads[run]++
		if run == "away" && loads[run] == 1 {
			return nil, away
		}
		return &Terms{Blob: run}, nil
	})
	ctx := t.Context()
	if _, err := b.Of(ctx, "away"); !errors.Is(err, away) {
		t.Error(err)
	}
	for i := range 10 * maxRuns {
		run := fmt.Sprint(i)
		for range 2 {
			if x, err := b.Of(ctx, run); err != nil || x.Blob != run {
				t.Fatal(x, err)
			}
		}
		if x, err := b.Of(ctx, "away"); err != nil || x.Blob != "away" {
			t.Fatalf("an error was cached: %v, %v", x, err)
		}
		if loads[run] != 1 || len(b.byRun) > maxRuns {
			t.Fatalf("run %s was loaded %d times, and %d are cached", run, loads[run], len(b.byRun))
		}
	}
}
