package feature

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"loadstar/series"
)

// complete reports whether all loads from one step to another are measured.
func complete(load []float32, from, to int) bool {
	return from >= 0 && to < len(load) && !slices.ContainsFunc(load[from:to+1], series.Missing)
}

// TestOrigins compares the origins with their definition.
func TestOrigins(t *testing.T) {
	d := fixture{zone: "UTC", interval: time.Hour, start: "2018-03-01", days: 90, missing: 0.01, seed: 7}.dataset(t)
	for _, task := range tasks[:3] {
		for _, gaps := range []float64{0, 0.05, 0.3} {
			f := newFrame(t, d, task.horizon, task.targets, gaps)
			for i := range d.Len() {
				m := d.Meter(i)
				r := f.Rows(m)
				var want []int
				for o := 167; o < len(m.Load); o++ {
					missing := 0
					for _, v := range m.Load[o-167 : o+1] {
						if series.Missing(v) {
							missing++
						}
					}
					since := 0
					for since < 3 && series.Missing(m.Load[o-since]) {
						since++
					}
					if float64(missing) <= gaps*168 && since <= 2 && (gaps > 0 || since == 0) && complete(m.Load, o+task.horizon, o+task.horizon+task.targets-1) {
						want = append(want, o)
					}
				}
				var got []int
				_ = r.Each(series.All, func(o int) error { got = append(got, o); return nil }) // the function never returns an error
				if !slices.Equal(got, want) || len(want) == 0 {
					t.Errorf("gaps %g, meter %s: %d origins, want %d", gaps, m.ID, len(got), len(want))
				}
			}
		}
	}
}

// TestFewerThanAWeek checks series that are too short, empty or completely missing.
func TestFewerThanAWeek(t *testing.T) {
	for _, n := range []int{0, 1, 100, 168} {
		load := make([]float32, n)
		for i := range load {
			load[i] = float32(math.NaN())
		}
		d, err := series.NewDataset(series.Dataset{Name: "short", Interval: time.Hour, Clock: time.UTC}, []series.Meter{{ID: "a", Load: load}})
		if err != nil {
			t.Fatal(err)
		}
		r := newFrame(t, d, 1, 24, 0.5).Rows(d.Meter(0))
		if r.Len(series.All) != 0 || r.Noise() != 0 || r.Scaling().Deviation <= 0 {
			t.Errorf("%d steps: %d origins, noise %g, scaling %v", n, r.Len(series.All), r.Noise(), r.Scaling())
		}
	}
}

func TestGatherColumns(t *testing.T) {
	d := spring.dataset(t)
	f := newFrame(t, d, 1, 24, 0)
	r := f.Rows(d.Meter(1))
	if r.Inputs() != f.Width() || r.PerOrigin() != 24 || r.Frame() != f.Framer() {
		t.Errorf("%d inputs, %d examples an origin", r.Inputs(), r.PerOrigin())
	}
	var at []series.Example
	for k := range 150 { // more than two blocks
		at = append(at, series.Example{Last: r.At(series.Train, 2*k), Target: k % 24})
	}
	rows, columns := make([]float32, len(at)*f.Width()), make([]float32, 160*f.Width())
	y, yc := make([]float32, len(at)), make([]float32, len(at))
	for i := range columns {
		columns[i] = -99
	}
	r.Gather(rows, y, at)
	r.GatherColumns(columns, 160, yc, at)
	for e := range at {
		for i := range f.Width() {
			if rows[e*f.Width()+i] != columns[i*160+e] {
				t.Fatalf("example %d, input %d: %g in a row, %g in a column", e, i, rows[e*f.Width()+i], columns[i*160+e])
			}
		}
	}
	if !slices.Equal(y, yc) {
		t.Error("targets differ")
	}
	for i := range f.Width() {
		if columns[i*160+len(at)] != -99 {
			t.Fatalf("row %d: wrote after the last example", i)
		}
	}
	if n := testing.AllocsPerRun(20, func() { r.GatherColumns(columns, 160, yc, at) }); n > 0 {
		t.Errorf("%g allocations", n)
	}
}

// TestExtremeLoads checks that no input is ever infinite or NaN.
func TestExtremeLoads(t *testing.T) {
	for _, c := range []struct {
		name       string
		early, now float32
	}{{"constant", 5, 5}, {"zero", 0, 0}, {"constant, then other", 5, 7}, {"huge", 1, math.MaxFloat32}, {"huge first", -math.MaxFloat32, 1}} {
		load := make([]float32, 1200)
		for i := range load {
			load[i] = c.early
			if i > 900 {
				load[i] = c.now
			}
		}
		d, err := series.NewDataset(series.Dataset{Name: c.name, Interval: time.Hour, Clock: time.UTC}, []series.Meter{{ID: "a", Load: load}})
		if err != nil {
			t.Fatal(err)
		}
		f := newFrame(t, d, 1, 24, 0)
		r := f.Rows(d.Meter(0))
		x, y := make([]float32, f.Width()), make([]float32, 1)
		for k := range r.Len(series.All) {
			a := series.Example{Last: r.At(series.All, k), Target: k % 24}
			r.Gather(x, y, []series.Example{a})
			for j, v := range append(x, y[0]) {
				if series.Missing(v) || j < len(x) && math.Abs(float64(v)) > farInput {
					t.Fatalf("%s: input %d of %v is %g", c.name, j, a, v)
				}
			}
		}
	}
}

// TestCacheLimit checks that the frame respects its limit and keeps the newest columns, and
// that results do not depend on the limit or on the number of workers.
func TestCacheLimit(t *testing.T) {
	d := autumn.dataset(t)
	want := map[string][]float32{}
	gather := func(f *Frame, i int) []float32 {
		r := f.Rows(d.Meter(i))
		x := make([]float32, f.Width())
		r.Gather(x, nil, []series.Example{{Last: r.At(series.Test, 5)}})
		return x
	}
	free := newFrame(t, d, 1, 1, 0.2)
	for i := range d.Len() {
		want[d.Meter(i).ID] = gather(free, i)
	}
	if free.cache.order.Len() != d.Len() || free.cache.used == 0 {
		t.Errorf("%d meters with %d bytes are in the cache", free.cache.order.Len(), free.cache.used)
	}
	f := newFrame(t, d, 1, 1, 0.2)
	f.SetCache(1)
	var wait sync.WaitGroup
	for w := range 4 {
		wait.Go(func() {
			for k := range 20 {
				i := (k + w) % d.Len()
				if got := gather(f, i); !slices.Equal(got, want[d.Meter(i).ID]) {
					t.Errorf("meter %d: other inputs", i)
				}
			}
		})
	}
	wait.Wait()
	if gather(f, 0); f.cache.order.Len() != 1 || f.cache.used != f.Rows(d.Meter(0)).columns().bytes() {
		t.Errorf("%d meters with %d bytes are left", f.cache.order.Len(), f.cache.used)
	}
	r := free.Rows(d.Meter(0))
	before := r.Unscale(series.Example{Last: 200}, 1)
	gather(free, 1)
	gather(free, 2)
	free.SetCache(1)
	if c := r.used.Load().columns.Load(); c != nil {
		t.Error("the columns of a meter are in memory after their removal")
	}
	if after := r.Unscale(series.Example{Last: 200}, 1); after != before || r.used.Load().columns.Load() == nil {
		t.Errorf("%g kW before the removal of the columns, %g kW after it", before, after)
	}
	free.SetCache(DefaultCache)
	for i := range d.Len() {
		gather(free, i)
	}
	free.SetCache(free.cache.used - 1)
	if free.cache.order.Len() != 2 || free.cache.byKey[free.cache.order.Front().Value.(*cached).key] == nil {
		t.Errorf("%d meters are left, want 2", free.cache.order.Len())
	}
}

func TestScalingAsJSON(t *testing.T) {
	d := spring.dataset(t)
	want := newFrame(t, d, 1, 1, 0).Rows(d.Meter(0)).Scaling()
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got := new(Scaling)
	if err := json.Unmarshal(text, got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if len(text) > 16<<10 || len(want.Ranks.Value) != maxKnots {
		t.Errorf("%d bytes, %d values", len(text), len(want.Ranks.Value))
	}
}

func TestRanks(t *testing.T) {
	r := newRanks([]float32{3, 1, 1, 1, 7, 3})
	for v, want := range map[float32]float32{0: -1, 1: -0.5, 2: 0, 3: 4/3. - 1, 5: 5/3. - 1, 7: 5.5/3 - 1, 8: 1} {
		if got := r.rank(v); math.Abs(float64(got-want)) > 1e-6 {
			t.Errorf("rank of %g is %g, want %g", v, got, want)
		}
	}
	// Half of the loads are 0, and the other half are all different.
	values := make([]float32, 4000)
	for i := range values[2000:] {
		values[2000+i] = float32(i*i + 1)
	}
	r = newRanks(slices.Clone(values))
	if len(r.Value) > maxKnots || r.rank(0) != -0.5 || r.rank(-1) != -1 || r.rank(1e9) != 1 {
		t.Errorf("%d values, %g, %g, %g", len(r.Value), r.rank(0), r.rank(-1), r.rank(1e9))
	}
	for i := range 2000 {
		if got, want := float64(r.rank(values[2000+i])), float64(2*i+1)/4000; math.Abs(got-want) > 1./maxKnots {
			t.Fatalf("rank of number %d is %g, want %g", i, got, want)
		}
	}
}

func TestGroups(t *testing.T) {
	d := fixed.dataset(t)
	for _, c := range []struct{ horizon, targets, width, naive int }{{1, 1, 140, 0}, {1, 24, 171, 24}, {1, 48, 195, 24}, {24, 1, 146, 24}} {
		f := newFrame(t, d, c.horizon, c.targets, 0)
		names := f.Names()
		if f.Width() != c.width || f.Naive() != c.naive || len(names) != c.width {
			t.Errorf("horizon %d, %d targets: %d inputs, naive %d", c.horizon, c.targets, f.Width(), f.Naive())
		}
		if slices.Sort(names); len(slices.Compact(names)) != c.width {
			t.Error("two inputs have the same name")
		}
	}
	l := series.Layout{Lookback: 168, Horizon: 1, Targets: 1}
	f, err := NewFrame(d, l, series.DefaultSplit, []string{"wind", "calendar", "recent"}, 0)
	if err != nil || f.Width() != 24+37+1 || f.Names()[61] != "wind" || f.Naive() != 0 || f.Reach() != 24*time.Hour {
		t.Errorf("%v, %v", f.Names(), err)
	}
	if f, err = NewFrame(d, l, series.DefaultSplit, []string{"calendar"}, 0); err != nil || f.Naive() != -1 {
		t.Errorf("naive %d, %v", f.Naive(), err)
	}
	bare := *d
	bare.Country, bare.Weather = "", series.Weather{}
	plain, err := series.NewDataset(bare, []series.Meter{d.Meter(0)})
	if err != nil {
		t.Fatal(err)
	}
	if f := newFrame(t, plain, 1, 1, 0); f.Width() != 140-5-7 {
		t.Errorf("%d inputs without country and weather", f.Width())
	}
	bad := func(d *series.Dataset, l series.Layout, groups []string, gaps float64, want string) {
		t.Helper()
		if _, err := NewFrame(d, l, series.DefaultSplit, groups, gaps); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	bad(plain, l, []string{"holidays"}, 0, "the dataset has no country")
	bad(plain, l, []string{"wind"}, 0, "the dataset has no wind")
	bad(plain, l, []string{"winds"}, 0, `input group "winds" is unknown; the groups are recent, lags`)
	bad(plain, l, []string{"day", "day"}, 0, "listed twice")
	bad(plain, l, []string{}, 0, "empty")
	bad(plain, l, nil, 1, "gaps is 1")
	bad(plain, l, nil, math.NaN(), "gaps is NaN")
	bad(plain, series.Layout{Lookback: 24, Horizon: 1, Targets: 1}, nil, 0, "want 168 hours")
	bad(plain, series.Layout{Lookback: 168, Targets: 1}, nil, 0, "must be at least 1")
	bare.Country = "XY"
	odd, err := series.NewDataset(bare, nil)
	if err != nil {
		t.Fatal(err)
	}
	bad(odd, l, nil, 0, `country "XY"`)
	if Given("wind", "GB", []string{"temperature"}) || !Given("wind", "", []string{"wind"}) || !Given("recent", "", nil) ||
		Given("holidays", "", nil) || !Given("holidays", "GB", nil) || !Given("holidays", "", []string{"holiday"}) || Given("x", "GB", nil) {
		t.Error("Given is wrong")
	}
}

// TestOwnHolidays checks that a column named holiday takes precedence where it has values.
func TestOwnHolidays(t *testing.T) {
	d := *fixed.dataset(t) // from 1 October 2018
	column := make([]float32, 80*24)
	for i := range column {
		if day := i / 24; day == 70 { // 10 December
			column[i] = 1
		} else if day >= 79 {
			column[i] = float32(math.NaN())
		}
	}
	from, _ := d.Span()
	d.Weather = series.Weather{Start: from, Names: []string{"holiday"}, Columns: [][]float32{column}}
	for _, country := range []string{"", "GB"} {
		d.Country = country
		f := newFrame(t, &d, 1, 1, 0.9)
		m := d.Meter(0)
		at := slices.Index(f.Names(), "holiday")
		x := make([]float32, f.Width())
		var got []string
		for day := 20; day < 110; day++ {
			f.Rows(m).Gather(x, nil, []series.Example{{Last: 24*day + 6}})
			if flags := fmt.Sprint(x[at : at+3]); flags != "[0 0 0]" {
				got = append(got, f.Framer().Time(m, 24*day).Format("0102")+flags)
			}
		}
		want := "1210[1 0 0] 1211[0 1 0] 1217[0 0 1]"
		if country == "GB" {
			want += " 1225[1 0 0] 1226[1 1 0] 1227[0 1 0] 0101[1 0 1] 0102[0 1 1] 0108[0 0 1]"
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("country %q: %s\nwant %s", country, s, want)
		}
	}
}

func BenchmarkGatherColumns(b *testing.B) {
	for name, x := range map[string]fixture{
		"steady": {zone: "UTC", interval: time.Hour, start: "2016-01-01", days: 700, seed: 8},
		"saving": {zone: "Europe/London", interval: time.Hour, start: "2016-01-01", days: 700, seed: 8},
	} {
		for _, targets := range []int{1, 24} {
			b.Run(fmt.Sprintf("%s,targets=%d", name, targets), func(b *testing.B) {
				d := x.dataset(b)
				f := newFrame(b, d, 1, targets, 0)
				r := f.Rows(d.Meter(0))
				columns, y := make([]float32, f.Width()*64), make([]float32, 64)
				at := make([]series.Example, 64)
				seed := uint32(1)
				for b.Loop() {
					for e := range at {
						seed = seed*1664525 + 1013904223
						at[e] = series.Example{Last: r.At(series.Train, int(seed>>8)%r.Len(series.Train)), Target: int(seed>>4) % targets}
					}
					r.GatherColumns(columns, 64, y, at)
				}
			})
		}
	}
}

func BenchmarkColumns(b *testing.B) {
	d := fixture{zone: "Europe/London", interval: time.Hour, start: "2016-01-01", days: 731, seed: 8}.dataset(b)
	f := newFrame(b, d, 1, 1, 0)
	m := d.Meter(0)
	for b.Loop() {
		f.newColumns(m, f.newScaling(m), 0)
	}
}
