package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"loadstar/internal/bench"
	"loadstar/internal/cputime"
	"loadstar/internal/fleetload"
)

// UsageError is a setting that is out of range. Its message names the flag.
type UsageError struct{ error }

// Unwrap returns the underlying error.
func (e *UsageError) Unwrap() error { return e.error }

// Config selects what to measure.
type Config struct {
	Backends
	Agents      int
	Cohort      float64  // share of the agents whose results a round needs
	Sizes       []string // sizes of results: 24k or 170k
	Turns       int      // number of repetitions
	Seconds     float64  // length of each measurement of the server
	Rate        float64  // check-ins per second that the fleet is paced to; 0 derives it from the engines' speed
	Aggregators int
}

// maxAgents is limited by the number of ports of one IP address.
const maxAgents = 25_000

func (c *Config) check() error {
	if c.Turns < 1 || !(c.Seconds > 0 && c.Seconds < 3600) {
		return errors.New("--turns must be at least 1, and --seconds above 0 and below 3600")
	}
	if c.Agents < 8 || c.Agents > maxAgents || !(c.Cohort > 0 && c.Cohort*(1+overSelection) <= 1) || c.Rate < 0 || c.Aggregators < 1 {
		return fmt.Errorf("--agents must be 8 to %d, --cohort above 0 and at most %.2f, --rate at least 0, and --aggregators at least 1", maxAgents, 1/(1+overSelection))
	}
	for _, s := range c.Sizes {
		if _, ok := sizes[s]; !ok {
			return fmt.Errorf("--size must be 24k or 170k, not %q", s)
		}
	}
	return c.Backends.check()
}

// wanted returns the number of results that a round needs.
func (c *Config) wanted() int { return max(int(c.Cohort*float64(c.Agents)), 1) }

// Result contains the measurements of a server under load.
type Result struct {
	Agents  int     `json:"agents"`
	Cohort  int     `json:"cohort"`
	Engines string  `json:"engines"`
	Turns   int     `json:"turns"`
	Seconds float64 `json:"seconds"`
	Sizes   []Size  `json:"sizes"`
}

// Size contains the measurements for one size of results. Rates are medians over turns.
// Latencies are quantiles over the calls of all turns.
type Size struct {
	Size     string      `json:"size"`
	Bytes    int         `json:"bytes"`
	Accepted float64     `json:"accepted_per_s"`
	Counted  float64     `json:"counted_per_s"`
	Engine   EngineRates `json:"engines_alone"`
	// Share is the server's counting rate divided by the rate of the slower engine. It is a
	// median over turns.
	Share          float64   `json:"share"`
	Push           Latencies `json:"push_ms"`
	CheckIn        Latencies `json:"check_in_ms"`
	Heard          Latencies `json:"push_to_counted_ms"`
	CheckIns       float64   `json:"check_ins_per_s"`
	Rate           float64   `json:"paced_check_ins_per_s"`
	Rounds         int       `json:"rounds"`
	Updates        int       `json:"updates"`
	Late           int64     `json:"late"`
	RSS            int64     `json:"server_rss_bytes"`
	CPU            float64   `json:"server_cpu_ms_per_update"`
	GeneratorCPU   float64   `json:"generator_cpu_ms_per_update"`
	FailedCalls    int64     `json:"failed_calls"`
	Repeated       int64     `json:"asked_to_repeat"`
	RefusedAsBusy  int64     `json:"refused_as_busy"`
	shares         []float64 // one value per turn, as in the following slices
	accepted, rate []float64
	publish, count []float64
	sent           []float64
	stats          fleetload.Stats
	spent, own     time.Duration
}

// Latencies are quantiles in milliseconds.
type Latencies struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

func quantiles(l fleetload.Latencies) Latencies {
	return Latencies{1e3 * l.Quantile(0.5).Seconds(), 1e3 * l.Quantile(0.99).Seconds()}
}

const (
	// engineTurn bounds an engine's turn, since the server closes connections that are
	// idle for a minute.
	engineTurn = 5 * time.Second
	// slowestPace bounds the time between an agent's check-ins, so that connections do not
	// become idle for a minute.
	slowestPace = 15 * time.Second
)

// Run starts a server and a fleet, and measures each size of results. It returns an error
// if a result is rejected, lost or counted twice.
func Run(ctx context.Context, c Config, progress bench.Progress) (*Result, error) {
	if err := c.check(); err != nil {
		return nil, &UsageError{err}
	}
	bed, err := newTestbed(ctx, c.Backends, c.Agents, progress)
	if err != nil {
		return nil, err
	}
	defer bed.close()
	b := &Result{Agents: c.Agents, Cohort: c.wanted(), Engines: c.Backends.String(), Turns: c.Turns, Seconds: c.Seconds}
	total := len(c.Sizes) * c.Turns
	progress(0, total, "")
	for i, size := range c.Sizes {
		s, err := measureSize(ctx, c, bed, size, func(turn int) { progress(i*c.Turns+turn, total, ", "+size) })
		if err != nil {
			return nil, fmt.Errorf("%s: %w", size, err)
		}
		b.Sizes = append(b.Sizes, *s)
	}
	return b, nil
}

func measureSize(ctx context.Context, c Config, bed *testbed, size string, done func(turn int)) (*Size, error) {
	t, err := termsOf(size, c.Agents)
	if err != nil {
		return nil, err
	}
	d := time.Duration(c.Seconds * float64(time.Second))
	s := &Size{Size: size, Bytes: 4 * t.Shared, Rate: c.Rate}
	if s.Rate == 0 {
		e, err := runEngines(ctx, c.Backends, size, c.Agents, min(d, engineTurn)/2)
		if err != nil {
			return nil, err
		}
		// Limit check-ins to half the rate that queue and ledger can process. More
		// check-ins would only take CPU time from the measured work.
		asked := c.Cohort * (1 + overSelection)
		s.Rate = max(0.5*e.slower()/asked, float64(c.Agents)/slowestPace.Seconds())
	}
	if err := bed.serve(ctx, "--poll", "50ms", "--rate", fmt.Sprint(s.Rate), "--aggregators", fmt.Sprint(c.Aggregators)); err != nil {
		return nil, err
	}
	run, err := bed.start(ctx, planOf(size, c.wanted()), c.Agents)
	if err != nil {
		return nil, err
	}
	before := bed.fleet.Stats()
	bed.fleet.Go()
	err = bed.await(ctx, "the first results", 2*time.Minute, func(m map[string]float64) bool { return m[bed.counted] > 0 })
	if err != nil {
		return nil, err
	}
	for turn := range c.Turns {
		bed.fleet.Go()
		if err := s.turn(ctx, bed, d); err != nil {
			return nil, err
		}
		if err := bed.rest(ctx); err != nil {
			return nil, err
		}
		e, err := runEngines(ctx, c.Backends, size, c.Agents, min(d, engineTurn))
		if err != nil {
			return nil, err
		}
		s.publish, s.count = append(s.publish, e.Publish), append(s.count, e.Count)
		s.shares = append(s.shares, s.rate[turn]/e.slower())
		done(turn + 1)
	}
	if err := bed.sound(ctx, run, bed.fleet.Stats().Since(before)); err != nil {
		return nil, err
	}
	return s, s.settle(bed)
}

// turn measures the server for the duration d, after a warm-up.
func (s *Size) turn(ctx context.Context, bed *testbed, d time.Duration) error {
	if err := pause(ctx, min(d/4, 2*time.Second)); err != nil {
		return err
	}
	used, err := bed.usage()
	if err != nil {
		return err
	}
	m, err := bed.metrics(ctx)
	if err != nil {
		return err
	}
	stats, own, start := bed.fleet.Stats(), cputime.Process(), time.Now()
	after := m
	// A turn may be shorter than a round. Extend it until at least one result is counted.
	for after[bed.counted] == m[bed.counted] {
		if time.Since(start) > d+time.Minute {
			return bed.because(errors.New("nothing was counted for a minute"))
		}
		if err := pause(ctx, d); err != nil {
			return err
		}
		if after, err = bed.metrics(ctx); err != nil {
			return err
		}
	}
	took := time.Since(start)
	seen := bed.fleet.Stats().Since(stats)
	s.own += cputime.Process() - own
	now, err := bed.usage()
	if err != nil {
		return err
	}
	s.spent += now.CPU - used.CPU
	counted := after[bed.counted] - m[bed.counted]
	s.Updates += int(counted)
	s.Rounds += int(after[bed.merged] - m[bed.merged])
	s.rate = append(s.rate, counted/took.Seconds())
	s.accepted = append(s.accepted, float64(seen.Accepted)/took.Seconds())
	s.sent = append(s.sent, float64(seen.CheckIn.Len())/took.Seconds())
	s.stats.CheckIn = s.stats.CheckIn.Plus(seen.CheckIn)
	s.stats.Push = s.stats.Push.Plus(seen.Push)
	s.stats.Heard = s.stats.Heard.Plus(seen.Heard)
	s.FailedCalls += seen.Failed
	s.Late += seen.Closed
	s.Repeated += seen.Unknown
	s.RefusedAsBusy += seen.Busy
	return nil
}

// settle computes the medians and quantiles from the measurements of all turns.
func (s *Size) settle(bed *testbed) error {
	u, err := bed.usage()
	if err != nil {
		return err
	}
	s.Accepted, s.Counted, s.CheckIns, s.Share = bench.Median(s.accepted), bench.Median(s.rate), bench.Median(s.sent), bench.Median(s.shares)
	s.Engine = EngineRates{bench.Median(s.publish), bench.Median(s.count)}
	s.Push, s.CheckIn, s.Heard = quantiles(s.stats.Push), quantiles(s.stats.CheckIn), quantiles(s.stats.Heard)
	s.RSS = u.Peak
	s.CPU, s.GeneratorCPU = 1e3*s.spent.Seconds()/float64(s.Updates), 1e3*s.own.Seconds()/float64(s.Updates)
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// tolerated is the share of calls that may fail.
const tolerated = 0.001

// sound returns an error if results were lost, rejected or counted twice, or if too many
// calls failed. The server must have been started for this run, the fleet must be paused,
// and the bus must be empty. sound stops the run.
func (b *testbed) sound(ctx context.Context, run string, seen fleetload.Stats) error {
	m, err := b.metrics(ctx)
	if err != nil {
		return err
	}
	if err := b.end(ctx, run); err != nil {
		return err
	}
	counted, stale, dropped := int64(m[b.counted]), int64(m["loadstar_aggregator_stale_total"]), int64(m["loadstar_aggregator_dropped_total"])
	switch calls := seen.CheckIn.Len() + seen.Push.Len(); {
	case seen.Rejected > 0 || dropped > 0:
		err = fmt.Errorf("%d results were rejected and %d dropped", seen.Rejected, dropped)
	case float64(seen.Failed) > tolerated*float64(calls):
		err = fmt.Errorf("%d of %d calls failed", seen.Failed, calls+seen.Failed)
	case counted > seen.Accepted+seen.Failed || counted+stale < seen.Accepted:
		err = fmt.Errorf("%d results were accepted, but %d were counted and %d were late", seen.Accepted, counted, stale)
	case seen.Heard.Len() > counted:
		err = fmt.Errorf("agents received %d acknowledgements for %d counted results", seen.Heard.Len(), counted)
	default:
		return nil
	}
	return b.because(errors.Join(err, b.fleet.Err()))
}
