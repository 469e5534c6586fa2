package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	v1 "loadstar/proto/loadstar/v1"
)

func newBenchSoak() *cobra.Command {
	var (
		e      engines
		agents int
		length time.Duration
		size   string
		rate   float64
	)
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Load the server for long, and see that it does not grow",
		Long: `Load the server for long with the fleet of bench fleet, round after round, and look at its
memory, open files and goroutines every few seconds. The first tenth, up to five minutes,
is for warming up. It fails if the memory of the last quarter is more than 5 % and 16 MB
above that of the second, if files or goroutines have become more, or if a result is
rejected, lost or counted twice. In less than ten minutes caches are still filling, so
25 % and 32 MB are allowed: that finds what leaks with every result, and nothing finer.`,
		Example: "  loadstar bench soak --for 1h",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := e.check()
			if _, ok := fleetSizes[size]; err == nil && (!ok || agents < 8 || agents > maxAgents || length < 2*time.Second || !(rate > 0)) {
				err = fmt.Errorf("--agents is from 8 to %d, --for at least 2s, --size 24k or 170k and --rate above 0", maxAgents)
			}
			if err != nil {
				return usageError{err, "bench soak "}
			}
			s, err := soak(cmd.Context(), e, agents, size, rate, length, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), s)
			if s.grown != nil {
				return s.grown
			}
			return nil
		},
	}
	e.add(cmd.Flags())
	cmd.Flags().IntVar(&agents, "agents", 1000, "how many agents, with one client each")
	cmd.Flags().DurationVar(&length, "for", time.Hour, "how long")
	cmd.Flags().StringVar(&size, "size", "24k", "size of the shared part: 24k or 170k")
	cmd.Flags().Float64Var(&rate, "rate", 500, "check-ins a second that the fleet is paced to")
	return cmd
}

// soakResult is what came of it.
type soakResult struct {
	length          time.Duration
	rounds, updates int64
	early, late     vitals // medians of the second quarter and of the last
	grown           error  // what did
}

func (s *soakResult) String() string {
	how := "flat"
	if s.grown != nil {
		how = "grows"
	}
	return fmt.Sprintf("soak %v, %s, %s, RSS %d -> %d MB, %s", s.length, count(int(s.rounds), "round"), count(int(s.updates), "update"),
		int64(s.early.rss)>>20, int64(s.late.rss)>>20, how)
}

// vitals are what must not grow.
type vitals struct{ rss, files, goroutines float64 }

func soak(ctx context.Context, e engines, agents int, size string, rate float64, length time.Duration, to io.Writer) (*soakResult, error) {
	bed, err := newTestbed(ctx, e, agents, to)
	if err != nil {
		return nil, err
	}
	defer bed.close()
	if err := bed.serve(ctx, "--poll", "50ms", "--rate", fmt.Sprint(rate)); err != nil {
		return nil, err
	}
	run, err := bed.start(ctx, fleetPlan(size, max(agents/2, 1)), agents)
	if err != nil {
		return nil, err
	}
	seen := bed.fleet.Stats()
	bed.fleet.Go()
	if err := pause(ctx, min(length/10, 5*time.Minute)); err != nil {
		return nil, err
	}
	var (
		start   = time.Now()
		every   = min(max(length/720, 200*time.Millisecond), 5*time.Second)
		samples []vitals
		before  map[string]float64
		m       map[string]float64
	)
	bar := newProgress(to, int(length/time.Second))
	defer bar.stop()
	for time.Since(start) < length {
		if m, err = bed.metrics(ctx); err != nil {
			return nil, err
		}
		if before == nil {
			before = m
		}
		u, err := bed.usage()
		if err != nil {
			return nil, err
		}
		samples = append(samples, vitals{float64(u.rss), m["process_open_fds"], m["go_goroutines"]})
		bar.set(int(time.Since(start)/time.Second), "")
		if err := pause(ctx, every); err != nil {
			return nil, err
		}
	}
	if err := bed.rest(ctx); err != nil {
		return nil, err
	}
	s := &soakResult{length: length, rounds: int64(m[bed.merged] - before[bed.merged]), updates: int64(m[bed.counted] - before[bed.counted])}
	if err := bed.sound(ctx, run, bed.fleet.Stats().Since(seen)); err != nil {
		return nil, err
	}
	if s.rounds == 0 {
		return nil, bed.because(errors.New("no round ended: soak for longer"))
	}
	s.early, s.late, s.grown = growth(samples, allowed(length))
	return s, nil
}

// tolerance is the growth that is let pass: a share, and bytes of memory beyond it.
type tolerance struct{ share, memory float64 }

// allowed is finer the longer one looks: at first caches fill.
func allowed(length time.Duration) tolerance {
	if length < 10*time.Minute {
		return tolerance{share: 0.25, memory: 32 << 20}
	}
	return tolerance{share: 0.05, memory: 16 << 20}
}

// growth compares the second quarter of a time with its last, and says what has grown.
func growth(samples []vitals, let tolerance) (early, late vitals, grown error) {
	quarter := func(k int) []vitals { return samples[k*len(samples)/4 : max((k+1)*len(samples)/4, k*len(samples)/4+1)] }
	typical := func(of []vitals, pick func(vitals) float64) float64 {
		x := make([]float64, len(of))
		for i, v := range of {
			x[i] = pick(v)
		}
		return median(x)
	}
	for _, what := range []struct {
		name  string
		unit  float64
		slack float64 // beyond the share
		at    func(*vitals) *float64
	}{
		{"MB of memory", 1 << 20, let.memory, func(v *vitals) *float64 { return &v.rss }},
		{"open files", 1, 8, func(v *vitals) *float64 { return &v.files }},
		{"goroutines", 1, 32, func(v *vitals) *float64 { return &v.goroutines }},
	} {
		pick := func(v vitals) float64 { return *what.at(&v) }
		was, is := typical(quarter(1), pick), typical(quarter(3), pick)
		*what.at(&early), *what.at(&late) = was, is
		if is > (1+let.share)*was+what.slack {
			grown = errors.Join(grown, fmt.Errorf("from the second quarter to the last the server grew from %.0f to %.0f %s", was/what.unit, is/what.unit, what.name))
		}
	}
	return early, late, grown
}

// end stops a run.
func (b *testbed) end(ctx context.Context, run string) error {
	_, err := b.operator.StopRun(ctx, &v1.StopRunRequest{Run: run})
	return plain(err)
}
