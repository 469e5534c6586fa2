package experiment

import (
	"errors"
	"fmt"
	"path/filepath"

	"loadstar/lab/run"
	"loadstar/metric"
)

// Paired compares the test errors of two runs client by client, on the same days. A median
// over clients of the errors themselves depends on which clients a dataset has; ratios of
// the same client do not.
type Paired struct {
	Clients int `json:"clients"`
	// Ratio is the median over clients of the first run's MAE divided by the second's.
	Ratio metric.Number `json:"ratio"`
	// Won is the share of clients for which the first run has the lower MAE.
	Won metric.Number `json:"won"`
	// Better and Worse are the shares of clients for which the first run's daily errors
	// are significantly lower or higher, by a Diebold-Mariano test at the 5 % level.
	Better metric.Number `json:"significantly_better"`
	Worse  metric.Number `json:"significantly_worse"`
}

// Pair compares the finished runs in two folders. It returns an error if they did not score
// the same windows.
func Pair(first, second string) (Paired, error) {
	a, err := readErrors(first)
	if err != nil {
		return Paired{}, err
	}
	b, err := readErrors(second)
	if err != nil {
		return Paired{}, err
	}
	p := Paired{Clients: len(a)}
	differ := func(format string, args ...any) (Paired, error) {
		return Paired{}, fmt.Errorf("%s and %s cannot be compared, because they scored different windows: %s", first, second, fmt.Sprintf(format, args...))
	}
	if len(a) != len(b) {
		return differ("%d and %d clients", len(a), len(b))
	}
	var won, better, worse int
	ratios := make([]float64, len(a))
	for i := range a {
		if a[i].client != b[i].client || len(a[i].days) != len(b[i].days) {
			return differ("client %s has %d days, and %s has %d", a[i].client, len(a[i].days), b[i].client, len(b[i].days))
		}
		for k, x := range a[i].days {
			if y := b[i].days[k]; x.Day != y.Day || x.Targets != y.Targets {
				return differ("client %s has %d targets on %s, and %d on %s", x.Client, x.Targets, x.Day, y.Targets, y.Day)
			}
		}
		mine, theirs := a[i].mae(), b[i].mae()
		ratios[i] = mine / theirs
		if mine < theirs {
			won++
		}
		c, err := metric.DieboldMariano(a[i].daily(), b[i].daily(), metric.Absolute)
		switch {
		case errors.Is(err, metric.ErrVariance): // too few days, or the same errors
		case err != nil:
			return Paired{}, fmt.Errorf("client %s: %w", a[i].client, err)
		case c.Significant() && c.Statistic < 0:
			better++
		case c.Significant():
			worse++
		}
	}
	share := func(n int) metric.Number { return metric.Number(float64(n) / float64(len(a))) }
	p.Ratio, p.Won, p.Better, p.Worse = metric.NewSpread(ratios).Median, share(won), share(better), share(worse)
	return p, nil
}

// clientErrors has the daily errors of one client, in chronological order.
type clientErrors struct {
	client string
	days   []run.Error
}

// readErrors reads the errors table of a run, by client.
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
		m.Won += p.Won / n
		m.Better += p.Better / n
		m.Worse += p.Worse / n
	}
	return m
}
