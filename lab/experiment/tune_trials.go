package experiment

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/internal/disk"
	"loadstar/lab/sim"
	"loadstar/metric"
)

// trialResult contains the validation scores of one training run, by client.
type trialResult struct {
	Loss     []metric.Number `json:"loss"`
	Relative []metric.Number `json:"relative_mae"`
	Diverged bool            `json:"diverged,omitempty"`
	// CPU is the CPU time in seconds of the process that finished the training.
	CPU float64 `json:"cpu_seconds"`
}

func floats(numbers []metric.Number) []float64 {
	out := make([]float64, len(numbers))
	for i, v := range numbers {
		out[i] = float64(v)
	}
	return out
}

// trial trains a plan, or returns its stored result.
func (t *Tuning) trial(ctx context.Context, results *trials, p *fed.Plan) (trialResult, error) {
	text, err := recipe.Write(p)
	if err != nil {
		return trialResult{}, err
	}
	sum := sha256.Sum256(text)
	key := hex.EncodeToString(sum[:12])
	if r, ok := results.get(key); ok {
		return r, nil
	}
	if err := ctx.Err(); err != nil {
		return trialResult{}, err
	}
	c := sim.Config{
		Plan: p, Dataset: t.Dataset, DataPath: t.DataPath, Dir: filepath.Join(t.Dir, "unfinished", key), Kernel: t.Kernel,
		Workers: 1, Memory: 512 << 20, Save: 30 * time.Second,
	}
	_, state, err := sim.Look(c)
	if err != nil {
		return trialResult{}, err
	}
	c.Resume = state == sim.Begun
	rows, cpu, err := sim.Validate(ctx, c)
	r := trialResult{CPU: cpu, Diverged: errors.Is(err, fed.ErrDiverged)}
	if err != nil && !r.Diverged {
		return r, err
	}
	known := false // the loss of a client without a validation window is NaN
	for _, row := range rows {
		r.Diverged, known = r.Diverged || math.IsInf(row.Loss, 0), known || !math.IsNaN(row.Loss)
		r.Loss, r.Relative = append(r.Loss, metric.Number(row.Loss)), append(r.Relative, metric.Number(row.RelativeMAE))
	}
	if !known && !r.Diverged {
		return r, errors.New("no client has a complete validation window; use more readings, or enlarge the validation split with model.split in the plan")
	}
	if err := results.put(key, r); err != nil {
		return r, err
	}
	return r, os.RemoveAll(c.Dir)
}

// trials contains the results of finished training runs, in a file.
type trials struct {
	path string
	mu   sync.Mutex
	file struct {
		Data    string                 `json:"data"` // fingerprint of the dataset
		Kernel  string                 `json:"kernel"`
		Results map[string]trialResult `json:"results"`
	}
}

func openTrials(dir, data, kernel string) (*trials, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	t := &trials{path: filepath.Join(dir, "results.json")}
	t.file.Data, t.file.Kernel, t.file.Results = data, kernel, map[string]trialResult{}
	text, err := os.ReadFile(t.path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	} else if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &t.file); err != nil {
		return nil, fmt.Errorf("%s: %w: choose another folder", t.path, err)
	}
	if t.file.Data != data || t.file.Kernel != kernel {
		return nil, fmt.Errorf("%s has results on other data or with other kernels: choose another folder", dir)
	}
	return t, nil
}

func (t *trials) get(key string) (trialResult, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, ok := t.file.Results[key]
	return r, ok
}

func (t *trials) put(key string, r trialResult) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.file.Results[key] = r
	return disk.Write(t.path, func(f *os.File) error { return json.NewEncoder(f).Encode(t.file) })
}
