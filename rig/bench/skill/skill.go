// Package skill measures the methods with which the dense model is compared: the baselines, and
// gradient boosting with scikit-learn and XGBoost on the same features. It also measures rivals of
// the forecasts of days and sums.
package skill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"loadstar/forecast"
	"loadstar/metric"
	"loadstar/rig/bench"
	"loadstar/series"
	"loadstar/series/feature"
)

// Losses lists the losses that the peer can minimise.
var Losses = []string{"absolute_error", "squared_error"}

// Options selects the measurements.
type Options struct {
	Dataset *series.Dataset
	// Targets is the number of steps to forecast, from the next one on.
	Targets int
	// Stride is the number of steps between scored origins.
	Stride int
	// Clients is the number of clients to forecast, evenly spaced; 0 means all.
	Clients int
	// Losses lists the losses of boosting with scikit-learn, which is not measured if the list
	// is empty.
	Losses []string
	// XGBoost and Pooled select the measurement of XGBoost for each client separately and for
	// all clients together.
	XGBoost, Pooled bool
	// Rows limits the peer's training rows; if there are more, they are sampled. 0 means no
	// limit.
	Rows int
	// Out is the folder for results. Results that it already contains are not measured again.
	Out string
}

// Complete checks the options that a user chose. The losses are used only if peer is set.
func (o *Options) Complete(peer bool) error {
	if o.Stride < 0 || o.Rows < 0 || o.Clients < 0 {
		return errors.New("--stride, --rows and --clients must not be negative")
	}
	if !peer {
		o.Losses = nil
	}
	for _, l := range o.Losses {
		if !slices.Contains(Losses, l) {
			return fmt.Errorf("--loss must be some of %s, not %q", strings.Join(Losses, ", "), l)
		}
	}
	return nil
}

// Row is the result of one method for one client. Errors are in kW. A baseline has no rows,
// trees or CPU time.
type Row struct {
	Client     string  `json:"client"`
	Method     string  `json:"method"`
	Rows       int     `json:"rows,omitempty"`
	Trees      int     `json:"trees,omitempty"`
	Validation float64 `json:"validation_mae"`
	Test       float64 `json:"test_mae"`
	CPU        float64 `json:"cpu_s,omitempty"`
}

// Run measures all methods. Results of the peer are written to a table in the folder as
// they arrive, so that an interrupted run can be continued.
func Run(ctx context.Context, o Options, progress bench.Progress) ([]Row, error) {
	t, err := openTable(o)
	if err != nil {
		return nil, err
	}
	defer func() { _ = t.close() }() // every row is already written
	chosen := o.chosen()
	for _, b := range forecast.Baselines() {
		if err := o.baseline(ctx, t, b.Name, chosen); err != nil {
			return nil, err
		}
	}
	for _, loss := range o.Losses {
		if err := o.peer(ctx, t, Sklearn, loss, chosen, progress); err != nil {
			return nil, err
		}
	}
	if o.XGBoost {
		if err := o.peer(ctx, t, xgboost, "", chosen, progress); err != nil {
			return nil, err
		}
	}
	if o.Pooled {
		if err := o.pooled(ctx, t, chosen, progress); err != nil {
			return nil, err
		}
	}
	return t.rows, t.close()
}

// chosen returns the indexes of the clients to forecast.
func (o Options) chosen() []int {
	all := o.Dataset.Len()
	n := o.Clients
	if n <= 0 || n > all {
		n = all
	}
	var chosen []int
	for i := range n {
		chosen = append(chosen, i*all/n)
	}
	return chosen
}

// baseline adds the results of a baseline.
func (o Options) baseline(ctx context.Context, t *table, name string, chosen []int) error {
	if !slices.ContainsFunc(chosen, func(i int) bool { return !t.has(o.Dataset.Meter(i).ID, name) }) {
		return nil
	}
	var scores [2][]forecast.ClientScore
	for i, p := range []series.Part{series.Validation, series.Test} {
		b := forecast.Backtest{Dataset: o.Dataset, Horizon: 1, Targets: o.Targets, Stride: o.Stride, Split: series.DefaultSplit, Part: p}
		var err error
		if scores[i], err = b.Run(ctx, name, nil); err != nil {
			return err
		}
	}
	for _, i := range chosen {
		err := t.add(Row{Client: o.Dataset.Meter(i).ID, Method: name, Validation: scores[0][i].Overall.MAE(), Test: scores[1][i].Overall.MAE()})
		if err != nil {
			return err
		}
	}
	return nil
}

// frame returns the features of the model dense.
func (o Options) frame() (*feature.Frame, error) {
	return feature.NewFrame(o.Dataset, series.Layout{Lookback: 7 * o.Dataset.StepsPerDay(), Horizon: 1, Targets: o.Targets}, series.DefaultSplit, nil, 0)
}

// peer adds the results of gradient boosting with a library, one model for each client.
func (o Options) peer(ctx context.Context, t *table, library, loss string, chosen []int, progress bench.Progress) error {
	method := "boosting-" + loss
	if library == xgboost {
		method = xgboost
	}
	if !slices.ContainsFunc(chosen, func(i int) bool { return !t.has(o.Dataset.Meter(i).ID, method) }) {
		return nil
	}
	frame, err := o.frame()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "loadstar-skill-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p, err := StartPeer(ctx, library)
	if err != nil {
		return err
	}
	defer p.Stop()
	for k, i := range chosen {
		progress(k, len(chosen), p.Name)
		m := o.Dataset.Meter(i)
		if t.has(m.ID, method) {
			continue
		}
		r := frame.Rows(m)
		rows, err := writeRows(dir, m, r, o.Rows, max(o.Stride, 1))
		if err != nil {
			return err
		}
		q := NewRequest(library, loss)
		q.Folders, q.Deviations, q.Inputs = []string{dir}, []float64{r.Scaling().Deviation}, r.Inputs()
		f, err := p.Fit(q)
		if err != nil {
			return fmt.Errorf("meter %s: %w", m.ID, err)
		}
		if err := t.add(Row{m.ID, method, rows, f.Trees, f.Validation[0], f.Test[0], f.CPU}); err != nil {
			return err
		}
	}
	progress(len(chosen), len(chosen), p.Name)
	return nil
}

// pooledRows is the maximum number of training rows of a model for all clients, because the
// rows must fit into memory.
const pooledRows = 250_000

// pooled adds the results of XGBoost with one model for all clients.
func (o Options) pooled(ctx context.Context, t *table, chosen []int, progress bench.Progress) error {
	const method = xgboost + "-pooled"
	if t.has(o.Dataset.Meter(chosen[0]).ID, method) {
		return nil
	}
	frame, err := o.frame()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "loadstar-skill-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p, err := StartPeer(ctx, xgboost)
	if err != nil {
		return err
	}
	defer p.Stop()
	q, rows := NewRequest(xgboost, ""), 0
	most := pooledRows / len(chosen)
	if o.Rows > 0 {
		most = min(most, o.Rows)
	}
	for k, i := range chosen {
		progress(k, len(chosen)+1, p.Name)
		m := o.Dataset.Meter(i)
		r := frame.Rows(m)
		one := filepath.Join(dir, fmt.Sprint(k))
		if err := os.Mkdir(one, 0o777); err != nil {
			return err
		}
		n, err := writeRows(one, m, r, most, max(o.Stride, 1))
		if err != nil {
			return err
		}
		rows += n
		q.Folders, q.Deviations, q.Inputs = append(q.Folders, one), append(q.Deviations, r.Scaling().Deviation), r.Inputs()
	}
	progress(len(chosen), len(chosen)+1, p.Name)
	f, err := p.Fit(q)
	if err != nil {
		return err
	}
	for k, i := range chosen {
		if err := t.add(Row{o.Dataset.Meter(i).ID, method, rows, f.Trees, f.Validation[k], f.Test[k], f.CPU / float64(len(chosen))}); err != nil {
			return err
		}
	}
	return nil
}

// Summary is the result of one method over all clients: the MAE in kW, and the MAE relative
// to that of the reference forecast.
type Summary struct {
	Method   string        `json:"method"`
	MAE      metric.Spread `json:"mae"`
	Relative metric.Spread `json:"relative_mae"`
	CPU      float64       `json:"cpu_s,omitempty"` // CPU time for all clients
}

// Summaries summarises the test errors in the order of the methods in rows. The reference
// is the one that backtests use for the same targets.
func Summaries(rows []Row, targets int) []Summary {
	reference := "naive-week"
	if forecast.Auto.For(series.Layout{Horizon: 1, Targets: targets}) == forecast.LastValue {
		reference = "persistence"
	}
	base := map[string]float64{}
	var methods []string
	for _, r := range rows {
		if r.Method == reference {
			base[r.Client] = r.Test
		}
		if !slices.Contains(methods, r.Method) {
			methods = append(methods, r.Method)
		}
	}
	var all []Summary
	for _, method := range methods {
		s := Summary{Method: method}
		var scores []metric.Scores
		for _, r := range rows {
			if r.Method == method {
				scores = append(scores, metric.Scores{{Name: "mae", Value: r.Test}, {Name: "relative_mae", Value: r.Test / base[r.Client]}})
				s.CPU += r.CPU
			}
		}
		fleet := metric.NewFleet(scores)
		s.MAE, s.Relative = fleet["mae"], fleet["relative_mae"]
		all = append(all, s)
	}
	return all
}

// Print prints a table of summaries.
func Print(w io.Writer, rows []Row, targets int) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "METHOD\tCLIENTS\tMAE kW\tREL. MAE\tMEDIAN\tBELOW 1\tCPU S\t")
	for _, s := range Summaries(rows, targets) {
		fmt.Fprintf(t, "%s\t%d\t%.3f\t%.3f\t%.3f\t%.0f %%\t%.1f\t\n", s.Method, s.MAE.Count, s.MAE.Mean, s.Relative.Mean, s.Relative.Median, 100*float64(*s.Relative.BelowOne), s.CPU)
	}
	return t.Flush()
}
