package outlook

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"loadstar/internal/textfmt"

	"golang.org/x/sync/errgroup"

	"loadstar/fed/serve"
	"loadstar/forecast/issue"
	"loadstar/series"
)

// Removal describes which readings are removed before a backtest, to show the effect of gaps.
type Removal struct {
	// Share is the share of the readings to remove.
	Share float64 `json:"share"`
	// Block is the number of consecutive steps that are removed at a time; 0 means 1.
	Block int    `json:"block_steps"`
	Seed  uint64 `json:"seed"`
}

// Backtest describes a backtest. It replays recorded issues over the test split of every
// meter, which was not used for training, and compares them with the readings.
type Backtest struct {
	Model   *Model
	Dataset *series.Dataset
	Remove  Removal
	Weather WeatherError
	// H is the number of steps that are scored; 0 means all steps that the model forecasts.
	H int
	// From is the first cutoff that is scored, unless it is before the start of the test split.
	From    int64
	Workers int
}

// Scores contains the results of a backtest.
type Scores struct {
	Dataset   string       `json:"dataset"`
	Generated bool         `json:"generated"`
	Model     string       `json:"model"`
	Version   string       `json:"version,omitempty"`
	Removed   Removal      `json:"removed"`
	Weather   WeatherError `json:"weather_error,omitzero"`
	H         int          `json:"h"`
	Issues    int          `json:"issues"`
	// Rows is the number of forecast steps that could be compared with a reading, and Sources
	// contains the number of these steps by source.
	Rows    int     `json:"rows"`
	Sources []Count `json:"sources"`
	// Reasons contains the number of rows that did not come from the model, by reason.
	Reasons []Count       `json:"reasons,omitempty"`
	Clients []ClientScore `json:"clients"`
	// MAE is a mean over clients, and RelativeMAE a median. The latter is relative to the error
	// of the load at the same clock time a week before.
	MAE         float64 `json:"mae_kw"`
	RelativeMAE float64 `json:"relative_mae"`
	// Coverage is the median over clients of the share of readings from P10 to P90. Within
	// is the share of clients for which it is 75 to 85 %.
	Coverage float64 `json:"coverage"`
	Within   float64 `json:"within_75_to_85"`
	// Energy scores a day's energy and Peak its highest step, as medians over clients. Sum is
	// the score of the sum of all clients by step, in the period in which all are scored. All
	// three score the issues made at midnight, for the next 24 hours, and are nil if nothing can
	// be scored.
	Energy *SumScore `json:"energy,omitempty"`
	Sum    *SumScore `json:"sum,omitempty"`
	Peak   *SumScore `json:"peak,omitempty"`
	// SumDays are the cutoffs of the issues that Sum includes.
	SumDays []int64 `json:"-"`
}

// ClientScore is the result of one meter.
type ClientScore struct {
	ID          string  `json:"id"`
	Rows        int     `json:"rows"`
	MAE         float64 `json:"mae_kw"`
	RelativeMAE float64 `json:"relative_mae"`
	Coverage    float64 `json:"coverage"`
	Model       float64 `json:"model_share"` // share of the rows from the model
	// Energy and Peak are the scores of the daily energy and of the highest step of a day.
	Energy *SumScore `json:"energy,omitempty"`
	Peak   *SumScore `json:"peak,omitempty"`
	// Days are the cutoffs of the issues that both scores include.
	Days []int64 `json:"-"`

	meter           series.Meter // with all readings
	number          int          // number of the meter
	frame           *series.Framer
	h               int
	first, newest   int64 // cutoffs of the first issue to score and of the newest scored issue
	issues          int
	sum, week, both float64 // sums of absolute errors; both is the forecast's error over the steps that week includes
	inside          int
	sources         map[issue.Source]int
	reasons         map[issue.Reason]int
	// issued contains the means of all issues by cutoff. The other fields contain the errors of
	// daily values.
	issued       map[int64][]float64
	energy, peak errorSums
}

// WeatherError describes the difference between the weather that forecasts use and the
// measured weather.
type WeatherError struct {
	// Degrees is the standard deviation of the temperature's error 24 hours ahead. An hour
	// ahead, the standard deviation is half as large. Errors of successive hours have a
	// correlation of 0.95.
	Degrees float64 `json:"degrees,omitempty"`
	// Yesterday means that the weather of the day before replaces the weather forecast.
	Yesterday bool `json:"yesterday,omitempty"`
}

// replay returns the function that changes the weather of a replay, or nil.
func (w WeatherError) replay(d *series.Dataset) func(cutoff int64, name string, ahead []float32) {
	perDay := d.StepsPerDay()
	switch {
	case w.Yesterday:
		return func(_ int64, name string, ahead []float32) {
			for i := range ahead {
				if name != "holiday" {
					ahead[i] = float32(math.NaN())
				}
			}
		}
	case w.Degrees > 0:
		keep := math.Pow(0.95, 24/float64(perDay))
		return func(cutoff int64, name string, ahead []float32) {
			if name != "temperature" {
				return
			}
			random := rand.New(rand.NewPCG(1, uint64(cutoff)))
			e := random.NormFloat64()
			for i := range ahead {
				size := 0.5 + 0.5*min(float64(i)/float64(max(perDay-1, 1)), 1)
				ahead[i] += float32(w.Degrees * size * e)
				e = keep*e + math.Sqrt(1-keep*keep)*random.NormFloat64()
			}
		}
	}
	return nil
}

// ParseWeatherError parses a number of degrees or the word yesterday.
func ParseWeatherError(s string) (w WeatherError, err error) {
	if s == "yesterday" {
		return WeatherError{Yesterday: true}, nil
	}
	w.Degrees, err = strconv.ParseFloat(s, 64)
	if err != nil || !(w.Degrees >= 0 && w.Degrees <= 20) {
		return w, fmt.Errorf("%q is neither a number of degrees from 0 to 20 nor yesterday", s)
	}
	return w, nil
}

// Scorer scores forecasts over the test split, regardless of what issued them.
type Scorer struct {
	b     Backtest
	known *series.Dataset
	all   []*ClientScore // by name
}

// Scorer returns a scorer for the backtest's meters.
func (b Backtest) Scorer() (*Scorer, error) {
	known, err := b.Remove.apply(b.Dataset)
	if err != nil {
		return nil, err
	}
	plan := b.Model.folder.Model.Plan.Model
	if b.H == 0 {
		b.H = b.Model.Reach()
	}
	frame, err := series.NewFramer(b.Dataset, series.Layout{Lookback: 1, Horizon: 1, Targets: 1, Inputs: []series.Input{{Name: "load"}}},
		series.Split{Train: plan.Split.Train, Validation: plan.Split.Validation})
	if err != nil {
		return nil, err
	}
	numbers, err := chosen(b.Dataset, nil)
	if err != nil {
		return nil, err
	}
	s := &Scorer{b: b, known: known}
	for _, i := range numbers {
		c := &ClientScore{
			meter: b.Dataset.Meter(i), number: i, frame: frame, h: b.H, sources: map[issue.Source]int{}, reasons: map[issue.Reason]int{}, issued: map[int64][]float64{},
		}
		c.ID = c.meter.ID
		c.first = max(c.meter.Start+int64(frame.BeforeTest(c.meter))*b.Dataset.Seconds(), b.From)
		s.all = append(s.all, c)
	}
	return s, nil
}

// First returns the first cutoff at which all meters are scored.
func (s *Scorer) First() (first int64) {
	for _, c := range s.all {
		first = max(first, c.first)
	}
	return first
}

// Add scores a forecast of P10, P50 and P90. recorded means that all clients record the
// forecast. Of the other forecasts, only those at midnight are scored. The forecasts of a meter
// must be added in ascending order of their cutoffs. Forecasts of different meters may be added
// concurrently.
func (s *Scorer) Add(f issue.Forecast, recorded bool) {
	at, ok := slices.BinarySearchFunc(s.all, f.Client, func(c *ClientScore, id string) int { return strings.Compare(c.ID, id) })
	if !ok {
		return
	}
	c := s.all[at]
	if recorded {
		c.add(f, s.b.Dataset.Seconds())
	}
	if isMidnight(f.Cutoff, s.b.Dataset.Clock) {
		c.addDay(f, s.b.Dataset)
	} else if recorded {
		c.keep(f)
	}
}

// Scores returns the scores of the added forecasts.
func (s *Scorer) Scores() (*Scores, error) {
	out := &Scores{Dataset: s.b.Dataset.Name, Generated: s.b.Dataset.Generated, Removed: s.b.Remove, Weather: s.b.Weather, H: s.b.H}
	out.Model, out.Version = s.b.Model.Name()
	all := slices.DeleteFunc(slices.Clone(s.all), func(c *ClientScore) bool { return c.forecasts() == 0 })
	for _, c := range all {
		c.finish()
	}
	out.summarize(all)
	if len(out.Clients) == 0 {
		return nil, fmt.Errorf("dataset %s: no meter can be scored, because none took part in the run and has readings in the test split", s.b.Dataset.Name)
	}
	var err error
	out.Sum, out.SumDays, err = s.b.sum(s.known, all)
	return out, err
}

// Run replays the issues and scores them.
func (b Backtest) Run(ctx context.Context) (*Scores, error) {
	s, err := b.Scorer()
	if err != nil {
		return nil, err
	}
	if err := s.replay(ctx, func(at int64) bool { return isMidnight(at, b.Dataset.Clock) }, s.Add); err != nil {
		return nil, err
	}
	return s.Scores()
}

// Issue replays the recorded issues, and the issues at other cutoffs for which also returns
// true. It calls do with each issue, concurrently for different meters, and in ascending order
// of cutoffs for each meter.
func (b Backtest) Issue(ctx context.Context, also func(cutoff int64) bool, do func(issue.Forecast)) error {
	s, err := b.Scorer()
	if err != nil {
		return err
	}
	return s.replay(ctx, also, func(f issue.Forecast, _ bool) { do(f) })
}

// replay calls do with every issue. recorded reports whether clients record the issue.
func (s *Scorer) replay(ctx context.Context, also func(cutoff int64) bool, do func(f issue.Forecast, recorded bool)) error {
	b := s.b
	replay := serve.NewReplay(s.known, b.Model.folder.Model, nil)
	replay.Weather = b.Weather.replay(b.Dataset)
	replay.Also = also
	replay.Other = func(f issue.Forecast) { do(f, false) }
	replay.Each = func(f issue.Forecast) { do(f, true) }
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(b.Workers, 1))
	for _, c := range s.all {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return b.client(ctx, c, replay, endOf(s.known, s.known.Meter(c.number)))
		})
	}
	return g.Wait()
}

// client scores a meter up to the end of its readings. The score has no rows if the run did not
// include the meter.
func (b Backtest) client(ctx context.Context, c *ClientScore, replay *serve.Replay, end int64) error {
	d := b.Dataset
	client, _, isNew, err := b.Model.client(ctx, c.number, end, 0)
	if err != nil || client == nil || isNew {
		return err
	}
	state, err := issue.NewState(issue.Config{Step: d.Interval, Clock: d.Clock, H: b.H})
	if err != nil {
		return err
	}
	// Errors before the test split determine intervals and corrections.
	if err := replay.Advance(state, c.number, client, nil, c.first); err != nil {
		return err
	}
	return replay.Advance(state, c.number, client, nil, end)
}

// add compares a forecast with the readings of the meter, if it is in the test split. Its
// levels are P10, P50 and P90.
func (c *ClientScore) add(f issue.Forecast, seconds int64) {
	if f.Cutoff < c.first || f.Cutoff <= c.newest {
		return
	}
	c.issues++
	c.newest = f.Cutoff
	m, from := c.meter, int((f.Cutoff-c.meter.Start)/seconds)
	for k, r := range f.Rows[:c.h] {
		at := from + k
		if at >= len(m.Load) || series.Missing(m.Load[at]) {
			continue
		}
		load := float64(m.Load[at])
		c.Rows++
		c.sources[r.Source]++
		if r.Source != issue.Model {
			c.reasons[r.Reason]++
		}
		if r.Source == issue.None {
			continue
		}
		e := math.Abs(r.Values[1] - load)
		c.sum += e
		if r.Values[0] <= load && load <= r.Values[2] {
			c.inside++
		}
		if before := c.frame.Lag(m, at, 7); before >= 0 && !series.Missing(m.Load[before]) {
			c.week += math.Abs(float64(m.Load[before]) - load)
			c.both += e
		}
	}
}

// forecasts returns the number of rows that have a forecast, and therefore an error.
func (c *ClientScore) forecasts() int { return c.Rows - c.sources[issue.None] }

// finish computes the scores from the sums.
func (c *ClientScore) finish() {
	n := float64(c.forecasts())
	c.MAE, c.RelativeMAE, c.Coverage = c.sum/n, c.both/c.week, float64(c.inside)/n
	c.Model = float64(c.sources[issue.Model]) / float64(c.Rows)
	c.Energy, c.Peak = c.energy.score(), c.peak.score()
}

// summarize computes the results of all clients.
func (s *Scores) summarize(all []*ClientScore) {
	sources, reasons := map[issue.Source]int{}, map[issue.Reason]int{}
	var relative, coverage []float64
	within := 0
	for _, c := range all {
		s.Issues += c.issues
		s.Rows += c.Rows
		s.MAE += c.MAE / float64(len(all))
		for source, n := range c.sources {
			sources[source] += n
		}
		for reason, n := range c.reasons {
			reasons[reason] += n
		}
		if !math.IsNaN(c.RelativeMAE) {
			relative = append(relative, c.RelativeMAE)
		}
		coverage = append(coverage, c.Coverage)
		if c.Coverage >= 0.75 && c.Coverage <= 0.85 {
			within++
		}
		s.Clients = append(s.Clients, *c)
	}
	s.RelativeMAE, s.Coverage, s.Within = median(relative), median(coverage), float64(within)/float64(len(all))
	s.Sources, s.Reasons = counts(sources, s.Rows), why(reasons, s.Rows)
	s.Energy = medianScore(all, func(c *ClientScore) *SumScore { return c.Energy })
	s.Peak = medianScore(all, func(c *ClientScore) *SumScore { return c.Peak })
}

func median(x []float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	slices.Sort(x)
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

// apply returns a copy of the dataset without the removed readings.
func (r Removal) apply(d *series.Dataset) (*series.Dataset, error) {
	if r.Share == 0 {
		return d, nil
	}
	var meters []series.Meter
	for i := range d.Len() {
		m := d.Meter(i)
		m.Load = slices.Clone(m.Load)
		random := rand.New(rand.NewPCG(r.Seed, uint64(i)))
		// Blocks start anywhere and may overlap. A step is kept if no block starts at this step
		// or at one of the block-1 steps before it.
		block := max(r.Block, 1)
		start := 1 - math.Pow(1-r.Share, 1/float64(block))
		until := 0
		for at := range m.Load {
			if random.Float64() < start {
				until = at + block
			}
			if at < until {
				m.Load[at] = float32(math.NaN())
			}
		}
		meters = append(meters, m)
	}
	return d.With(meters)
}

// Print prints the scores for a terminal.
func (s *Scores) Print(w io.Writer, clients bool) error {
	fmt.Fprintf(w, "%s: %s, model %s, next %s, %s in the test part%s\n", s.Dataset, textfmt.Count(len(s.Clients), "client"), s.Model, textfmt.Count(s.H, "step"), textfmt.Count(s.Issues, "issue"), textfmt.Synthetic(s.Generated))
	switch {
	case s.Removed.Share > 0 && s.Removed.Block > 1:
		fmt.Fprintf(w, "%g %% of the readings removed before, in blocks of %d steps (seed %d)\n", 100*s.Removed.Share, s.Removed.Block, s.Removed.Seed)
	case s.Removed.Share > 0:
		fmt.Fprintf(w, "%g %% of the readings removed before, at random (seed %d)\n", 100*s.Removed.Share, s.Removed.Seed)
	}
	switch {
	case s.Weather.Yesterday:
		fmt.Fprintln(w, "without a weather forecast: the weather of the day before")
	case s.Weather.Degrees > 0:
		fmt.Fprintf(w, "temperatures with an error of %g degrees 24 hours ahead, half of it an hour ahead\n", s.Weather.Degrees)
	}
	fmt.Fprintf(w, "MAE %s kW (mean over clients), %.3f times that of last week (median)\n", amount(s.MAE), s.RelativeMAE)
	fmt.Fprintf(w, "P10 to P90 covers %.1f %% (median client), within 75 to 85 %% for %.0f %% of clients\n", 100*s.Coverage, 100*s.Within)
	if s.Energy != nil {
		fmt.Fprintf(w, "energy of a day, issued at midnight: %s (median client)\n", s.Energy)
	}
	if s.Sum != nil {
		fmt.Fprintf(w, "hourly sum of %s, issued at midnight: %s\n", textfmt.Count(s.Sum.Clients, "client"), s.Sum)
	}
	if s.Peak != nil {
		fmt.Fprintf(w, "highest step of a day, issued at midnight: %s (median client)\n", s.Peak)
	}
	_, err := fmt.Fprintf(w, "%s: %s\n", textfmt.Count(s.Rows, "row"), list(s.Sources))
	if len(s.Reasons) > 0 {
		_, err = fmt.Fprintf(w, "not from the model because of: %s\n", list(s.Reasons))
	}
	if !clients {
		return err
	}
	sorted := slices.Clone(s.Clients)
	slices.SortStableFunc(sorted, func(a, b ClientScore) int { return cmp.Compare(a.Coverage, b.Coverage) })
	for _, c := range sorted {
		if _, err = fmt.Fprintf(w, "  %-32s %8d rows  MAE %9.4g kW  relative %.3f  covers %.1f %%  model %.1f %%\n", c.ID, c.Rows, c.MAE, c.RelativeMAE, 100*c.Coverage, 100*c.Model); err != nil {
			return err
		}
	}
	return err
}
