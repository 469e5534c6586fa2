package experiment

import (
	"maps"
	"math"
	"path/filepath"
	"slices"

	"loadstar/lab/run"
	"loadstar/metric"
)

// forecastErrors contains the errors of a run's test forecasts.
type forecastErrors struct {
	byClient map[string][]float64 // in chronological order
	bias     float64              // mean of forecast minus actual load over all targets
}

// test compares the forecasts of the method in Against with those of each other method. For
// each seed, it computes the shares of clients for which the forecasts of Against are better,
// worse, or not significantly different. To show how often differences are due to chance alone,
// it also compares the seeds of each method with each other. For each pair of seeds, dm_chance
// contains the share of clients with a significant difference.
func (l *Lab) test(e *Experiment, done []*run.Summary, p *Part, rows []row) error {
	if p.Against == "" {
		return nil
	}
	read := func(r row) ([]*forecastErrors, error) {
		all := make([]*forecastErrors, len(r.trials))
		for i, t := range r.trials {
			if done[t] == nil {
				continue // a weight or a loss became infinite
			}
			var err error
			if all[i], err = l.errors(e.Trials[t]); err != nil {
				return nil, err
			}
		}
		return all, nil
	}
	for k, base := range rows {
		if base.Part != p.Name || base.Method != p.Against || len(base.trials) == 0 {
			continue
		}
		ours, err := read(base)
		if err != nil {
			return err
		}
		for i, r := range rows {
			if r.Part != p.Name || r.Dataset != base.Dataset || len(r.trials) == 0 || !slices.Equal(r.At, base.At) {
				continue
			}
			theirs := ours
			if i != k {
				if theirs, err = read(r); err != nil {
					return err
				}
				maps.Copy(r.Figures, significance(ours, theirs))
			}
			bias := make(Figure, len(theirs))
			for seed, t := range theirs {
				bias[seed] = math.NaN()
				if t != nil {
					bias[seed] = t.bias
				}
			}
			r.Figures["bias"] = bias
			if f := chance(theirs); len(f) > 0 {
				r.Figures["dm_chance"] = f
			}
		}
	}
	return nil
}

// significance returns, by seed, the shares of clients for which our forecasts are better,
// worse or not significantly different. They are NaN for a seed if one of its runs failed.
func significance(ours, theirs []*forecastErrors) map[string]Figure {
	n := min(len(ours), len(theirs))
	better, worse, same := make(Figure, n), make(Figure, n), make(Figure, n)
	for seed := range n {
		better[seed], worse[seed], same[seed] = math.NaN(), math.NaN(), math.NaN()
		if ours[seed] != nil && theirs[seed] != nil {
			b, w, s := dieboldMariano(ours[seed].byClient, theirs[seed].byClient)
			all := b + w + s // NaN without clients
			better[seed], worse[seed], same[seed] = b/all, w/all, s/all
		}
	}
	return map[string]Figure{"dm_better": better, "dm_worse": worse, "dm_same": same}
}

// chance returns the share of clients with a significant difference between two seeds of
// the same method, for each pair of seeds.
func chance(runs []*forecastErrors) (f Figure) {
	for i, a := range runs {
		for _, b := range runs[:i] {
			if a != nil && b != nil {
				better, worse, same := dieboldMariano(a.byClient, b.byClient)
				f = append(f, (better+worse)/(better+worse+same))
			}
		}
	}
	return f
}

// dieboldMariano counts the clients for which the errors in ours are significantly smaller
// than those in theirs, significantly larger, or not significantly different.
func dieboldMariano(ours, theirs map[string][]float64) (better, worse, same float64) {
	for client, e := range ours {
		c, err := metric.DieboldMariano(e, theirs[client], metric.Squared)
		switch {
		case err != nil || !c.Significant():
			same++ // even if the statistic is undefined
		case c.Statistic < 0:
			better++
		default:
			worse++
		}
	}
	return better, worse, same
}

// errors returns the errors of a run's forecasts. A forecast of several steps counts as one
// error, the root mean square over its steps, because errors of the same forecast are not
// independent. It returns nil if the run stored no forecasts.
func (l *Lab) errors(t Trial) (*forecastErrors, error) {
	rows, err := run.Read[run.Forecast](filepath.Join(l.Dir, t.folder()), "forecasts")
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	out := &forecastErrors{byClient: map[string][]float64{}}
	total, targets := 0.0, 0.0
	for len(rows) > 0 {
		first, sum, n := rows[0], 0.0, 0.0
		for len(rows) > 0 && rows[0].Client == first.Client && rows[0].Cutoff.Equal(first.Cutoff) {
			if e := rows[0].Forecast - rows[0].Actual; !math.IsNaN(e) {
				sum, n = sum+e*e, n+1
				total += e
			}
			rows = rows[1:]
		}
		if n > 0 {
			out.byClient[first.Client] = append(out.byClient[first.Client], math.Sqrt(sum/n))
			targets += n
		}
	}
	out.bias = total / targets
	return out, nil
}
