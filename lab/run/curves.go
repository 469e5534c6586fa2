package run

import (
	"cmp"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// Peak is a row of the peaks table. It contains the bias of a client's test forecasts, and
// their errors at the highest load of each day on the dataset's clock. Loads and errors are in
// kW. Days with less than three quarters of their readings are omitted.
type Peak struct {
	Client string `parquet:"unique_id,dict"`
	// Bias is the mean of forecast minus load. It is positive if forecasts are too high.
	Bias     float64 `parquet:"bias"`
	Targets  int     `parquet:"peak_targets"` // number of forecasts of daily peaks
	Load     float64 `parquet:"peak_kw"`      // mean load at these peaks
	PeakMAE  float64 `parquet:"peak_mae"`
	PeakBias float64 `parquet:"peak_bias"`
}

// Use is a row of the uses table: the score of forecasts for a common use. The forecasts are
// issued at midnight for the next 24 hours. The quantity is the energy of a day, the sum of all
// clients by step, or the highest step of a day. Energies and peaks are medians over clients.
type Use struct {
	Dataset      string  `parquet:"dataset,dict"`
	Quantity     string  `parquet:"quantity,dict"` // energy, sum or peak
	Clients      int     `parquet:"clients"`
	N            int     `parquet:"forecasts"`
	MAE          float64 `parquet:"mae"`
	RelativeMAE  float64 `parquet:"relative_mae"` // relative to last week's loads
	RelativeMean float64 `parquet:"relative_mae_mean"`
	Bias         float64 `parquet:"bias"` // relative to the mean of the actual values
	Coverage     float64 `parquet:"coverage"`
}

// WriteUses writes the uses table into the folder of a run.
func WriteUses(dir string, rows []Use) error {
	return writeTable(filepath.Join(dir, "uses"), slices.Values(rows))
}

// Calibration is a row of the calibration table. It contains the share of loads at one hour
// of the day that are not above a quantile, after calibration, as a mean over clients.
type Calibration struct {
	Hour    int     `parquet:"hour"`
	Level   string  `parquet:"level,dict"` // such as P10
	Clients int     `parquet:"clients"`
	Share   float64 `parquet:"share"`
}

// Curve is a row of the curves table: one step of the test split of a client, whether or not it
// was forecast, with gaps as NaN. Near is the forecast with the shortest lead, and Far the
// forecast with the longest lead, each with its interval from P10 to P90. Far is NaN if the
// model forecasts a single target.
type Curve struct {
	Client   string    `parquet:"unique_id,dict"`
	Time     time.Time `parquet:"ds,timestamp(millisecond)"`
	Actual   float64   `parquet:"y"`
	LastWeek float64   `parquet:"last_week"`
	Near     float64   `parquet:"near"`
	NearLow  float64   `parquet:"near_P10"`
	NearHigh float64   `parquet:"near_P90"`
	Far      float64   `parquet:"far"`
	FarLow   float64   `parquet:"far_P10"`
	FarHigh  float64   `parquet:"far_P90"`
}

// BaselineProfile is a row in the table of a baseline's errors by hour and by step.
type BaselineProfile struct {
	Method  string  `parquet:"method,dict"`
	By      string  `parquet:"by,dict"`
	At      int     `parquet:"at"`
	Clients int     `parquet:"clients"`
	NMAE    float64 `parquet:"nmae"`
}

// BaselineCurve is a row in the table of a baseline's forecasts for the clients in the curves
// table.
type BaselineCurve struct {
	Method string    `parquet:"method,dict"`
	Client string    `parquet:"unique_id,dict"`
	Time   time.Time `parquet:"ds,timestamp(millisecond)"`
	Near   float64   `parquet:"near"`
	Far    float64   `parquet:"far"`
}

// Beside contains the tables of baselines that are scored on the task of a run.
type Beside struct {
	Scores  []Baseline
	Profile []BaselineProfile
	Curves  []BaselineCurve
}

// besideDir returns the folder of the tables of baselines in the folder of a run.
func besideDir(dir string) string { return filepath.Join(dir, "baselines") }

// ReadBeside reads the baselines in the folder of a run. The result has no scores if the folder
// has no baselines.
func ReadBeside(dir string) (b Beside, err error) {
	at := besideDir(dir)
	if b.Scores, err = Read[Baseline](at, "baselines"); err != nil || len(b.Scores) == 0 {
		return b, err
	}
	if b.Profile, err = Read[BaselineProfile](at, "profile"); err != nil {
		return b, err
	}
	b.Curves, err = Read[BaselineCurve](at, "curves")
	return b, err
}

// Write writes the tables into the folder of a run. The scores are written last, because they
// tell ReadBeside that the tables are complete.
func (b Beside) Write(dir string) error {
	at := besideDir(dir)
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := writeTable(filepath.Join(at, "profile"), slices.Values(b.Profile)); err != nil {
		return err
	}
	if err := writeTable(filepath.Join(at, "curves"), slices.Values(b.Curves)); err != nil {
		return err
	}
	return WriteBaselines(at, b.Scores)
}

// Missing is the number that stands for a missing value in a table.
var Missing = math.NaN()

// Rounded rounds a number to five digits, so that tables of curves stay small. A chart shows
// fewer digits.
func Rounded(v float64) float64 {
	if math.IsNaN(v) {
		return v
	}
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 5, 64), 64) // this text is always a number
	return v
}

// Leads describes which forecasts of a run its curves show. Targets is the number of steps
// of a forecast, and Stride the number of steps between two forecasts.
type Leads struct{ Targets, Stride int }

// Near and Far report whether the curve of the shortest or the longest leads includes the
// forecast of the given step, counted from 1. Each curve shows as many steps of a forecast as
// there are steps between two forecasts, so that there are no gaps.
func (l Leads) Near(step int) bool { return step <= max(l.Stride, 1) }

// Far reports whether the curve of the longest leads includes the forecast of the given step.
func (l Leads) Far(step int) bool { return l.HasFar() && step > l.Targets-max(l.Stride, 1) }

// HasFar reports whether there is a curve of the longest leads.
func (l Leads) HasFar() bool { return l.Targets > max(l.Stride, 1) }

// The maximum numbers of rows and of clients in the curves table. Each client has at least a
// week of rows.
const (
	curveRows    = 40000
	curveClients = 100
)

// CurveClients returns how many clients the curves table has, with the given number of steps
// for each.
func CurveClients(steps int) int { return max(min(curveRows/max(steps, 1), curveClients), 3) }

// Extremes returns the indices of the clients with the median, the lowest and the highest
// relative MAE. It returns fewer indices if fewer than three clients have a relative MAE.
func Extremes(clients []Client) []int {
	var order []int
	for i, c := range clients {
		if !math.IsNaN(c.RelativeMAE) && !math.IsInf(c.RelativeMAE, 0) {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(clients[a].RelativeMAE, clients[b].RelativeMAE) })
	n := len(order)
	switch n {
	case 0:
		return nil
	case 1:
		return order
	case 2:
		return []int{order[0], order[1]}
	}
	return []int{order[n/2], order[0], order[n-1]}
}
