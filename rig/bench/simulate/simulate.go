// Package simulate compares the speed of the simulator with that of the bare training
// engine on the same cores.
package simulate

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/lab/sim"
	"loadstar/nn/kernel"
	"loadstar/rig/bench"
)

// Result contains the measurements of the simulator as medians over all runs.
type Result struct {
	Kernel  string  `json:"kernel"`
	Workers int     `json:"workers"`
	Fleets  []Fleet `json:"fleets"`
	// IdleCost is the time of a round with the largest fleet divided by the time of a round
	// with the second largest fleet. Both have the same cohort.
	IdleCost float64 `json:"idle_cost"`
	RSS      int64   `json:"rss_bytes"`
}

// Fleet contains the measurements for one fleet size. A cohort of 0 means the whole fleet.
type Fleet struct {
	Clients     int     `json:"clients"`
	Cohort      int     `json:"cohort"`
	StepsPerS   float64 `json:"steps_per_s"`
	EnginePerS  float64 `json:"engine_steps_per_s"`
	Share       float64 `json:"share"`
	RoundMillis float64 `json:"round_ms"`
}

// Usual returns the fleets to measure. The last two have the same cohort, so that the ratio of
// their times is the cost of idle clients.
func Usual() []Fleet {
	return []Fleet{{Clients: 42}, {Clients: 1000, Cohort: 100}, {Clients: 10_000, Cohort: 100}}
}

// Config selects what to measure.
type Config struct {
	Model   string
	Fleets  []Fleet // at least two; see Usual
	Runs    int     // repetitions per fleet
	Workers int
	Length  time.Duration // approximate duration of a run
}

// measured contains the measurements of one fleet, one value per run.
type measured struct{ steps, engine, share, round []float64 }

// Run measures all fleets one after the other, and repeats these measurements c.Runs times.
func Run(ctx context.Context, c Config, progress bench.Progress) (*Result, error) {
	if stepsPerTurn[c.Model] == 0 {
		return nil, fmt.Errorf("model %q cannot be measured; choose bose2023 or dense", c.Model)
	}
	k, err := kernel.Default()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "loadstar-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	most := 0
	for _, f := range c.Fleets {
		most = max(most, f.Clients)
	}
	all, err := bench.RandomFleet(most)
	if err != nil {
		return nil, err
	}
	engine := make([]*bench.Workload, c.Workers)
	for i := range engine {
		if engine[i], err = bench.NewWorkload(k, c.Model); err != nil {
			return nil, err
		}
	}
	b := &Result{Kernel: k.Name(), Workers: c.Workers, Fleets: c.Fleets}
	figures := make([]measured, len(b.Fleets))
	last := len(b.Fleets) - 1
	var idle []float64
	total := c.Runs * len(b.Fleets)
	progress(0, total, "")
	for run := range c.Runs {
		for i := range b.Fleets {
			f, v := &b.Fleets[i], &figures[i]
			fleet, err := all.First(f.Clients)
			if err != nil {
				return nil, err
			}
			// Estimate the number of rounds for c.Length from the engine's speed.
			rounds := max(int(0.9*c.Length.Seconds()*trainAll(engine, c.Length/20))/(stepsPerTurn[c.Model]*max(f.Cohort, min(f.Clients, 100))), 1)
			p, err := plan(c.Model, f.Cohort, rounds)
			if err != nil {
				return nil, err
			}
			turns := engineTurns{all: engine, last: time.Now()}
			s, err := sim.Run(ctx, sim.Config{
				Plan: p, Dataset: fleet, Dir: filepath.Join(dir, fmt.Sprint(run, f.Clients)), Kernel: k,
				Workers: c.Workers, Memory: 512 << 20, Save: 30 * time.Second, Progress: turns.between, OnlyTraining: true,
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
			progress(run*len(b.Fleets)+i+1, total, "")
		}
		// Compare shares of the engine's speed instead of times, because the machine's
		// speed changes between measurements.
		idle = append(idle, figures[last-1].share[run]/figures[last].share[run])
	}
	for i, v := range figures {
		f := &b.Fleets[i]
		f.StepsPerS, f.EnginePerS, f.Share, f.RoundMillis = bench.Median(v.steps), bench.Median(v.engine), bench.Median(v.share), bench.Median(v.round)
	}
	b.IdleCost = bench.Median(idle)
	return b, nil
}

// engineTurns runs the bare engine between the simulator's rounds, for about a fifth of the
// time. The machine's speed changes from second to second. Because the two alternate, these
// changes affect both.
type engineTurns struct {
	all   []*bench.Workload
	last  time.Time
	spent time.Duration
	steps float64
}

func (e *engineTurns) between(p sim.Progress) {
	if time.Since(e.last) < 400*time.Millisecond && p.Round < p.Rounds {
		return
	}
	start := time.Now()
	rate := trainAll(e.all, 100*time.Millisecond)
	took := time.Since(start)
	e.spent += took
	e.steps += rate * took.Seconds()
	e.last = time.Now()
}

// plan returns a plan with a tiny test split, because scoring is not measured.
func plan(model string, cohort, rounds int) (*fed.Plan, error) {
	partition := map[string]string{"bose2023": "head", "dense": "correction"}[model]
	return recipe.Read(fmt.Appendf(nil, `
name: bench
algorithm: fedavg
model: {name: %s, split: {train: 0.949, validation: 0.05}}
partition: %s
rounds: %d
schedule: {cohort: %d}
`, model, partition, rounds, cohort))
}

// stepsPerTurn lists the models that can be measured, with the default number of steps that
// a client trains in a round.
var stepsPerTurn = map[string]int{"bose2023": 4, "dense": 8}

// trainAll trains all workloads in parallel for the duration d and returns their total
// number of steps per second.
func trainAll(all []*bench.Workload, d time.Duration) float64 {
	var wg sync.WaitGroup
	rates := make([]float64, len(all))
	for i, w := range all {
		wg.Go(func() {
			start, steps := time.Now(), 0
			for time.Since(start) < d {
				for range 16 {
					w.Train()
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
