package issue

import (
	"math"
	"slices"

	"loadstar/forecast/calibrate"
)

// Peak is a forecast of the highest load in the 24 hours after a cutoff. It is a separate
// forecast, because the highest of many medians is far below the median of the highest load.
type Peak struct {
	// Time is the start of the step that most likely has the highest load, in Unix seconds, or
	// 0.
	Time int64
	// P10, P50 and P90 are in kW, or NaN if there is no forecast.
	P10, P50, P90 float64
}

// deviations is the distance between P90 and the median of a normal distribution, in standard
// deviations.
const deviations = 1.2815515655446004

// Above returns the probability that the peak is above a limit, or NaN. On each side of the
// median, it uses a normal distribution through the quantiles.
func (p Peak) Above(limit float64) float64 {
	spread := p.P90 - p.P50
	if limit < p.P50 {
		spread = p.P50 - p.P10
	}
	switch {
	case math.IsNaN(spread):
		return math.NaN()
	case spread <= 0 && limit < p.P50:
		return 1
	case spread <= 0:
		return 0
	}
	return 0.5 * math.Erfc((limit-p.P50)/spread*deviations/math.Sqrt2)
}

// peakWeights are the weights of the inputs to peak forecasts, for P10, P50 and P90. They were
// determined by a quantile regression on the validation days of three groups of homes, scaled
// by client (see docs/adr/0050-means-beside-medians.md). For clients that behave differently,
// the tracker blends the forecasts with the highest median, which is accurate for buildings.
var peakWeights = [3][11]float64{
	{0.46, -0.06, 0.56, -0.02, -0.02, -0.01, 0, -0.02, 0.07, 0.15, -0.03},
	{0.18, 0.06, 0.56, -0.32, 0.09, -0.01, 0.03, 0, 0.35, 0.22, -0.02},
	{-0.21, 0.14, 0.18, -0.18, 0.24, -0.07, 0.05, 0.04, -0.87, 1.81, 0.20},
}

// peakDays is the number of days whose peaks are inputs. leastPeakDays is the minimum number of
// complete days among them.
const peakDays, leastPeakDays = 28, 7

func (s *State) peakConfig() calibrate.Config {
	return calibrate.Config{Levels: meanLevels[:], Point: 1, Horizon: 1, Targets: 1, StepsPerDay: s.perDay / s.fallback.Every(), Correct: true}
}

// peakInputs returns the inputs for forecasting the peak of the next 24 hours, given the
// quantiles of their steps, or false if too little is known about earlier peaks.
func (s *State) peakInputs(steps [][3]float64) (in [11]float64, ok bool) {
	top, mean := [3]float64{math.Inf(-1), math.Inf(-1), math.Inf(-1)}, [3]float64{}
	for _, q := range steps {
		for k, v := range q {
			top[k] = max(top[k], v)
			mean[k] += v / float64(len(steps))
		}
	}
	peaks := make([]float64, peakDays) // newest first
	known, sum := 0, 0.0
	for i := range peaks {
		if peaks[i] = s.work.highest(s.work.last + 1 - (i+1)*s.perDay); !math.IsNaN(peaks[i]) {
			known++
			sum += peaks[i]
		}
	}
	average := sum / float64(known)
	for i, v := range peaks {
		if math.IsNaN(v) {
			peaks[i] = average
		}
	}
	week := 0.0
	for _, v := range peaks[:7] {
		week += v / 7
	}
	in = [11]float64{top[1], top[2], mean[2], mean[1], top[0], week, peaks[0], peaks[6], 0, average, slices.Max(peaks)}
	slices.Sort(peaks)
	in[8] = (peaks[peakDays/2-1] + peaks[peakDays/2]) / 2
	return in, known >= leastPeakDays
}

// peak forecasts the highest load of the next 24 hours, and records the forecast if a recorded
// issue is due. steps contains the quantiles of the rows.
func (s *State) peak(rows []Row, steps [][3]float64, late bool) Peak {
	p := Peak{P10: math.NaN(), P50: math.NaN(), P90: math.NaN()}
	if len(rows) < s.perDay {
		return p
	}
	rows, steps = rows[:s.perDay], steps[:s.perDay]
	best := 0
	for i, r := range rows {
		if math.IsNaN(r.Mean) {
			return p
		}
		if r.Mean > rows[best].Mean {
			best = i
		}
	}
	p.Time = rows[best].Time
	in, ok := s.peakInputs(steps)
	values := []float64{in[4], in[0], in[1]}
	if ok {
		for q, weights := range peakWeights {
			values[q] = 0
			for i, w := range weights {
				values[q] += float64(w * in[i])
			}
		}
		slices.Sort(values)
		s.correctPeak(values, in[0], late)
	}
	if s.hasRead && !s.fedIn {
		for i, v := range values {
			values[i] = max(v, 0)
		}
	}
	p.P10, p.P50, p.P90 = values[0], values[1], values[2]
	return p
}

// correctPeak corrects the quantiles of a peak with the errors of earlier peak forecasts. The
// steps of the tracker are the cutoffs of recorded issues.
func (s *State) correctPeak(values []float64, reference float64, late bool) {
	every, t := s.fallback.Every(), s.peaks
	grid, perDay := (s.work.last+1)/every, t.c.StepsPerDay
	last := grid - 1
	if late || last < t.newest {
		return
	}
	if !s.recorded() || last == t.newest {
		t.Correct(last, values, []float64{reference})
		return
	}
	// The newest known peak belongs to the issue of a day ago.
	from := grid - perDay
	if t.newest >= 0 {
		from = max(t.newest+2-perDay, grid-(reachDays-1)*perDay)
	}
	for at := max(from, 0); at <= grid-perDay; at++ {
		t.Observe(at, s.work.highest(at*every))
	}
	t.issue(last, values, []float64{reference})
}
