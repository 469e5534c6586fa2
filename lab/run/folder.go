// Package run reads and writes the folder of a run: plan, results, and the state for
// resuming it.
//
//	plan.yaml               the effective plan, with all defaults
//	rounds.csv .parquet     a row per round
//	evaluations.csv ...     a row per client and evaluation during training
//	clients.csv ...         a row per client with its final scores
//	profile.csv ...         errors by hour of the day and by forecast step
//	forecasts.csv ...       test forecasts of a sample of clients
//	errors.csv ...          a row per client and day with its mean absolute test error
//	peaks.csv ...           bias and errors at daily peaks, a row per client
//	calibration.csv ...     share of loads below each quantile by hour of the day
//	curves.csv ...          load and forecasts of a sample of clients in the test split, for charts
//	baselines/*.csv ...     scores of baselines on the same task, if they were computed
//	shared.safetensors      the shared weights
//	personal/*.safetensors  each client's personal weights
//	tuned/*.safetensors     all weights of each client, if the plan fine-tunes them or scores the client's own
//	scaling.safetensors     the scaling of each client's inputs
//	states.bin              what clients learned from the errors of their forecasts
//	summary.json            the main results
//	events.jsonl            a log with wall-clock times
//	checkpoint, kept.bin    the state for resuming the run
//
// All files depend only on the plan, the data and the kernel set, except for the events, and
// the path of the data and the measured times in the summary. They are identical after any
// number of interruptions.
package run

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"loadstar/internal/disk"
	"loadstar/metric"
)

// Round is a row of the rounds table. Times are virtual, in seconds.
type Round struct {
	Round     int     `parquet:"round"`
	Version   int     `parquet:"version"` // version of the shared weights after the round
	Outcome   string  `parquet:"outcome,dict"`
	Opened    float64 `parquet:"opened_s"`
	Closed    float64 `parquet:"closed_s"`
	Asked     int     `parquet:"asked"`
	Counted   int     `parquet:"counted"`
	Late      int     `parquet:"late"`
	Lost      int     `parquet:"lost"`
	Staleness float64 `parquet:"mean_staleness"`
	Stalest   int     `parquet:"max_staleness"`
	Steps     int     `parquet:"steps"`
	Loss      float64 `parquet:"train_loss"` // mean training loss over clients
	Down      int64   `parquet:"bytes_down"`
	Up        int64   `parquet:"bytes_up"`
}

// Evaluation is a row of the evaluations table: scores of one client on a sample of
// validation windows.
type Evaluation struct {
	Round       int     `parquet:"round"` // number of rounds done before the evaluation
	Client      string  `parquet:"unique_id,dict"`
	Loss        float64 `parquet:"loss"`
	MAE         float64 `parquet:"mae"`
	RMSE        float64 `parquet:"rmse"`
	RelativeMAE float64 `parquet:"relative_mae"`
}

// Client is a row of the clients table: mean and standard deviation of a client's load in the
// training split, and its scores on the test split. Loads and errors are in kW. The point
// forecasts are those that a client would use, and are blended with a simple forecast if the
// plan requires it. ModelRelativeMAE is the relative MAE of the model alone. The scores of
// quantiles are NaN if the model forecasts only points. Coverage is the share of loads in the
// widest central interval, such as P10 to P90.
type Client struct {
	Client             string  `parquet:"unique_id"`
	Level              float64 `parquet:"mean_kw"`
	Spread             float64 `parquet:"std_kw"`
	Examples           int     `parquet:"train_examples"`
	Targets            int     `parquet:"targets"`
	Loss               float64 `parquet:"loss"`
	MAE                float64 `parquet:"mae"`
	RMSE               float64 `parquet:"rmse"`
	NMAE               float64 `parquet:"nmae"`
	MAPE               float64 `parquet:"mape"`
	SMAPE              float64 `parquet:"smape"`
	RelativeMAE        float64 `parquet:"relative_mae"`
	ModelRelativeMAE   float64 `parquet:"relative_mae_model"`
	Coverage           float64 `parquet:"coverage"`
	CalibratedCoverage float64 `parquet:"coverage_calibrated"`
	Pinball            float64 `parquet:"pinball"` // mean over the levels
	CalibratedPinball  float64 `parquet:"pinball_calibrated"`
	// Levels contains two scores for each quantile of [Results].Levels, after calibration: the
	// pinball loss, and the share of loads that are not above the forecast.
	Levels []float64 `parquet:"-"`
}

// Profile is a row of the profile table: the mean absolute error for one hour of the day,
// on the dataset's clock, or for one forecast step. Errors are relative to a client's mean
// load and averaged over clients.
type Profile struct {
	By      string  `parquet:"by,dict"` // "hour" or "step"
	At      int     `parquet:"at"`
	Clients int     `parquet:"clients"`
	NMAE    float64 `parquet:"nmae"`
}

// Forecast is a row of the forecasts table. P10, P50 and P90 are calibrated quantiles, or
// NaN if the model does not forecast them.
type Forecast struct {
	Client   string    `parquet:"unique_id,dict"`
	Cutoff   time.Time `parquet:"cutoff,timestamp(millisecond)"`
	Time     time.Time `parquet:"ds,timestamp(millisecond)"`
	Actual   float64   `parquet:"y"`
	Forecast float64   `parquet:"forecast"`
	LastWeek float64   `parquet:"last_week"` // load at the same clock time a week before
	P10      float64   `parquet:"P10"`
	P50      float64   `parquet:"P50"`
	P90      float64   `parquet:"P90"`
	// Levels contains the other quantiles of [Results].Levels, in ascending order.
	Levels []float64 `parquet:"-"`
}

// Error is a row of the errors table: the mean absolute error of a client's forecasts whose
// targets are on one day of the dataset's clock. Two methods can be compared by their
// errors on the same days.
type Error struct {
	Client  string  `parquet:"unique_id,dict"`
	Day     string  `parquet:"day,dict"` // such as 2017-03-01
	Targets int     `parquet:"targets"`
	MAE     float64 `parquet:"mae"`
}

// Results contains the tables that are written at the end of a run.
type Results struct {
	// Levels are the quantiles that the model forecasts, in ascending order, or nil if it
	// forecasts only points.
	Levels    []float64
	Clients   []Client
	Profile   []Profile
	Forecasts []Forecast
	// Errors yields the rows of the errors table. It is an iterator, because a large fleet has
	// very many rows. It is nil if there are none.
	Errors      iter.Seq[Error]
	Peaks       []Peak
	Calibration []Calibration
	Curves      []Curve
}

// OtherLevels returns the quantiles that do not have their own field in [Forecast].
func OtherLevels(levels []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(levels), func(l float64) bool { return l == 0.1 || l == 0.5 || l == 0.9 })
}

// levelColumns returns the names of the columns for all quantiles, such as P05.
func levelColumns(levels []float64, prefixes ...string) (names []string) {
	for _, l := range levels {
		for _, p := range prefixes {
			names = append(names, p+metric.LevelName(l))
		}
	}
	return names
}

// Baseline is a row of the baselines table, which is in the folder that contains the runs on a
// dataset. Reference is the forecast to which the relative MAE refers.
type Baseline struct {
	Method      string  `parquet:"method"`
	Client      string  `parquet:"unique_id"`
	MAE         float64 `parquet:"mae"`
	RMSE        float64 `parquet:"rmse"`
	NMAE        float64 `parquet:"nmae"`
	RelativeMAE float64 `parquet:"relative_mae"`
	Reference   string  `parquet:"reference,dict"`
}

// WriteBaselines writes the baselines table into the folder of a dataset's runs.
func WriteBaselines(dir string, rows []Baseline) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return writeTable(filepath.Join(dir, "baselines"), slices.Values(rows))
}

// Offsets contains the lengths of the tables at a checkpoint, in bytes.
type Offsets struct{ Rounds, Evaluations int64 }

// Folder is the open folder of a run. Only one process can open it at a time.
type Folder struct {
	Dir         string
	Rounds      *Table[Round]
	Evaluations *Table[Evaluation]

	lock   *os.File
	events *os.File
}

// ErrExists means that the folder already contains a run.
var ErrExists = errors.New("the folder already contains a run")

// Create creates the folder of a run and writes its effective plan.
func Create(dir string, plan []byte) (*Folder, error) {
	if _, err := os.Stat(filepath.Join(dir, "plan.yaml")); err == nil {
		return nil, fmt.Errorf("%s: %w", dir, ErrExists)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := open(dir)
	if err != nil {
		return nil, err
	}
	err = disk.Write(filepath.Join(dir, "plan.yaml"), func(w *os.File) error {
		_, err := w.Write(plan)
		return err
	})
	if err == nil {
		err = f.OpenTables(Offsets{})
	}
	if err != nil {
		_ = f.Close() // the error of Create is more important
		return nil, err
	}
	return f, nil
}

// Reopen opens the folder of an existing run, which must have the given plan. Unless upgrade is
// nil, it is called to convert a plan of an older version of the program to the format of this
// version. The caller then calls OpenTables with the offsets in the checkpoint.
func Reopen(dir string, plan []byte, upgrade func(plan []byte) ([]byte, error)) (*Folder, error) {
	before, err := os.ReadFile(filepath.Join(dir, "plan.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: there is no run to resume", dir)
	} else if err != nil {
		return nil, err
	}
	if !bytes.Equal(before, plan) && upgrade != nil {
		if before, err = upgrade(before); err != nil {
			return nil, fmt.Errorf("%s: plan.yaml: %w", dir, err)
		}
	}
	if !bytes.Equal(before, plan) {
		return nil, fmt.Errorf("%s contains a run of a different plan; compare its plan.yaml", dir)
	}
	return open(dir)
}

func open(dir string) (*Folder, error) {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := disk.TryLock(lock); err != nil {
		lock.Close()
		return nil, fmt.Errorf("%s: another process is using this run", dir)
	}
	if err := removeTemporary(dir); err != nil {
		lock.Close()
		return nil, err
	}
	events, err := os.OpenFile(filepath.Join(dir, "events.jsonl"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		lock.Close()
		return nil, err
	}
	return &Folder{Dir: dir, lock: lock, events: events}, nil
}

// removeTemporary removes the temporary files that package disk leaves when a process is
// killed.
func removeTemporary(dir string) error {
	for _, pattern := range []string{".*.[0-9]*", "personal/.*.safetensors.[0-9]*", "tuned/.*.safetensors.[0-9]*"} {
		left, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, path := range left {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// OpenTables opens the tables and truncates them to the offsets.
func (f *Folder) OpenTables(at Offsets) (err error) {
	if f.Rounds, err = openTable[Round](f.path("rounds.csv"), at.Rounds); err != nil {
		return err
	}
	f.Evaluations, err = openTable[Evaluation](f.path("evaluations.csv"), at.Evaluations)
	return err
}

// Flush writes buffered rows to the operating system and returns the lengths of the
// tables.
func (f *Folder) Flush() (at Offsets, err error) {
	if at.Rounds, err = f.Rounds.flush(); err != nil {
		return at, err
	}
	at.Evaluations, err = f.Evaluations.flush()
	return at, err
}

// Settle waits until the flushed rows are on disk. Callers may append rows in the meantime.
func (f *Folder) Settle() error { return errors.Join(f.Rounds.f.Sync(), f.Evaluations.f.Sync()) }

func (f *Folder) path(name string) string { return filepath.Join(f.Dir, name) }

// Kept returns the path of the file for client state between rounds.
func (f *Folder) Kept() string { return f.path("kept.bin") }

// Event appends a line to events.jsonl. The message should be constant, and v contains the
// data of the event.
func (f *Folder) Event(message string, v any) error {
	line, err := json.Marshal(struct {
		Time  time.Time `json:"time"`
		Event string    `json:"event"`
		Data  any       `json:"data,omitempty"`
	}{time.Now().UTC(), message, v})
	if err != nil {
		return err
	}
	_, err = f.events.Write(append(line, '\n'))
	return err
}

// Save writes the checkpoint and replaces the previous one.
func (f *Folder) Save(checkpoint []byte) error {
	return disk.Write(f.path("checkpoint"), func(w *os.File) error {
		_, err := w.Write(checkpoint)
		return err
	})
}

// Load reads the checkpoint. It returns nil if there is none.
func (f *Folder) Load() ([]byte, error) {
	text, err := os.ReadFile(f.path("checkpoint"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// Finish writes the tables of results, the Parquet copies of the other tables, and the summary.
// It writes the summary last, because a run counts as finished if its folder has a summary.
func (f *Folder) Finish(r Results, summary *Summary) error {
	if _, err := f.Flush(); err != nil {
		return err
	}
	err := errors.Join(
		f.Settle(),
		writeTable(f.path("clients"), slices.Values(r.Clients), levelColumns(r.Levels, "pinball_", "below_")...),
		writeTable(f.path("profile"), slices.Values(r.Profile)),
		writeTable(f.path("forecasts"), slices.Values(r.Forecasts), levelColumns(OtherLevels(r.Levels), "")...),
		writeTable(f.path("errors"), r.Errors),
		writeTable(f.path("peaks"), slices.Values(r.Peaks)),
		writeTable(f.path("calibration"), slices.Values(r.Calibration)),
		writeTable(f.path("curves"), slices.Values(r.Curves)),
		writeParquet[Round](f.path("rounds.csv"), f.path("rounds.parquet")),
		writeParquet[Evaluation](f.path("evaluations.csv"), f.path("evaluations.parquet")),
	)
	if err != nil {
		return err
	}
	c, err := ReadCourse(f.Dir)
	if err != nil {
		return err
	}
	summary.Course = &c
	return disk.Write(f.path(summaryName), func(w *os.File) error {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(summary)
	})
}

// Shared returns the path of the file for the shared weights.
func (f *Folder) Shared() string { return f.path("shared.safetensors") }

// Personal returns the path of the file for a client's personal weights, and the file's
// name relative to the run's folder. It creates the folder of the file.
func (f *Folder) Personal(client string) (path, name string, err error) {
	name = "personal/" + url.PathEscape(client) + ".safetensors"
	return f.path(name), name, os.MkdirAll(f.path("personal"), 0o755)
}

// Tuned returns the path of the file for a client's fine-tuned weights. It creates the folder
// of the file.
func (f *Folder) Tuned(client string) (path string, err error) {
	return f.path("tuned/" + url.PathEscape(client) + ".safetensors"), os.MkdirAll(f.path("tuned"), 0o755)
}

// Scaling returns the path of the file for the scaling of all clients.
func (f *Folder) Scaling() string { return f.path("scaling.safetensors") }

// States returns the path of the file for the clients' states of forecasts.
func (f *Folder) States() string { return f.path("states.bin") }

// Close closes and unlocks the folder.
func (f *Folder) Close() error {
	var err error
	if f.Rounds != nil {
		err = f.Rounds.close()
	}
	if f.Evaluations != nil {
		err = errors.Join(err, f.Evaluations.close())
	}
	return errors.Join(err, f.events.Close(), f.lock.Close())
}
