package sim

import (
	"time"

	"loadstar/internal/proc"
	"loadstar/lab/run"
	"loadstar/metric"
)

// summarizeTraining records how fast this process trained.
func summarizeTraining(s *run.Summary, d time.Duration, steps int64, workers []*worker) {
	var engine time.Duration
	for _, w := range workers {
		engine += w.client.Engine()
	}
	s.Workers = len(workers)
	s.Seconds.Train = d.Seconds()
	if steps > 0 {
		s.StepsPerS = float64(steps) / d.Seconds()
		s.EngineShare = engine.Seconds() / d.Seconds() / float64(len(workers))
	}
}

// summarizeScores records the fleet's scores and the process's peak memory.
func summarizeScores(s *run.Summary, f metric.Fleet, rounds int, d time.Duration) {
	s.Rounds = rounds
	s.Seconds.Score = d.Seconds()
	relative := f["relative_mae"]
	s.RelativeMAE.Mean, s.RelativeMAE.Median = relative.Mean, relative.Median
	if relative.BelowOne != nil {
		s.RelativeMAE.BelowOne = *relative.BelowOne
	}
	if c := f["coverage"]; c.Count > 0 {
		s.Coverage = &run.Coverage{Model: c.Mean, Calibrated: f["coverage_calibrated"].Mean}
	}
	s.MAE, s.Fleet = f["mae"].Mean, f
	s.RSS = proc.PeakMemory()
}

// stopwatch returns a function that returns the time since the call of stopwatch.
func stopwatch() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}
