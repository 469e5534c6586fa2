package sim

import (
	"time"

	"golang.org/x/sys/unix"

	"loadstar/metric"
)

// Summary is a run in figures. Those under seconds, and what is per second, are of
// the process that ended it.
type Summary struct {
	Plan      string `json:"plan"`
	Algorithm string `json:"algorithm"`
	Dataset   string `json:"dataset"`
	Generated bool   `json:"generated"`
	// Data tells the dataset from others of its name.
	Data    string `json:"data"`
	Kernel  string `json:"kernel"`
	Clients int    `json:"clients"`
	// LeftOut are the meters without a complete training example.
	LeftOut []string `json:"left_out,omitempty"`
	// Weights is the SHA-256 of the list that sha256sum prints of
	// shared.safetensors and personal/*.
	Weights string `json:"weights_sha256"`
	Rounds  int    `json:"rounds"`
	Steps   int64  `json:"steps"`
	// StepsPerS is gradient steps per second of training, all included.
	StepsPerS float64 `json:"steps_per_s"`
	// EngineShare is the share of the workers' time that went into gradients and
	// the steps of optimizers.
	EngineShare float64 `json:"engine_share"`
	Workers     int     `json:"workers"`
	// RSS is the most memory that the process had at any time.
	RSS  int64 `json:"rss_bytes"`
	MASE struct {
		Mean     metric.Number `json:"mean"`
		Median   metric.Number `json:"median"`
		BelowOne metric.Number `json:"below_one"`
	} `json:"mase"`
	MAE metric.Number `json:"mae"`
	// Fleet is how every metric spreads over clients.
	Fleet metric.Fleet `json:"fleet,omitempty"`
	// Down and Up are the bytes of one client's part of a round.
	Down    int64 `json:"bytes_down_per_turn"`
	Up      int64 `json:"bytes_up_per_turn"`
	Seconds struct {
		Prepare float64 `json:"prepare"`
		Train   float64 `json:"train"`
		Score   float64 `json:"score"`
	} `json:"seconds"`
}

// trained takes the figures of the training in this process.
func (s *Summary) trained(d time.Duration, steps int64, workers []*worker) {
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

// scored takes the figures of the end.
func (s *Summary) scored(f metric.Fleet, rounds int, d time.Duration) {
	s.Rounds = rounds
	s.Seconds.Score = d.Seconds()
	mase := f["mase"]
	s.MASE.Mean, s.MASE.Median = mase.Mean, mase.Median
	if mase.BelowOne != nil {
		s.MASE.BelowOne = *mase.BelowOne
	}
	s.MAE, s.Fleet = f["mae"].Mean, f
	var use unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &use) == nil {
		s.RSS = int64(use.Maxrss) * 1024
	}
}

// stopwatch returns a function that says how long ago that was.
func stopwatch() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}
