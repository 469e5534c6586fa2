package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/forecast"
	"loadstar/lab/sim"
	"loadstar/nn/kernel"
)

func newBenchSimulate() *cobra.Command {
	var (
		asJSON        bool
		runs, workers int
		seconds       float64
	)
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Measure the simulator beside the bare training engine on the same cores",
		Long: `Measure the simulator beside the bare training engine on the same cores, in turn: the
bose2023 model with a personal head, four local steps of Adam at batch 64 for each
client, with everything that a run does besides: cohorts, examples, personal layers
kept, exact sums, evaluations, tables, checkpoints.

Fleets are 42 clients, all in every round; and 1,000 and 10,000 with cohorts of 100,
each a year of hourly random numbers. The engine is what bench engine measures, on as
many threads as the simulator has workers; it runs between the simulator's rounds, so
that both see the same machine. Steps are per second of the wall clock, without the
other's turns; figures are medians over runs.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := benchTime(runs, seconds)
			if err == nil && workers < 1 {
				err = fmt.Errorf("--workers is at least 1")
			}
			if err != nil {
				return usageError{err, "bench simulate "}
			}
			b, err := benchSimulate(cmd.Context(), runs, workers, d, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), b)
			}
			return b.print(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().IntVar(&runs, "runs", 3, "how many times to measure everything")
	cmd.Flags().IntVar(&workers, "workers", runtime.NumCPU(), "clients to train at a time, and threads of the engine")
	cmd.Flags().Float64Var(&seconds, "seconds", 20, "seconds of each measurement")
	return cmd
}

// simulateBench is the result of bench simulate.
type simulateBench struct {
	Kernel  string       `json:"kernel"`
	Workers int          `json:"workers"`
	Fleets  []fleetBench `json:"fleets"`
	// IdleCost is a round's time with 10,000 clients over that with 1,000, cohorts
	// alike.
	IdleCost float64 `json:"idle_cost"`
	RSS      int64   `json:"rss_bytes"`
}

type fleetBench struct {
	Clients     int     `json:"clients"`
	Cohort      int     `json:"cohort"`
	StepsPerS   float64 `json:"steps_per_s"`
	EnginePerS  float64 `json:"engine_steps_per_s"`
	Share       float64 `json:"share"`
	RoundMillis float64 `json:"round_ms"`
}

func benchSimulate(ctx context.Context, runs, workers int, d time.Duration, to io.Writer) (*simulateBench, error) {
	k, err := kernel.Default()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "loadstar-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	collectOften()
	all, _, err := benchFleet(10_000)
	if err != nil {
		return nil, err
	}
	m, err := forecast.New(benchModel, forecast.Shape{})
	if err != nil {
		return nil, err
	}
	engine := make([]*workload, workers)
	for i := range engine {
		engine[i] = newWorkload(m, k)
	}
	b := &simulateBench{Kernel: k.Name(), Workers: workers, Fleets: []fleetBench{{Clients: 42}, {Clients: 1000, Cohort: 100}, {Clients: 10_000, Cohort: 100}}}
	type measured struct{ steps, engine, share, round []float64 }
	figures := make([]measured, len(b.Fleets))
	var idle []float64
	bar := newProgress(to, runs*len(b.Fleets))
	defer bar.stop()
	bar.set(0, "")
	for turn := range runs {
		for i := range b.Fleets {
			f, v := &b.Fleets[i], &figures[i]
			fleet, err := all.First(f.Clients)
			if err != nil {
				return nil, err
			}
			// As many rounds as take about that long, by a guess at the engine's share.
			rounds := max(int(0.9*d.Seconds()*together(engine, d/20))/(4*max(f.Cohort, min(f.Clients, 100))), 1)
			plan, err := benchPlan(f.Cohort, rounds)
			if err != nil {
				return nil, err
			}
			turns := engineTurns{all: engine, last: time.Now()}
			s, err := sim.Run(ctx, sim.Config{
				Plan: plan, Dataset: fleet, Dir: filepath.Join(dir, fmt.Sprint(turn, f.Clients)), Kernel: k,
				Workers: workers, Memory: 512 << 20, Save: 30 * time.Second, Progress: turns.between,
			})
			if err != nil {
				return nil, err
			}
			seconds := s.Seconds.Train - turns.spent.Seconds()
			rate := turns.steps / turns.spent.Seconds()
			v.steps, v.engine = append(v.steps, float64(s.Steps)/seconds), append(v.engine, rate)
			v.share = append(v.share, float64(s.Steps)/seconds/rate)
			v.round = append(v.round, 1e3*seconds/float64(s.Rounds))
			b.RSS = max(b.RSS, s.RSS)
			bar.set(turn*len(b.Fleets)+i+1, "")
		}
		// In units of the engine at that time, so that a machine that changes its
		// speed does not count.
		idle = append(idle, figures[1].share[turn]/figures[2].share[turn])
	}
	for i, v := range figures {
		f := &b.Fleets[i]
		f.StepsPerS, f.EnginePerS, f.Share, f.RoundMillis = median(v.steps), median(v.engine), median(v.share), median(v.round)
	}
	b.IdleCost = median(idle)
	return b, nil
}

// engineTurns lets the bare engine run between the simulator's rounds, a fifth of the
// time or so: then both see the same machine, which changes its speed by the second.
type engineTurns struct {
	all   []*workload
	last  time.Time
	spent time.Duration
	steps float64
}

func (e *engineTurns) between(p sim.Progress) {
	if time.Since(e.last) < 400*time.Millisecond && p.Round < p.Rounds {
		return
	}
	start := time.Now()
	rate := together(e.all, 100*time.Millisecond)
	took := time.Since(start)
	e.spent += took
	e.steps += rate * took.Seconds()
	e.last = time.Now()
}

// benchPlan leaves next to nothing to be scored in the end, which is no training.
func benchPlan(cohort, rounds int) (*fed.Plan, error) {
	return recipe.Read(fmt.Appendf(nil, `
name: bench
algorithm: fedavg
model: {name: %s, split: {train: 0.949, validation: 0.05}}
partition: head
rounds: %d
schedule: {cohort: %d}
`, benchModel, rounds, cohort))
}

// together returns the steps per second of all workloads at the same time.
func together(all []*workload, d time.Duration) float64 {
	var wg sync.WaitGroup
	rates := make([]float64, len(all))
	for i, w := range all {
		wg.Go(func() {
			start, steps := time.Now(), 0
			for time.Since(start) < d {
				for range 16 {
					w.train()
				}
				steps += 16
			}
			rates[i] = float64(steps) / time.Since(start).Seconds()
		})
	}
	wg.Wait()
	sum := 0.0
	for _, r := range rates {
		sum += r
	}
	return sum
}

func (b *simulateBench) print(w io.Writer) error {
	fmt.Fprintf(w, "%s with a personal head, batch %d, %s, %s\n\n", benchModel, benchBatch, b.Kernel, count(b.Workers, "worker"))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "CLIENTS\tCOHORT\tSTEPS/S\tENGINE/S\tSHARE\tROUND ms\t")
	for _, f := range b.Fleets {
		cohort := "all"
		if f.Cohort > 0 {
			cohort = fmt.Sprint(f.Cohort)
		}
		fmt.Fprintf(t, "%d\t%s\t%.0f\t%.0f\t%.1f %%\t%.1f\t\n", f.Clients, cohort, f.StepsPerS, f.EnginePerS, 100*f.Share, f.RoundMillis)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nA round with 10,000 clients takes %.3f times one with 1,000. At most %d MB.\n", b.IdleCost, b.RSS>>20)
	return err
}
