package terms

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/fed/recipe"
	"loadstar/fed/setup"
	"loadstar/internal/testkit"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// meters returns a dataset whose readings the test may change before NewOwnData.
func meters(t *testing.T, n, hours int, interval time.Duration) (*series.Dataset, []series.Meter) {
	t.Helper()
	all := make([]series.Meter, n)
	for i := range all {
		load := make([]float32, hours)
		for k := range load {
			load[k] = float32(2 + math.Sin(float64(k)/4+float64(i)))
		}
		all[i] = series.Meter{ID: fmt.Sprintf("own-%d", i), Start: 1_500_000_000 / 3600 * 3600, Load: load, Static: []float32{float32(i)}}
	}
	d, err := series.NewDataset(series.Dataset{
		Name: "a name", Interval: interval, Clock: time.UTC, StaticNames: []string{"floor_area"},
		Weather: series.Weather{Start: 1_500_000_000 / 3600 * 3600, Names: []string{"temperature"}, Columns: [][]float32{make([]float32, hours)}},
	}, all)
	if err != nil {
		t.Fatal(err)
	}
	return d, all
}

// TestFingerprint checks that any change to the data changes the fingerprint, that the order of
// meters and the dataset's name do not affect it, and that the fingerprint reveals no names.
func TestFingerprint(t *testing.T) {
	d, _ := meters(t, 3, 200, time.Hour)
	want := NewOwnData(d, nil).Fingerprint()
	if again, _ := meters(t, 3, 200, time.Hour); NewOwnData(again, nil).Fingerprint() != want {
		t.Error("equal data has another fingerprint")
	}
	if !strings.HasPrefix(want, "3 meters every 1h0m0s, ") || strings.Contains(want, "name") {
		t.Errorf("the fingerprint is %q", want)
	}
	if (*OwnData)(nil).Fingerprint() != "" {
		t.Error("no data has a fingerprint")
	}
	same, all := meters(t, 3, 200, time.Hour)
	same.Name = "another"
	all = slices.Clone(all)
	slices.Reverse(all)
	same, err := same.With(all)
	if err != nil {
		t.Fatal(err)
	}
	if NewOwnData(same, nil).Fingerprint() != want {
		t.Error("the order of meters or the name has changed the fingerprint")
	}
	for what, change := range map[string]func(d *series.Dataset, all []series.Meter){
		"a reading":   func(_ *series.Dataset, all []series.Meter) { all[1].Load[57] += 1e-3 },
		"a gap":       func(_ *series.Dataset, all []series.Meter) { all[1].Load[57] = float32(math.NaN()) },
		"a start":     func(_ *series.Dataset, all []series.Meter) { all[2].Start += 3600 },
		"a name":      func(_ *series.Dataset, all []series.Meter) { all[0].ID = "own-x" },
		"a static":    func(_ *series.Dataset, all []series.Meter) { all[0].Static[0] = 9 },
		"the weather": func(d *series.Dataset, _ []series.Meter) { d.Weather.Columns[0][3] = 1 },
		"the clock":   func(d *series.Dataset, _ []series.Meter) { d.Clock = time.FixedZone("x", 3600) },
	} {
		d, all := meters(t, 3, 200, time.Hour)
		change(d, all)
		changed, err := d.With(all)
		if err != nil {
			t.Fatal(err)
		}
		if NewOwnData(changed, nil).Fingerprint() == want {
			t.Errorf("%s has changed, but not the fingerprint", what)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	hourly, _ := meters(t, 2, 300, time.Hour)
	half, _ := meters(t, 2, 300, 30*time.Minute)
	short, _ := meters(t, 1, 20, time.Hour)
	const model = "algorithm: fedsim\nmodel: {name: fekri2023, lookback: 2, targets: 1, inputs: [load%s]}\nevaluate: {every: 0}\nserver: {batch: %d}\n"
	for name, c := range map[string]struct {
		data  *series.Dataset
		more  string
		batch int
		want  string
	}{
		"good":            {hourly, ", temperature", 64, ""},
		"none":            {nil, "", 64, "needs readings on the server, which has none; start every coordinator with rounds.data in server.yaml"},
		"interval":        {half, "", 64, "the server's readings are 30m0s apart and those of the clients 1h0m0s"},
		"input":           {hourly, ", wind", 64, "the server's data does not fit the plan"},
		"few examples":    {short, "", 64, "complete training examples, fewer than a batch of 64"},
		"small batch":     {hourly, "", 15, "server.batch is 15; in a fleet it must be at least 16"},
		"too large batch": {hourly, "", 1 << 30, "need more than 2048 MB in the coordinator"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := recipe.Read([]byte(fmt.Sprintf(model, c.more, c.batch)))
			if err != nil {
				t.Fatal(err)
			}
			problem, err := recipe.Frame(p, nil)
			if err != nil {
				t.Fatal(err)
			}
			s, err := setup.New(p, problem, 10)
			if err != nil {
				t.Fatal(err)
			}
			var d *OwnData
			if c.data != nil {
				d = NewOwnData(c.data, k)
			}
			_, err = d.Open(s, time.Hour)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestFormat(t *testing.T) {
	kept := []float32{1, -2.5, 0, float32(math.Inf(1))}
	testkit.CheckGolden(t, "kept", format, EncodeKept(kept), func(b []byte) error {
		got, err := DecodeKept(b)
		if err == nil && !slices.Equal(got, kept) {
			err = fmt.Errorf("decoded %v, want %v", got, kept)
		}
		return err
	})
}
