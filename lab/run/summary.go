package run

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"loadstar/metric"
)

const summaryName = "summary.json"

// LastRound contains mean scores over clients for the weights of the last round.
type LastRound struct {
	MAE         metric.Number `json:"mae"`
	RelativeMAE metric.Number `json:"relative_mae"`
}

// Summary contains the main results of a finished run. Seconds and the rates per second
// describe only the process that finished the run.
type Summary struct {
	Plan      string `json:"plan"`
	Algorithm string `json:"algorithm"`
	Dataset   string `json:"dataset"`
	Generated bool   `json:"generated"`
	// Data is the fingerprint of the dataset's content, and DataPath the path from which
	// the dataset was read, or "" if it is not known.
	Data     string `json:"data"`
	DataPath string `json:"data_path,omitempty"`
	// Start is the SHA-256 of the weights from which the run started, if the plan names such
	// weights.
	Start   string `json:"start,omitempty"`
	Kernel  string `json:"kernel"`
	Clients int    `json:"clients"`
	// Zone is the time zone of the dataset's clock, and Interval the length of a step in
	// seconds. Summaries of older versions lack them.
	Zone     string `json:"zone,omitempty"`
	Interval int64  `json:"interval_seconds,omitempty"`
	// LeftOut lists the meters that the run left out because they have no complete
	// training example.
	LeftOut []string `json:"left_out,omitempty"`
	// Weights is the SHA-256 of the list that sha256sum prints for
	// shared.safetensors and personal/*.
	Weights string `json:"weights_sha256"`
	Rounds  int    `json:"rounds"`
	Steps   int64  `json:"steps"`
	// StepsPerS is the number of gradient steps per second of training, including
	// overhead.
	StepsPerS float64 `json:"steps_per_s"`
	// EngineShare is the share of the workers' time spent on gradients and optimizer
	// steps.
	EngineShare float64 `json:"engine_share"`
	Workers     int     `json:"workers"`
	// RSS is the peak memory of the process, in bytes.
	RSS         int64 `json:"rss_bytes"`
	RelativeMAE struct {
		Mean     metric.Number `json:"mean"`
		Median   metric.Number `json:"median"`
		BelowOne metric.Number `json:"below_one"`
		// Reference is last-value or last-week: the forecast to which errors are relative.
		Reference string `json:"reference"`
	} `json:"relative_mae"`
	// Corrected means that the scored forecasts are corrected by their latest errors.
	Corrected bool `json:"corrected"`
	// Coverage contains the share of loads in the widest central interval, as a mean over
	// clients, before and after calibration. It is nil if the model forecasts only points.
	Coverage *Coverage     `json:"coverage,omitempty"`
	MAE      metric.Number `json:"mae"`
	// Last contains the scores of the last round's weights, if the plan could choose earlier
	// ones.
	Last *LastRound `json:"last_round,omitempty"`
	// Course describes how the losses changed in training. Summaries of older versions lack it;
	// ReadSummary then computes it from the run's tables.
	Course *Course `json:"course,omitempty"`
	// Fleet contains the distribution of every metric over clients.
	Fleet metric.Fleet `json:"fleet,omitempty"`
	// Down and Up are the bytes that one client receives and sends in a round.
	Down    int64 `json:"bytes_down_per_turn"`
	Up      int64 `json:"bytes_up_per_turn"`
	Seconds struct {
		Prepare float64 `json:"prepare"`
		Train   float64 `json:"train"`
		Score   float64 `json:"score"`
		// CPU is the CPU time of the workers, for training and scoring.
		CPU float64 `json:"cpu"`
	} `json:"seconds"`
}

// Coverage is the share of loads in an interval.
type Coverage struct {
	Model      metric.Number `json:"model"`
	Calibrated metric.Number `json:"calibrated"`
}

// ReadSummary reads the summary in the folder of a run. The error is fs.ErrNotExist if
// the run is not finished.
func ReadSummary(dir string) (*Summary, error) {
	path := filepath.Join(dir, summaryName)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var s Summary
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if s.Course == nil {
		c, err := ReadCourse(dir)
		if err != nil {
			return nil, err
		}
		s.Course = &c
	}
	return &s, nil
}
