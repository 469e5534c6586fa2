package sim

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"loadstar/internal/testkit"
	"loadstar/series"
	"loadstar/series/read"
)

// garbage is a run in which five clients have impossible readings.
type garbage struct {
	Data string
	Kind string // clean; kept, which trains on garbage; or left-out, where Dataset.Plausible removes it
	Seed int
	// Rounds is the number of rounds of the plan day-ahead.
	Rounds int
}

// dirtied contains the mean NMAE of the five clients and of the others on test data, which is
// clean.
type dirtied struct{ Five, Others float64 }

const dirtyClients, garbageShare = 5, 0.03

// plant replaces 3 % of the readings, half of them one by one, and the others for whole days. The
// test split and the five weeks before it stay clean, so that errors are comparable.
func plant(load []float32, perDay int, draw *rand.Rand) {
	n := len(load)*9/10 - 35*perDay
	spoil := func(first, length, kind int) {
		for i := first; i < min(first+length, n); i++ {
			switch kind {
			case 0:
				load[i] = 0
			case 1:
				load[i] *= 100
			case 2:
				load[i] *= 10_000
			case 3:
				load[i] = 1e6
			}
		}
	}
	for i := range n {
		if draw.Float64() < garbageShare/2 {
			spoil(i, 1, draw.IntN(4))
		}
		if draw.Float64() < garbageShare/2/float64(perDay) {
			spoil(i, perDay, draw.IntN(4))
		}
	}
}

// dirtyData returns the first 42 clients of a dataset, and the names of those with garbage.
func (g garbage) dirtyData(t *testing.T) (*series.Dataset, []string) {
	t.Helper()
	path, root := testkit.Dataset(t, g.Data)
	desc, err := read.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	d, err := read.Open(desc, root)
	if err == nil {
		d, err = d.First(42)
	}
	if err != nil {
		t.Fatal(err)
	}
	draw := rand.New(rand.NewPCG(uint64(g.Seed), 29))
	var meters []series.Meter
	var five []string
	for i := range d.Len() {
		m := d.Meter(i)
		if i%(d.Len()/dirtyClients) == 3 && len(five) < dirtyClients {
			five = append(five, m.ID)
			if g.Kind != "clean" {
				m.Load = slices.Clone(m.Load)
				plant(m.Load, d.StepsPerDay(), draw)
			}
		}
		meters = append(meters, m)
	}
	if d, err = d.With(meters); err == nil && g.Kind != "kept" {
		d, _, err = d.Plausible()
	}
	if err != nil {
		t.Fatal(err)
	}
	return d, five
}

func (g garbage) run(t *testing.T, b *runner) dirtied {
	t.Helper()
	d, five := g.dirtyData(t)
	s := settings{
		"name": "garbage", "seed": g.Seed, "algorithm": "fedavg", "model.name": "dense", "model.targets": "24h", "rounds": g.Rounds,
		"evaluate.every": g.Rounds - 1, "evaluate.forecasts": 0,
	}
	o := b.run(t, s, d, 2)
	var of [2][]float64
	for _, row := range rows(t, o.files["clients.csv"]) {
		x, err := strconv.ParseFloat(row["nmae"], 64)
		if err != nil {
			t.Fatal(err)
		}
		which := 1
		if slices.Contains(five, row["unique_id"]) {
			which = 0
		}
		of[which] = append(of[which], x)
	}
	if len(of[0]) != dirtyClients {
		t.Errorf("%+v: %d clients with garbage were scored", g, len(of[0]))
	}
	return dirtied{average(of[0]), average(of[1])}
}

// TestGarbage measures how 3 % of impossible readings in five of 42 clients affect all clients,
// with and without the removal of these readings. It prints the table of decision 55.
func TestGarbage(t *testing.T) {
	if !testkit.Long() {
		t.Skip("trains for half an hour")
	}
	const rounds, seeds = 160, 3
	b := newRunner(t)
	done := map[garbage]dirtied{} // LOADSTAR_RESULTS keeps finished runs
	var out *os.File
	if path := os.Getenv("LOADSTAR_RESULTS"); path != "" {
		var err error
		if out, err = os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600); err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var x struct {
				Run    garbage
				Result dirtied
			}
			if err := json.Unmarshal(lines.Bytes(), &x); err != nil {
				t.Fatal(err)
			}
			done[x.Run] = x.Result
		}
	}
	var table strings.Builder
	fmt.Fprintf(&table, "\n| group, clients | clean | garbage trained on | garbage left out |\n|---|---|---|---|\n")
	for _, data := range []string{"hog-core42", "sgsc"} {
		mean := map[string]dirtied{}
		for _, kind := range []string{"clean", "kept", "left-out"} {
			var five, others []float64
			for seed := range seeds {
				g := garbage{data, kind, seed + 1, rounds}
				x, ok := done[g]
				if !ok {
					x = g.run(t, b)
					if out != nil {
						if err := json.NewEncoder(out).Encode(map[string]any{"Run": g, "Result": x}); err != nil {
							t.Fatal(err)
						}
					}
				}
				t.Logf("%+v: %+v", g, x)
				five, others = append(five, x.Five), append(others, x.Others)
			}
			mean[kind] = dirtied{average(five), average(others)}
		}
		clean, kept, left := mean["clean"], mean["kept"], mean["left-out"]
		more := func(x, base float64) string { return fmt.Sprintf("%.4f (%+.1f %%)", x, 100*(x/base-1)) }
		fmt.Fprintf(&table, "| %s, the others | %.4f | %s | %s |\n", data, clean.Others, more(kept.Others, clean.Others), more(left.Others, clean.Others))
		fmt.Fprintf(&table, "| %s, the five | %.4f | %s | %s |\n", data, clean.Five, more(kept.Five, clean.Five), more(left.Five, clean.Five))
		if left.Others > 1.01*clean.Others || left.Five > 1.05*clean.Five {
			t.Errorf("%s: the others are %s, the five %s; want at most +1 %% and +5 %%", data, more(left.Others, clean.Others), more(left.Five, clean.Five))
		}
	}
	t.Log("mean NMAE on clean test data, three seeds\n" + table.String())
}
