package experiment

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"loadstar/internal/textfmt"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/lab/backtest"
	"loadstar/lab/run"
	"loadstar/metric"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// Advising measures how much the meters of a dataset would gain from training together,
// depending on the length of their history. All histories end before the same weeks, on which
// all methods are tested.
type Advising struct {
	Dir      string // folder of the runs
	Dataset  *series.Dataset
	Kernel   *kernel.Set
	Parallel int
	Targets  string // length of the forecast, such as 24h
	Rounds   int
	Progress func(done, of int)
}

// Advice is the result of Advising.
type Advice struct {
	Dataset   string         `json:"dataset"`
	Generated bool           `json:"generated"`
	Targets   string         `json:"targets"`
	TestDays  int            `json:"test_days"`
	Histories []AdviceOfDays `json:"histories"`
}

// AdviceOfDays compares training together with a meter's own options.
type AdviceOfDays struct {
	Days    int `json:"days"`
	Clients int `json:"clients"`
	// Together and Alone are medians of the error relative to last week's load. Alone is the
	// better of a short and a long training by validation loss.
	Together metric.Number `json:"together"`
	Alone    metric.Number `json:"alone"`
	// Simple is the same median for the best baseline; Baseline is its name.
	Simple   metric.Number `json:"simple"`
	Baseline string        `json:"baseline"`
	// Gain is the median over clients of a ratio minus 1. The ratio is the error of training
	// together divided by the lower of the errors of Alone and Simple. A negative gain means
	// that training together is better. Low and High are the bounds of a 95 % confidence
	// interval, which covers the choice of clients.
	Gain metric.Number `json:"gain"`
	Low  metric.Number `json:"gain_low"`
	High metric.Number `json:"gain_high"`
	Won  metric.Number `json:"clients_better"`
	// Bytes and CPU are the cost of the training for a client: the bytes in both directions, and
	// the CPU seconds on this machine.
	Bytes int64         `json:"bytes_per_client"`
	CPU   metric.Number `json:"cpu_seconds_per_client"`
}

const (
	adviceTest       = 28  // days
	adviceValidation = 7   // days
	adviceLeast      = 3   // clients
	adviceMost       = 100 // clients
	adviceShort      = 60  // rounds of the short training alone
)

var adviceDays = []int{14, 28, 91, 364}

// Run trains the methods and compares them. It resumes an interrupted comparison.
func (a *Advising) Run(ctx context.Context) (*Advice, error) {
	var contests []Contest
	var days []int
	for _, n := range adviceDays {
		c, err := a.contest(n)
		if err != nil {
			return nil, err
		}
		if c != nil {
			contests, days = append(contests, *c), append(days, n)
		}
	}
	if len(contests) == 0 {
		return nil, fmt.Errorf("%s has fewer than %d meters with readings of the last %d days, which is too few to estimate the benefit of a federation; forecast with the built-in model (loadstar forecast --data), or collect more readings",
			a.Dataset.Name, adviceLeast, adviceDays[0]+adviceValidation+adviceTest)
	}
	e := &Experiment{Dir: a.Dir, Kernel: a.Kernel, Parallel: a.Parallel, Progress: a.Progress}
	table, err := e.Compare(ctx, contests)
	if err != nil {
		return nil, err
	}
	out := &Advice{Dataset: a.Dataset.Name, Generated: a.Dataset.Generated, Targets: a.Targets, TestDays: adviceTest}
	for i, c := range contests {
		row, err := a.row(c, table[i])
		if err != nil {
			return nil, err
		}
		row.Days = days[i]
		out.Histories = append(out.Histories, row)
	}
	return out, nil
}

// contest returns the comparison for a length of history, or nil if too few meters have such a
// history.
func (a *Advising) contest(days int) (*Contest, error) {
	d := a.Dataset
	span := days + adviceValidation + adviceTest
	_, end := d.Span()
	from := end - int64(span)*24*3600
	var meters []series.Meter
	for i := range d.Len() {
		if m := d.Meter(i); from >= m.Start {
			m = m.Cut(from-(from-m.Start)%d.Seconds(), end-(end-m.Start)%d.Seconds(), d.Seconds())
			present := 0
			for _, v := range m.Load {
				if !series.Missing(v) {
					present++
				}
			}
			if float64(present) > 0.9*float64(len(m.Load)) {
				meters = append(meters, m)
			}
		}
	}
	if len(meters) < adviceLeast {
		return nil, nil
	}
	if n := len(meters); n > adviceMost { // choose evenly spaced meters
		for i := range adviceMost {
			meters[i] = meters[i*n/adviceMost]
		}
		meters = meters[:adviceMost]
	}
	part, err := d.With(meters)
	if err != nil {
		return nil, err
	}
	part.Name = fmt.Sprintf("%s-%dd", d.Name, days)
	c := &Contest{Dataset: part, Baselines: backtest.Default}
	for _, m := range []struct {
		name, algorithm string
		rounds          int
	}{{"together", "fedavg", a.Rounds}, {"alone", "local", a.Rounds}, {"alone-short", "local", min(adviceShort, a.Rounds)}} {
		p, err := a.plan(m.name, m.algorithm, m.rounds, days, part.Interval)
		if err != nil {
			return nil, err
		}
		c.Methods = append(c.Methods, Contestant{Method: m.name, Plans: []*fed.Plan{p}})
	}
	c.Question = c.Methods[0].Plans[0]
	return c, nil
}

func (a *Advising) plan(name, algorithm string, rounds, days int, step time.Duration) (*fed.Plan, error) {
	span := float64(days + adviceValidation + adviceTest)
	text := fmt.Sprintf("name: %s\nmodel: {name: dense, targets: %s, gaps: 0, split: {train: %.6f, validation: %.6f}}\nalgorithm: %s\nrounds: %d\nevaluate: {every: %d, forecasts: 0}\n",
		name, a.Targets, float64(days)/span, float64(adviceValidation)/span, algorithm, rounds, rounds)
	p, err := recipe.Read([]byte(text))
	if err != nil {
		return nil, err
	}
	return recipe.Resolve(p, step)
}

// row compares the methods of a contest, client by client.
func (a *Advising) row(c Contest, table Comparison) (AdviceOfDays, error) {
	errorsOf := func(p *fed.Plan) (map[string]float64, *run.Summary, error) {
		dir := filepath.Join(a.Dir, Trial{Plan: p, Dataset: c.Dataset}.folder())
		rows, err := run.Read[run.Client](dir, "clients")
		if err != nil {
			return nil, nil, err
		}
		s, err := run.ReadSummary(dir)
		all := map[string]float64{}
		for _, r := range rows {
			all[r.Client] = r.RelativeMAE
		}
		return all, s, err
	}
	var (
		all       [3]map[string]float64
		summaries [3]*run.Summary
	)
	for i, m := range c.Methods {
		var err error
		if all[i], summaries[i], err = errorsOf(m.Plans[0]); err != nil {
			return AdviceOfDays{}, err
		}
	}
	alone := 1
	if summaries[2].Course.Last < summaries[1].Course.Last {
		alone = 2
	}
	out := AdviceOfDays{Simple: metric.Number(math.Inf(1))}
	for _, m := range table.Methods[:len(c.Baselines)] {
		if m.Median < out.Simple {
			out.Simple, out.Baseline = m.Median, m.Method
		}
	}
	simple, err := run.Read[run.Baseline](filepath.Join(a.Dir, c.Dataset.Name), "baselines")
	if err != nil {
		return out, err
	}
	best := all[alone]
	out.Alone, out.Together = median(all[alone]), median(all[0])
	if out.Simple < out.Alone {
		best = map[string]float64{}
		for _, b := range simple {
			if b.Method == out.Baseline {
				best[b.Client] = b.RelativeMAE
			}
		}
	}
	var ratios []float64
	won := 0.0
	for i := range c.Dataset.Len() {
		id := c.Dataset.Meter(i).ID
		r := all[0][id] / best[id]
		if _, known := all[0][id]; !known || !(r > 0) || math.IsInf(r, 0) {
			continue
		}
		if ratios = append(ratios, r); r < 1 {
			won++
		}
	}
	out.Clients = len(ratios)
	gain, low, high := bootstrap(ratios)
	out.Gain, out.Low, out.High = metric.Number(gain-1), metric.Number(low-1), metric.Number(high-1)
	out.Won = metric.Number(won / float64(len(ratios)))
	s := summaries[0]
	out.Bytes, out.CPU = (s.Down+s.Up)*int64(s.Rounds), metric.Number(s.Seconds.CPU/float64(max(s.Clients, 1)))
	return out, nil
}

func median(values map[string]float64) metric.Number {
	return metric.NewSpread(slices.Collect(maps.Values(values))).Median
}

// bootstrap returns the median of values, and the bounds that contain 95 % of the medians of
// samples of the same size, drawn with replacement.
func bootstrap(values []float64) (mid, low, high float64) {
	const samples = 2000
	rng := rand.New(rand.NewPCG(1, 2))
	medians := make([]float64, samples)
	one := make([]float64, len(values))
	for i := range medians {
		for k := range one {
			one[k] = values[rng.IntN(len(values))]
		}
		slices.Sort(one)
		medians[i] = quantile(one, 0.5)
	}
	slices.Sort(medians)
	sorted := slices.Sorted(slices.Values(values))
	return quantile(sorted, 0.5), quantile(medians, 0.025), quantile(medians, 0.975)
}

// verdict describes a row in words.
func (h *AdviceOfDays) verdict() string {
	switch {
	case h.High < -0.02:
		return "worth it"
	case h.High < 0:
		return "a little"
	case h.Low > 0:
		return "do not bother: worse"
	}
	return "do not bother: no clear gain"
}

// Print prints the advice as a table and a sentence.
func (a *Advice) Print(w io.Writer) error {
	fmt.Fprintf(w, "%s%s: forecasts of the next %s, tested on the last %d days, errors relative to last week's load\n\n", a.Dataset, textfmt.Synthetic(a.Generated), a.Targets, a.TestDays)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "HISTORY\tCLIENTS\tSIMPLE\tALONE\tTOGETHER\tGAIN\t95 % INTERVAL\tBETTER FOR\tTRAFFIC\tCPU\tVERDICT\t")
	worth := 0
	for _, h := range a.Histories {
		fmt.Fprintf(t, "%d days\t%d\t%.3f %s\t%.3f\t%.3f\t%+.1f %%\t%+.1f to %+.1f\t%.0f %%\t%.0f MB\t%.1f s\t%s\t\n",
			h.Days, h.Clients, h.Simple, h.Baseline, h.Alone, h.Together, 100*h.Gain, 100*h.Low, 100*h.High, 100*h.Won, float64(h.Bytes)/1e6, h.CPU, h.verdict())
		if h.High < 0 {
			worth++
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	sentence := "Training together brings these meters nothing that simple or own forecasts do not: do not bother."
	switch {
	case worth == len(a.Histories):
		sentence = "Training together lowers the error for every length of history that the data has."
	case worth > 0:
		sentence = "Training together lowers the error only for the lengths of history with a negative interval."
	}
	_, err := fmt.Fprintf(w, "\n%s\nGAIN: change of the median client's error against the better of ALONE and SIMPLE. TRAFFIC and CPU: of a client, for one training.\n"+
		"The interval is over the choice of clients, not over seasons. All meters have the same history here; a new meter that joins older ones is another case.\n", sentence)
	return err
}
