package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"loadstar/internal/proc"
	"loadstar/rig/bench"
	"loadstar/rig/fleetload"
)

// UsageError means that a setting is out of range. Its message names the flag.
type UsageError struct{ error }

// Unwrap returns the underlying error.
func (e *UsageError) Unwrap() error { return e.error }

// Config selects what to measure.
type Config struct {
	Backends
	Agents  int
	Cohort  float64  // share of the agents whose results a round needs
	Sizes   []string // sizes of results, see sizes
	Turns   int      // number of repetitions
	Seconds float64  // length of each measurement of the server
	Rate    float64  // check-ins per second that the fleet is paced to
	Pace    float64  // results per second of the whole fleet; 0 means no limit
	// Short makes agents close their connections between contacts.
	Short bool
}

const (
	// maxAgents is the number of connections that a server accepts, including some that wait.
	// Agents that close their connections do not each need one.
	maxAgents, maxShort = 25_000, 1_000_000
	// slowestPace bounds the time between check-ins of an agent that keeps its connection,
	// because the server closes connections that are idle for a minute.
	slowestPace = 15 * time.Second
)

func (c *Config) check() error {
	most := maxAgents
	if c.Short {
		most = maxShort
	}
	if c.Turns < 1 || !(c.Seconds > 0 && c.Seconds < 3600) {
		return errors.New("--turns must be at least 1, and --seconds above 0 and below 3600")
	}
	if c.Agents < 8 || c.Agents > most || !(c.Cohort > 0 && c.Cohort*(1+overSelection) <= 1) || !(c.Rate > 0) {
		return fmt.Errorf("--agents must be 8 to %d, --cohort above 0 and at most %.2f, and --rate above 0", most, 1/(1+overSelection))
	}
	if !(c.Pace >= 0) {
		return errors.New("--pace must not be negative")
	}
	if slowest := float64(c.Agents) / slowestPace.Seconds(); !c.Short && c.Rate < slowest {
		return fmt.Errorf("--rate must be at least %.0f for %d agents, because the server closes idle connections; or use --short-connections", slowest, c.Agents)
	}
	for _, s := range c.Sizes {
		if _, ok := sizes[s]; !ok {
			return fmt.Errorf("--size must be %s, not %q", knownSizes, s)
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
	Rate    float64 `json:"paced_check_ins_per_s"`
	Pace    float64 `json:"paced_results_per_s"`
	Short   bool    `json:"short_connections"`
	Sizes   []Size  `json:"sizes"`
	// Ratio and Calls are the largest of all sizes.
	Ratio float64 `json:"ratio"`
	Calls float64 `json:"calls_per_update"`
}

// Figures contains the cost of an update and the rate at which updates were counted. CPU times
// are in milliseconds per update, and do not include the time of a database outside the server.
type Figures struct {
	CPU float64 `json:"server_cpu_ms_per_update"`
	// BareHTTP is an HTTP/1.1 call over mutual TLS. In both directions, it transfers as many
	// bytes as the numbers of an update, over as many connections as the fleet has. BareCount is
	// the transaction that counts an update, together with the addition of the update's numbers.
	BareHTTP  float64 `json:"bare_http_cpu_ms"`
	BareCount float64 `json:"bare_count_cpu_ms"`
	// Ratio is CPU divided by the sum of BareHTTP and BareCount.
	Ratio        float64 `json:"ratio"`
	Calls        float64 `json:"calls_per_update"`
	Statements   float64 `json:"statements_per_update"`
	Transactions float64 `json:"transactions_per_update"`
	// Fsyncs is -1 if the system does not allow the benchmark to count them.
	Fsyncs      float64 `json:"fsyncs_per_update"`
	Wire        float64 `json:"wire_bytes_per_update"`
	Allocations float64 `json:"allocations_per_update"`
	Allocated   float64 `json:"allocated_bytes_per_update"`
	AgentsCPU   float64 `json:"generator_cpu_ms_per_update"`
	Counted     float64 `json:"counted_per_s"`
	CheckIns    float64 `json:"check_ins_per_s"`
	// Count is the rate of counting alone.
	Count float64 `json:"count_per_s"`
	Load  float64 `json:"load_average"`
}

// median replaces each figure with the median over turns.
func median(turns []Figures) (m Figures) {
	to := reflect.ValueOf(&m).Elem()
	for i := range to.NumField() {
		values := make([]float64, len(turns))
		for k := range turns {
			values[k] = reflect.ValueOf(turns[k]).Field(i).Float()
		}
		to.Field(i).SetFloat(bench.Median(values))
	}
	return m
}

// Size contains the measurements for one size of results. Figures are medians over turns.
// Latencies are quantiles over the calls of all turns.
type Size struct {
	Size  string `json:"size"`
	Bytes int    `json:"bytes"`
	Figures
	// Push is the time from the arrival of a result until it is counted, within a factor of two.
	// Heard is the time until the agent of the result receives the verdict. The server may delay
	// the answer until there is a task.
	Push          Latencies `json:"push_ms"`
	CheckIn       Latencies `json:"check_in_ms"`
	Heard         Latencies `json:"push_to_answer_ms"`
	Rounds        int       `json:"rounds"`
	Updates       int       `json:"updates"`
	Late          int64     `json:"late"`
	RSS           int64     `json:"server_rss_bytes"`
	FailedCalls   int64     `json:"failed_calls"`
	Repeated      int64     `json:"asked_to_repeat"`
	RefusedAsBusy int64     `json:"refused_as_busy"`

	turns  []Figures
	stats  fleetload.Stats
	counts map[float64]float64 // results by the number of seconds within which they were counted
}

// Latencies are quantiles in milliseconds.
type Latencies struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

func quantiles(l fleetload.Latencies) Latencies {
	return Latencies{1e3 * l.Quantile(0.5).Seconds(), 1e3 * l.Quantile(0.99).Seconds()}
}

// engineTurn bounds an engine's turn, since the server closes connections that are idle for a
// minute.
const engineTurn = 5 * time.Second

// Run starts a server and a fleet, and measures each size of results. It returns an error if
// a result is rejected, lost or counted twice, or if an agent received a verdict that differs
// from the ledger.
func Run(ctx context.Context, c Config, progress bench.Progress) (*Result, error) {
	if err := c.check(); err != nil {
		return nil, &UsageError{err}
	}
	bed, err := newTestbed(ctx, c.Backends, c.Agents, c.Short, progress)
	if err != nil {
		return nil, err
	}
	defer bed.close()
	if err := bed.dialBare(ctx, c.Agents, c.Short); err != nil {
		return nil, err
	}
	b := &Result{Agents: c.Agents, Cohort: c.wanted(), Engines: c.Backends.String(), Turns: c.Turns, Seconds: c.Seconds, Rate: c.Rate, Pace: c.Pace, Short: c.Short}
	total := len(c.Sizes) * c.Turns
	progress(0, total, "")
	for i, size := range c.Sizes {
		s, err := measureSize(ctx, c, bed, size, func(turn int) { progress(i*c.Turns+turn, total, ", "+size) })
		if err != nil {
			return nil, fmt.Errorf("%s: %w", size, err)
		}
		b.Sizes = append(b.Sizes, *s)
		b.Ratio, b.Calls = max(b.Ratio, s.Ratio), max(b.Calls, s.Calls)
	}
	return b, nil
}

func measureSize(ctx context.Context, c Config, bed *testbed, size string, done func(turn int)) (*Size, error) {
	t, err := termsOf(size, c.Agents)
	if err != nil {
		return nil, err
	}
	d := time.Duration(c.Seconds * float64(time.Second))
	s := &Size{Size: size, Bytes: 4 * t.Shared}
	if err := bed.serve(ctx, "--set", "agents.poll=50ms", "--set", fmt.Sprintf("limits.rate=%g", c.Rate)); err != nil {
		return nil, err
	}
	run, err := bed.start(ctx, planOf(size, c.wanted()), c.Agents)
	if err != nil {
		return nil, err
	}
	before := bed.fleet.Stats()
	bed.fleet.Pace = c.Pace
	bed.fleet.Go()
	// All agents must be connected, and the first round must be over, because its start is
	// slower than that of later rounds.
	patience := 2*time.Minute + 2*time.Duration(float64(c.Agents)/c.Rate*float64(time.Second))
	err = bed.await(ctx, "the first round with all agents", patience, func(m map[string]float64) bool {
		return bed.fleet.Present() == c.Agents && m[bed.merged] > 0
	})
	if err != nil {
		return nil, err
	}
	for turn := range c.Turns {
		bed.fleet.Go()
		f, err := s.turn(ctx, bed, d)
		if err != nil {
			return nil, err
		}
		if err := bed.rest(ctx); err != nil {
			return nil, err
		}
		e, err := runEngine(ctx, c.Backends, size, c.Agents, min(d, engineTurn))
		if err != nil {
			return nil, err
		}
		f.BareCount, f.Count = e.CountCPU, e.Count
		if f.BareHTTP, err = bed.bareHTTP(ctx, s.Bytes, min(d, engineTurn)); err != nil {
			return nil, err
		}
		f.Ratio = f.CPU / (f.BareHTTP + f.BareCount)
		s.turns = append(s.turns, f)
		done(turn + 1)
	}
	if err := bed.sound(ctx, run, bed.fleet.Stats().Since(before)); err != nil {
		return nil, err
	}
	u, err := bed.usage()
	if err != nil {
		return nil, err
	}
	s.Figures, s.RSS = median(s.turns), u.Peak
	s.Push, s.CheckIn, s.Heard = Latencies{quantileOf(s.counts, 0.5), quantileOf(s.counts, 0.99)}, quantiles(s.stats.CheckIn), quantiles(s.stats.Heard)
	return s, nil
}

// turn measures the server for at least the duration d, after a warm-up. It begins and ends with
// the merge of a round. Within a round, agents check in and send at other times than their
// results are counted, so a part of a round would have too many or too few calls for its
// updates.
func (s *Size) turn(ctx context.Context, bed *testbed, d time.Duration) (f Figures, err error) {
	if err := pause(ctx, min(d/4, 2*time.Second)); err != nil {
		return f, err
	}
	m, err := bed.nextMerge(ctx, nil)
	if err != nil {
		return f, err
	}
	used, err := bed.usage()
	if err != nil {
		return f, err
	}
	syncs, err := bed.countSyncs(ctx)
	if err != nil {
		return f, err
	}
	defer syncs.close()
	stats, own, start := bed.fleet.Stats(), proc.CPUTime(), time.Now()
	after := m
	for time.Since(start) < d || after[bed.merged] == m[bed.merged] {
		if after, err = bed.nextMerge(ctx, after); err != nil {
			return f, err
		}
	}
	took := time.Since(start)
	seen := bed.fleet.Stats().Since(stats)
	spent := proc.CPUTime() - own
	now, err := bed.usage()
	if err != nil {
		return f, err
	}
	updates := after[bed.counted] - m[bed.counted]
	per := func(name string) float64 { return (after[name] - m[name]) / updates }
	f = Figures{
		CPU: 1e3 * (now.CPU - used.CPU).Seconds() / updates, AgentsCPU: 1e3 * spent.Seconds() / updates,
		Calls: float64(seen.Calls()) / updates, Wire: float64(seen.Bytes) / updates,
		Statements: per("loadstar_ledger_statements_total"), Transactions: per("loadstar_ledger_transactions_total"),
		Allocations: per("go_memstats_mallocs_total"), Allocated: per("go_memstats_alloc_bytes_total"),
		Counted: updates / took.Seconds(), CheckIns: float64(seen.CheckIn.Len()) / took.Seconds(), Load: loadAverage(),
	}
	if f.Fsyncs, err = syncs.read(ctx); err != nil {
		return f, err
	}
	if f.Fsyncs >= 0 {
		f.Fsyncs /= updates
	}
	s.Updates += int(updates)
	s.Rounds += int(after[bed.merged] - m[bed.merged])
	s.stats.CheckIn = s.stats.CheckIn.Plus(seen.CheckIn)
	for at, n := range bucketsOf(after, m, "loadstar_gateway_count_seconds") {
		if s.counts == nil {
			s.counts = map[float64]float64{}
		}
		s.counts[at] += n
	}
	s.stats.Heard = s.stats.Heard.Plus(seen.Heard)
	s.FailedCalls += seen.Failed
	s.Late += seen.Closed
	s.Repeated += seen.Unknown
	s.RefusedAsBusy += seen.Busy
	return f, nil
}

// bucketsOf returns the increase of a histogram's buckets between two readings.
func bucketsOf(after, before map[string]float64, name string) map[float64]float64 {
	all := map[float64]float64{}
	for key, n := range after {
		if text, ok := strings.CutPrefix(key, name+`_bucket{le="`); ok {
			if at, err := strconv.ParseFloat(strings.TrimSuffix(text, `"}`), 64); err == nil {
				all[at] += n - before[key]
			}
		}
	}
	return all
}

// quantileOf returns the upper bound in milliseconds of the bucket that contains a quantile, or
// -1 if the quantile is above all bounds or there are no values.
func quantileOf(buckets map[float64]float64, q float64) float64 {
	most := 0.0
	for _, n := range buckets {
		most = max(most, n)
	}
	for _, at := range slices.Sorted(maps.Keys(buckets)) {
		if buckets[at] >= q*most && !math.IsInf(at, 1) {
			return 1e3 * at
		}
	}
	return -1
}

// nextMerge waits for the next merge of a round after the given metrics, or after now, and
// returns the metrics of that time.
func (b *testbed) nextMerge(ctx context.Context, after map[string]float64) (map[string]float64, error) {
	const every, most = 20 * time.Millisecond, 5 * time.Minute
	for begun := time.Now(); ; {
		rounds := b.fleet.Rounds()
		m, err := b.metrics(ctx)
		if err != nil {
			return nil, err
		}
		if after == nil {
			after = m
		}
		if m[b.merged] > after[b.merged] {
			return m, nil
		}
		// Wait for the agents to notice the next round, because reading the metrics frequently
		// would add a cost that is not part of an update.
		for b.fleet.Rounds() == rounds {
			if time.Since(begun) > most {
				return nil, b.because(fmt.Errorf("no round ended within %v", most))
			}
			if err := pause(ctx, every); err != nil {
				return nil, err
			}
		}
	}
}

// loadAverage returns the machine's load of the last minute, or 0 if it is not known.
func loadAverage() (load float64) {
	text, _ := os.ReadFile("/proc/loadavg") // only Linux has it
	_, _ = fmt.Sscan(string(text), &load)
	return load
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
// and no result may be waiting. sound stops the run.
func (b *testbed) sound(ctx context.Context, run string, seen fleetload.Stats) error {
	m, err := b.metrics(ctx)
	if err != nil {
		return err
	}
	if err := b.end(ctx, run); err != nil {
		return err
	}
	counted, late := int64(m[b.counted]), int64(m["loadstar_gateway_late_total"])
	switch calls := seen.CheckIn.Len() + seen.Push.Len(); {
	case seen.Rejected > 0:
		err = fmt.Errorf("%d results were rejected", seen.Rejected)
	case float64(seen.Failed) > tolerated*float64(calls):
		err = fmt.Errorf("%d of %d calls failed", seen.Failed, calls+seen.Failed)
	case counted > seen.Accepted+seen.Failed || counted+late < seen.Accepted:
		err = fmt.Errorf("%d results were accepted, but %d were counted and %d were late", seen.Accepted, counted, late)
	case seen.Heard.Len() > counted:
		err = fmt.Errorf("agents received %d acknowledgements for %d counted results", seen.Heard.Len(), counted)
	default:
		if err = b.compare(ctx, run, counted); err == nil {
			return nil
		}
	}
	return b.because(errors.Join(err, b.fleet.Err()))
}
