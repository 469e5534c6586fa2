package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"loadstar/internal/fleetload"
)

func newBenchFleet() *cobra.Command {
	var (
		c      fleetBenchConfig
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Measure the server under a fleet, beside the engines that it leans on",
		Long: `Measure the server under a fleet, beside the engines that it leans on: a server in a
process of its own, and agents in this one, each with a key, a certificate and a
connection that stays. They check in as the server paces them, fetch the weights of
every round, and push random numbers instead of training. Of ten of them seven (--cohort)
are wanted in a round, a tenth more are asked, and rounds follow each other.

The shared part of the model has 24 KB (bose2023, head personal) or 170 KB (all of it
shared). In turn with the server, the engines alone: results put on an embedded NATS
server's disk by 16 writers, and results added up and counted in the ledger by whole
batches. What the server counts a second, over the slower of the two, is its share of
what is possible on them. Figures are medians over turns, of ratios within each turn;
latencies are of all turns together. The generator runs on the same machine, and its
CPU time is told too.

It fails if a result is rejected, lost or counted twice.`,
		Example: "  loadstar bench fleet\n  loadstar bench fleet --agents 200 --seconds 2 --turns 1 --size 24k",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.check(); err != nil {
				return usageError{err, "bench fleet "}
			}
			b, err := benchServer(cmd.Context(), c, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), b)
			}
			return b.print(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	c.engines.add(f)
	f.IntVar(&c.agents, "agents", 10_000, "how many agents, with one client each")
	f.Float64Var(&c.cohort, "cohort", 0.7, "share of them that a round wants")
	f.StringSliceVar(&c.sizes, "size", []string{"24k", "170k"}, "sizes of the shared part")
	f.IntVar(&c.turns, "turns", 3, "how many times to measure everything")
	f.Float64Var(&c.seconds, "seconds", 10, "seconds of each of the server's turns; the engines' are at most 5")
	f.Float64Var(&c.rate, "rate", 0, "check-ins a second that the fleet is paced to (default by the engines' speed)")
	f.IntVar(&c.aggregators, "aggregators", 2, "how many of the server count side by side")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

type fleetBenchConfig struct {
	engines
	agents      int
	cohort      float64
	sizes       []string
	turns       int
	seconds     float64
	rate        float64
	aggregators int
}

// maxAgents is about as many as one address has ports for.
const maxAgents = 25_000

func (c *fleetBenchConfig) check() error {
	if _, err := benchTime(c.turns, c.seconds); err != nil {
		return errors.New("--turns is at least 1, and --seconds above 0 and below 3600")
	}
	if c.agents < 8 || c.agents > maxAgents || !(c.cohort > 0 && c.cohort*(1+overSelection) <= 1) || c.rate < 0 || c.aggregators < 1 {
		return fmt.Errorf("--agents is from 8 to %d, --cohort above 0 and at most %.2f, --rate not below 0 and --aggregators at least 1", maxAgents, 1/(1+overSelection))
	}
	for _, s := range c.sizes {
		if _, ok := fleetSizes[s]; !ok {
			return fmt.Errorf("--size is 24k or 170k, not %q", s)
		}
	}
	return c.engines.check()
}

// wanted returns how many results a round wants.
func (c *fleetBenchConfig) wanted() int { return max(int(c.cohort*float64(c.agents)), 1) }

// serverBench is the result of bench fleet.
type serverBench struct {
	Agents  int         `json:"agents"`
	Cohort  int         `json:"cohort"`
	Engines string      `json:"engines"`
	Turns   int         `json:"turns"`
	Seconds float64     `json:"seconds"`
	Sizes   []sizeBench `json:"sizes"`
}

type sizeBench struct {
	Size     string      `json:"size"`
	Bytes    int         `json:"bytes"`
	Accepted float64     `json:"accepted_per_s"`
	Counted  float64     `json:"counted_per_s"`
	Engine   engineRates `json:"engines_alone"`
	// Share is the median over turns of what is counted over the slower engine.
	Share          float64   `json:"share"`
	Push           latencies `json:"push_ms"`
	CheckIn        latencies `json:"check_in_ms"`
	Heard          latencies `json:"push_to_counted_ms"`
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
	shares         []float64 // by turn
	accepted, rate []float64
	publish, count []float64
	sent           []float64
	stats          fleetload.Stats
	spent, own     time.Duration
}

type latencies struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

func latenciesOf(l fleetload.Latencies) latencies {
	return latencies{1e3 * l.Quantile(0.5).Seconds(), 1e3 * l.Quantile(0.99).Seconds()}
}

const (
	// engineTurn bounds an engine's turn: the server closes connections that say
	// nothing for a minute.
	engineTurn = 5 * time.Second
	// slowestPace is how long agents stay away at most, for the same reason.
	slowestPace = 15 * time.Second
)

// benchServer measures the sizes one after the other.
func benchServer(ctx context.Context, c fleetBenchConfig, to io.Writer) (*serverBench, error) {
	bed, err := newTestbed(ctx, c.engines, c.agents, to)
	if err != nil {
		return nil, err
	}
	defer bed.close()
	b := &serverBench{Agents: c.agents, Cohort: c.wanted(), Engines: c.engines.String(), Turns: c.turns, Seconds: c.seconds}
	bar := newProgress(to, len(c.sizes)*c.turns)
	defer bar.stop()
	bar.set(0, "")
	for i, size := range c.sizes {
		s, err := benchSize(ctx, c, bed, size, func(turn int) { bar.set(i*c.turns+turn, ", "+size) })
		if err != nil {
			return nil, fmt.Errorf("%s: %w", size, err)
		}
		b.Sizes = append(b.Sizes, *s)
	}
	return b, nil
}

func benchSize(ctx context.Context, c fleetBenchConfig, bed *testbed, size string, done func(turn int)) (*sizeBench, error) {
	t, err := fleetTerms(size, c.agents)
	if err != nil {
		return nil, err
	}
	d := time.Duration(c.seconds * float64(time.Second))
	s := &sizeBench{Size: size, Bytes: 4 * t.Shared, Rate: c.rate}
	if s.Rate == 0 {
		e, err := runEngines(ctx, c.engines, size, c.agents, min(d, engineTurn)/2)
		if err != nil {
			return nil, err
		}
		// So that those who are asked come half as fast as the engines could take them: every
		// check-in more takes from what is measured.
		asked := c.cohort * (1 + overSelection)
		s.Rate = max(0.5*e.slower()/asked, float64(c.agents)/slowestPace.Seconds())
	}
	if err := bed.serve(ctx, "--poll", "50ms", "--rate", fmt.Sprint(s.Rate), "--aggregators", fmt.Sprint(c.aggregators)); err != nil {
		return nil, err
	}
	run, err := bed.start(ctx, fleetPlan(size, c.wanted()), c.agents)
	if err != nil {
		return nil, err
	}
	before := bed.fleet.Stats()
	bed.fleet.Go()
	err = bed.await(ctx, "the first results", 2*time.Minute, func(m map[string]float64) bool { return m[bed.counted] > 0 })
	if err != nil {
		return nil, err
	}
	for turn := range c.turns {
		bed.fleet.Go()
		if err := s.turn(ctx, bed, d); err != nil {
			return nil, err
		}
		if err := bed.rest(ctx); err != nil {
			return nil, err
		}
		e, err := runEngines(ctx, c.engines, size, c.agents, min(d, engineTurn))
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

// turn measures the server for a while, when it is under way again.
func (s *sizeBench) turn(ctx context.Context, bed *testbed, d time.Duration) error {
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
	stats, own, start := bed.fleet.Stats(), ownTime(), time.Now()
	after := m
	// A turn may be shorter than a round: then it goes on until something is counted.
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
	s.own += ownTime() - own
	now, err := bed.usage()
	if err != nil {
		return err
	}
	s.spent += now.cpu - used.cpu
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

// settle makes figures of turns.
func (s *sizeBench) settle(bed *testbed) error {
	u, err := bed.usage()
	if err != nil {
		return err
	}
	s.Accepted, s.Counted, s.CheckIns, s.Share = median(s.accepted), median(s.rate), median(s.sent), median(s.shares)
	s.Engine = engineRates{median(s.publish), median(s.count)}
	s.Push, s.CheckIn, s.Heard = latenciesOf(s.stats.Push), latenciesOf(s.stats.CheckIn), latenciesOf(s.stats.Heard)
	s.RSS = u.peak
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

// sound says what went wrong in a run of a server that has just been started, whose
// fleet rests and whose bus is empty. It ends the run.
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
		err = fmt.Errorf("of %d results that were accepted, %d were counted and %d came late", seen.Accepted, counted, stale)
	case seen.Heard.Len() > counted:
		err = fmt.Errorf("agents heard of %d results that they count, and %d do", seen.Heard.Len(), counted)
	default:
		return nil
	}
	return b.because(errors.Join(err, b.fleet.Err()))
}

func (b *serverBench) print(w io.Writer) error {
	fmt.Fprintf(w, "%d agents, rounds of %d; %s; %s of %g s\n\n", b.Agents, b.Cohort, b.Engines, count(b.Turns, "turn"), b.Seconds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "SIZE\tBYTES\tACCEPTED/S\tCOUNTED/S\tBUS ALONE/S\tLEDGER ALONE/S\tSHARE\tCHECK-INS/S\tROUNDS\tUPDATES\t")
	for _, s := range b.Sizes {
		fmt.Fprintf(t, "%s\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.2f\t%.0f\t%d\t%d\t\n",
			s.Size, s.Bytes, s.Accepted, s.Counted, s.Engine.Publish, s.Engine.Count, s.Share, s.CheckIns, s.Rounds, s.Updates)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	fmt.Fprintln(t, "SIZE\tPUSH p50\tp99\tCHECK-IN p50\tp99\tTO COUNTED p50\tp99 ms\tSERVER MB\tCPU ms/UPDATE\tGENERATOR'S\t")
	for _, s := range b.Sizes {
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.0f\t%.0f\t%d\t%.2f\t%.2f\t\n",
			s.Size, s.Push.P50, s.Push.P99, s.CheckIn.P50, s.CheckIn.P99, s.Heard.P50, s.Heard.P99, s.RSS>>20, s.CPU, s.GeneratorCPU)
	}
	return t.Flush()
}
