package experiment

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"

	"loadstar/lab/run"
	"loadstar/metric"
)

// Paired compares the test errors of two runs client by client, on the same days. The median of
// the errors themselves depends on which clients the dataset contains. The ratio of two errors
// of the same client does not.
type Paired struct {
	Clients int `json:"clients"`
	// Ratio is the median over clients of the first run's MAE divided by the second's.
	Ratio metric.Number `json:"ratio"`
	// Low and High are the bounds of a 95 % confidence interval of Ratio for other clients like
	// these. The interval says nothing about other days.
	Low  metric.Number `json:"ratio_low"`
	High metric.Number `json:"ratio_high"`
	// Won is the share of clients for which the first run has the lower MAE.
	Won metric.Number `json:"won"`
	// Better and Worse are the shares of clients for which the first run's daily errors are
	// significantly lower or higher, according to a Diebold-Mariano test at the 5 % level.
	Better metric.Number `json:"significantly_better"`
	Worse  metric.Number `json:"significantly_worse"`
	// Uncorrected is the ratio if the first run's forecasts are not corrected by their
	// latest errors. It is set only if the second method has no such correction.
	Uncorrected metric.Number `json:"ratio_uncorrected,omitempty"`
}

// pairErrors compares two methods on the clients and days that both have. It ignores days on
// which they scored different numbers of targets.
func pairErrors(a, b []clientErrors) (Paired, error) {
	var won, better, worse int
	var ratios []float64
	for i, k := 0, 0; i < len(a) && k < len(b); {
		switch c := strings.Compare(a[i].client, b[k].client); {
		case c < 0:
			i++
			continue
		case c > 0:
			k++
			continue
		}
		first, second := common(a[i], b[k])
		i, k = i+1, k+1
		if len(first.days) == 0 {
			continue
		}
		mine, theirs := first.mae(), second.mae()
		ratios = append(ratios, mine/theirs)
		if mine < theirs {
			won++
		}
		c, err := metric.DieboldMariano(first.daily(), second.daily(), metric.Absolute)
		switch {
		case errors.Is(err, metric.ErrVariance): // there are too few days, or the errors are equal
		case err != nil:
			return Paired{}, fmt.Errorf("client %s: %w", first.client, err)
		case c.Significant() && c.Statistic < 0:
			better++
		case c.Significant():
			worse++
		}
	}
	if len(ratios) == 0 {
		return Paired{}, errors.New("the methods have no day in common on which they scored the same number of targets")
	}
	share := func(n int) metric.Number { return metric.Number(float64(n) / float64(len(ratios))) }
	p := Paired{Clients: len(ratios), Ratio: metric.NewSpread(ratios).Median, Won: share(won), Better: share(better), Worse: share(worse)}
	p.Low, p.High = interval(ratios)
	return p, nil
}

// resamples is the number of bootstrap samples of clients from which an interval is computed.
const resamples = 2000

// interval returns a 95 % bootstrap interval of the median of the clients' ratios. With one
// client, the width of the interval is 0.
func interval(ratios []float64) (low, high metric.Number) {
	random := rand.New(rand.NewPCG(1, uint64(len(ratios))))
	medians, one := make([]float64, resamples), make([]float64, len(ratios))
	for i := range medians {
		for k := range one {
			one[k] = ratios[random.IntN(len(ratios))]
		}
		slices.Sort(one)
		medians[i] = (one[(len(one)-1)/2] + one[len(one)/2]) / 2
	}
	slices.Sort(medians)
	return metric.Number(medians[resamples/40]), metric.Number(medians[resamples-1-resamples/40])
}

// common returns the days on which both methods scored the same number of targets.
func common(a, b clientErrors) (first, second clientErrors) {
	first.client, second.client = a.client, b.client
	for i, k := 0, 0; i < len(a.days) && k < len(b.days); {
		x, y := a.days[i], b.days[k]
		if x.Day == y.Day && x.Targets == y.Targets {
			first.days, second.days = append(first.days, x), append(second.days, y)
		}
		if x.Day <= y.Day {
			i++
		}
		if y.Day <= x.Day {
			k++
		}
	}
	return first, second
}

// clientErrors contains the daily errors of one client, in chronological order.
type clientErrors struct {
	client string
	days   []run.Error
}

func readErrors(dir string) ([]clientErrors, error) {
	rows, err := run.Read[run.Error](dir, "errors")
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("%s has no errors by day: the run is not finished, or it has no test split", filepath.Join(dir, "errors.csv"))
	}
	var all []clientErrors
	for from := 0; from < len(rows); {
		to := from + 1
		for to < len(rows) && rows[to].Client == rows[from].Client {
			to++
		}
		all = append(all, clientErrors{rows[from].Client, rows[from:to]})
		from = to
	}
	return all, nil
}

// mae returns the mean absolute error over all targets.
func (c *clientErrors) mae() float64 {
	sum, n := 0.0, 0
	for _, d := range c.days {
		sum += float64(d.MAE * float64(d.Targets))
		n += d.Targets
	}
	return sum / float64(n)
}

// daily returns the mean absolute error of each day.
func (c *clientErrors) daily() []float64 {
	all := make([]float64, len(c.days))
	for i, d := range c.days {
		all[i] = d.MAE
	}
	return all
}

// paired returns the mean of the comparisons of several pairs of runs.
func paired(pairs []Paired) Paired {
	var m Paired
	n := metric.Number(len(pairs))
	for _, p := range pairs {
		m.Clients = p.Clients
		m.Ratio += p.Ratio / n
		m.Low += p.Low / n
		m.High += p.High / n
		m.Won += p.Won / n
		m.Better += p.Better / n
		m.Worse += p.Worse / n
		m.Uncorrected += p.Uncorrected / n
	}
	return m
}
