package skill

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"loadstar/lab/outlook"
	"loadstar/series"
)

// Uses contains the scores of a method for common uses of forecasts: energies of days, sums and
// peaks. Scores that a method does not have are nil.
type Uses struct {
	Method            string
	Energy, Sum, Peak *outlook.SumScore
}

// Rivals scores other forecasts on the clients and days of a run's forecasts. If peers is a
// folder, the result also contains the scores of boosting, from the dataset's table in that
// folder. If there is no such table and measure is set, these scores are measured and written
// to a new table.
func Rivals(ctx context.Context, d *series.Dataset, s *outlook.Scores, peers string, measure bool) ([]Uses, error) {
	t, err := newTotals(d, s)
	if err != nil {
		return nil, err
	}
	var all []Uses
	for _, name := range []string{"naive-week", "rolling-median", "rolling-mean", "ridge-rich"} {
		r, err := t.rival(name)
		if err != nil {
			return nil, err
		}
		all = append(all, t.score(name, r))
	}
	if peers == "" {
		return all, nil
	}
	path := filepath.Join(peers, d.Name+"-uses.tsv")
	u, err := readUses(path)
	if errors.Is(err, fs.ErrNotExist) && measure {
		if u, err = t.boosting(ctx); err == nil {
			err = writeUses(path, u)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err == nil && (u.Energy.N != all[0].Energy.N || u.Sum.N != all[0].Sum.N) {
		err = fmt.Errorf("%s contains %d days and %d steps of sums, but these forecasts have %d and %d; remove the file and measure again with --peer", path, u.Energy.N, u.Sum.N, all[0].Energy.N, all[0].Sum.N)
	}
	return append(all, u), err
}

func (t *totals) score(method string, r outlook.Rival) Uses {
	u := Uses{Method: method}
	u.Energy, u.Sum, u.Peak = t.scores.Rival(t.data, r)
	return u
}

// boosting fits gradient boosting with scikit-learn. One model forecasts the sum by step with
// the inputs of the model dense. One model forecasts the daily energies of all clients, and
// another their daily peaks.
func (t *totals) boosting(ctx context.Context) (u Uses, err error) {
	dir, err := os.MkdirTemp("", "loadstar-skill-")
	if err != nil {
		return u, err
	}
	defer os.RemoveAll(dir)
	p, err := StartPeer(ctx, Sklearn)
	if err != nil {
		return u, err
	}
	defer p.Stop()
	sum, err := t.boostSum(p, filepath.Join(dir, "sum"))
	if err != nil {
		return u, err
	}
	energy, err := t.boostDays(p, filepath.Join(dir, "energy"), t.energy)
	if err != nil {
		return u, err
	}
	peak, err := t.boostDays(p, filepath.Join(dir, "peak"), t.peak)
	if err != nil {
		return u, err
	}
	return t.score("boosting", outlook.Rival{
		Sum: func(cutoff int64) []float64 { return sum[cutoff] },
		Day: func(client string, cutoff int64) (float64, float64, int) {
			return energy[client][cutoff], peak[client][cutoff], -1
		},
	}), nil
}

// boostSum returns forecasts of the sum by cutoff.
func (t *totals) boostSum(p *Peer, dir string) (map[int64][]float64, error) {
	if err := os.Mkdir(dir, 0o777); err != nil {
		return nil, err
	}
	perDay := t.sum.StepsPerDay()
	frame, err := Options{Dataset: t.sum, Targets: perDay}.frame()
	if err != nil {
		return nil, err
	}
	m := t.sum.Meter(0)
	r := frame.Rows(m)
	var test []series.Example
	for _, cutoff := range t.scores.SumDays {
		for k := range perDay {
			test = append(test, series.Example{Last: int((cutoff-m.Start)/t.sum.Seconds()) - 1, Target: k})
		}
	}
	check := slices.DeleteFunc(examples(r, series.Validation, perDay/4), func(e series.Example) bool { return e.Last+perDay >= test[0].Last })
	for name, at := range map[string][]series.Example{"train": sample(examples(r, series.Train, 1), 20_000), "validation": check, "test": test} {
		if err := WriteSplit(filepath.Join(dir, name), m, r, at); err != nil {
			return nil, err
		}
	}
	q := NewRequest(Sklearn, "absolute_error")
	q.Folders, q.Deviations, q.Inputs = []string{dir}, []float64{r.Scaling().Deviation}, r.Inputs()
	if _, err := p.Fit(q); err != nil {
		return nil, err
	}
	kw, err := readForecasts(dir)
	out := map[int64][]float64{}
	for i, cutoff := range t.scores.SumDays {
		out[cutoff] = kw[i*perDay:][:perDay]
	}
	return out, err
}

// boostDays returns forecasts of daily values by client and cutoff. All clients share a model,
// because a single client has only a few hundred days.
func (t *totals) boostDays(p *Peer, dir string, d *series.Dataset) (map[string]map[int64]float64, error) {
	q := NewRequest(Sklearn, "absolute_error")
	for _, c := range t.scores.Clients {
		i := t.meters[c.ID]
		one := filepath.Join(dir, fmt.Sprint(i))
		if err := os.MkdirAll(one, 0o777); err != nil {
			return nil, err
		}
		m := d.Meter(i)
		cut := len(m.Load) * 8 / 10
		scale := 0.0
		for _, v := range m.Load[:cut] {
			scale += float64(v) / float64(cut)
		}
		step := func(cutoff int64) int { return int((t.localDay(cutoff) - m.Start) / daySeconds) }
		if len(c.Days) == 0 {
			return nil, fmt.Errorf("meter %s has no days to score", c.ID)
		}
		var test []int
		for _, cutoff := range c.Days {
			test = append(test, step(cutoff))
		}
		split := map[string][]int{"test": test}
		for at := 28; at < test[0]; at++ {
			name := "train"
			if at >= cut {
				name = "validation"
			}
			split[name] = append(split[name], at)
		}
		for name, days := range split {
			var x, y, kw []float32
			for _, at := range days {
				for _, v := range t.dayInputs(i, at, d == t.peak, scale) {
					x = append(x, float32(v))
				}
				y, kw = append(y, float32(float64(m.Load[at])/scale)), append(kw, m.Load[at])
			}
			q.Inputs = len(x) / max(len(days), 1)
			for kind, v := range map[string][]float32{"x": x, "y": y, "kw": kw, "zero": make([]float32, len(kw))} {
				b, err := binary.Append(nil, binary.LittleEndian, v)
				if err == nil {
					err = os.WriteFile(filepath.Join(one, name+"."+kind), b, 0o666)
				}
				if err != nil {
					return nil, err
				}
			}
		}
		q.Folders, q.Deviations = append(q.Folders, one), append(q.Deviations, scale)
	}
	if _, err := p.Fit(q); err != nil {
		return nil, err
	}
	out := map[string]map[int64]float64{}
	for k, c := range t.scores.Clients {
		values, err := readForecasts(q.Folders[k])
		if err != nil {
			return nil, err
		}
		out[c.ID] = map[int64]float64{}
		for i, cutoff := range c.Days {
			out[c.ID][cutoff] = values[i]
		}
	}
	return out, nil
}

// dayInputs returns the inputs for a day's energy or peak of client i: the energies and peaks
// of earlier days, the calendar and the temperature. Values are relative to scale, in the unit
// of the forecast quantity.
func (t *totals) dayInputs(i, at int, peak bool, scale float64) []float64 {
	energy, top := t.energy.Meter(i), t.peak.Meter(i)
	own, other := energy.Load, top.Load
	if peak {
		own, other = other, own
	}
	var x []float64
	for _, lag := range []int{1, 2, 3, 4, 5, 6, 7, 14, 21, 28} {
		x = append(x, float64(own[at-lag])/scale)
	}
	for _, n := range []int{7, 28} {
		last := slices.Sorted(slices.Values(own[at-n : at]))
		sum := 0.0
		for _, v := range last {
			sum += float64(v)
		}
		x = append(x, sum/float64(n)/scale, float64(last[n/2])/scale, float64(last[0])/scale, float64(last[n-1])/scale)
	}
	x = append(x, float64(other[at-1])/scale, float64(other[at-7])/scale)
	day := energy.Start + int64(at)*daySeconds
	date := time.Unix(day, 0).UTC()
	season := 2 * math.Pi * float64(date.YearDay()) / 365.25
	x = append(x, float64(date.Weekday()), math.Sin(season), math.Cos(season))
	for _, when := range []int64{day, day - daySeconds} {
		w, ok := t.weather[when]
		if !ok {
			w = [3]float64{math.NaN(), math.NaN(), math.NaN()}
		}
		x = append(x, w[:]...)
	}
	return x
}

// readForecasts reads the peer's forecasts for the test rows.
func readForecasts(dir string) ([]float64, error) {
	b, err := os.ReadFile(filepath.Join(dir, "test.p"))
	if err != nil {
		return nil, err
	}
	out := make([]float64, len(b)/4)
	for i := range out {
		out[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
	}
	return out, nil
}

const usesColumns = "quantity\tn\tclients\tmae\trelative_mae\trelative_mae_mean\tbias"

func writeUses(path string, u Uses) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# scikit-learn's boosting with absolute loss, fitted to the series itself\n%s\n", usesColumns)
	for _, q := range u.quantities() {
		s := *q.score
		fmt.Fprintf(&b, "%s\t%d\t%d\t%.7g\t%.7g\t%.7g\t%.7g\n", q.name, s.N, s.Clients, s.MAE, s.RelativeMAE, s.RelativeMean, s.Bias)
	}
	return os.WriteFile(path, []byte(b.String()), 0o666)
}

func readUses(path string) (Uses, error) {
	u := Uses{Method: "boosting"}
	text, err := os.ReadFile(path)
	if err != nil {
		return u, err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for k, q := range u.quantities() {
		var name string
		s := &outlook.SumScore{}
		if len(lines) > k+2 {
			_, err = fmt.Sscan(lines[k+2], &name, &s.N, &s.Clients, &s.MAE, &s.RelativeMAE, &s.RelativeMean, &s.Bias)
		}
		if err != nil || name != q.name {
			return u, fmt.Errorf("%s: no line of %s with the columns %s; remove the file and measure again with --peer", path, q.name, strings.ReplaceAll(usesColumns, "\t", ", "))
		}
		*q.score = s
	}
	return u, nil
}

type quantity struct {
	name  string
	score **outlook.SumScore
}

func (u *Uses) quantities() []quantity {
	return []quantity{{"energy", &u.Energy}, {"sum", &u.Sum}, {"peak", &u.Peak}}
}
