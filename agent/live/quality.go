package live

import (
	"fmt"
	"math"
	"slices"
	"time"

	"loadstar/series"
	"loadstar/series/quality"
)

const (
	// checkedDays is the span that is checked, and recentDays the part of it in which a
	// finding counts.
	checkedDays, recentDays = 63, 7
	// A wrong unit changes low and high loads by the same factor, which is at least
	// unitFactor. Their logarithms differ by at most unitEven of the factor's.
	unitFactor, unitEven = 3.0, 0.25
	// unitDays is the number of days before that are compared.
	unitDays = 28
)

// blockingCodes are the findings that forbid learning from the readings: what they show is
// not the client's use of energy.
var blockingCodes = []string{"unit-jump", "flat", "zeros-as-gaps", "clock-shift"}

// Quality returns a report on a client's readings.
func (s *Service) Quality(client string) (QualityReport, error) {
	x, err := s.Client(client)
	if err != nil {
		return QualityReport{}, err
	}
	if x.Members != nil {
		return QualityReport{}, fmt.Errorf("%s is a group; ask for its members: %w", client, ErrUnknown)
	}
	first, end, ok, err := s.c.Store.Span(client)
	if err != nil || !ok {
		return QualityReport{}, err
	}
	r := QualityReport{From: first, To: end}
	cutoff := s.floor(s.c.Now().Unix())
	from := max(first, cutoff-28*day)
	if from < cutoff {
		m, err := s.c.Store.Load(client, from, cutoff)
		if err != nil {
			return r, err
		}
		n := 0
		for _, v := range m.Load {
			if series.Missing(v) {
				n++
			}
		}
		r.Missing = float64(n) / float64(len(m.Load))
	}
	r.Findings, err = s.findings(client, cutoff)
	return r, err
}

// findings checks the last weeks of a client's readings.
func (s *Service) findings(client string, cutoff int64) ([]Finding, error) {
	first, end, ok, err := s.c.Store.Span(client)
	if err != nil || !ok {
		return nil, err
	}
	from := max(first, s.floor(cutoff-checkedDays*day))
	end = min(end, cutoff)
	if end-from < 2*day {
		return nil, nil
	}
	d, err := s.c.Store.Dataset(s.c.Site, []string{client}, from, end, 1)
	if err != nil {
		return nil, err
	}
	var out []Finding
	if f := unitJump(d.Meter(0), d.StepsPerDay()); f != nil {
		out = append(out, *f)
	}
	checker, err := quality.NewChecker(d, quality.Plan{Lookback: 1, Horizon: 1, MinDays: 1, Cells: 1})
	if err != nil {
		return nil, err
	}
	recent := time.Unix(cutoff-recentDays*day, 0)
	for _, f := range checker.Meter(0).Findings {
		code := string(f.Code)
		if !slices.Contains(blockingCodes, code) || code == "unit-jump" && len(out) > 0 {
			continue
		}
		if slices.ContainsFunc(f.Where, func(w quality.Where) bool {
			return w.Time.Add(time.Duration(w.Steps) * s.c.Site.Interval).After(recent)
		}) && f.Severity > quality.Info {
			out = append(out, Finding{Code: code, Message: f.Message, Advice: f.Advice})
		}
	}
	return out, nil
}

// unitJump compares the loads of the last day with those of the four weeks before. The check
// of whole series ([quality]) needs four weeks after a jump to be sure that it lasts; a
// client must not learn from such readings until then.
func unitJump(m series.Meter, perDay int) *Finding {
	n := len(m.Load) / perDay
	if n < 8 {
		return nil
	}
	end := len(m.Load)
	span := func(back int) (low, high float64, ok bool) { // of the day that ends so many days ago
		var v []float64
		for _, x := range m.Load[end-(back+1)*perDay : end-back*perDay] {
			if !series.Missing(x) {
				v = append(v, float64(x))
			}
		}
		if 4*len(v) < 3*perDay {
			return 0, 0, false
		}
		slices.Sort(v)
		return v[len(v)/4], v[3*len(v)/4], true
	}
	for recent := range min(recentDays, n-7) {
		low, high, ok := span(recent)
		if !ok || low <= 0 {
			continue
		}
		var lows, highs []float64
		for back := recent + 1; back < min(recent+1+unitDays, n); back++ {
			if l, h, ok := span(back); ok {
				lows, highs = append(lows, l), append(highs, h)
			}
		}
		if len(lows) < 7 {
			return nil
		}
		slices.Sort(lows)
		slices.Sort(highs)
		a, b := lows[len(lows)/2], highs[len(highs)/2]
		if a <= 0 {
			continue
		}
		fl, fh := math.Log(low/a), math.Log(high/b)
		if size := math.Abs(fh); size > math.Log(unitFactor) && math.Abs(fl-fh) < unitEven*size {
			return &Finding{
				Code:    "unit-jump",
				Message: fmt.Sprintf("Low and high loads are %.3g times those of the weeks before.", math.Exp(fh)),
				Advice:  "Check the unit of the meter's values and its transformer ratio. The client's model is not adapted until this is resolved.",
			}
		}
	}
	return nil
}
