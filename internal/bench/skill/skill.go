// Package skill measures how well forecasters that know only one client forecast it: the
// baselines, and as a peer of the model dense, gradient boosting with scikit-learn on the
// same features.
package skill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"loadstar/forecast"
	"loadstar/internal/bench"
	"loadstar/metric"
	"loadstar/series"
	"loadstar/series/feature"
)

// Losses lists the losses that the peer can minimise.
var Losses = []string{"absolute_error", "squared_error"}

// Options say what to measure.
type Options struct {
	Dataset *series.Dataset
	// Targets is the number of steps to forecast, from the next one on.
	Targets int
	// Stride is the number of steps between scored origins.
	Stride int
	// Clients is the number of clients to forecast, evenly spaced; 0 means all.
	Clients int
	// Losses lists the losses of the peer. Without any, only the baselines are measured.
	Losses []string
	// Rows limits the training rows of the peer: more are sampled. 0 means no limit.
	Rows int
	// Out is the folder of the results. Results that it already has are not measured again.
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

// Row is the result of one method for one client. Errors are in kW. A baseline has no
// rows, trees and CPU time.
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
// they come, so that an interrupted run can be continued.
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
	if len(o.Losses) > 0 {
		if err := o.peer(ctx, t, chosen, progress); err != nil {
			return nil, err
		}
	}
	return t.rows, t.close()
}

// chosen returns the numbers of the clients to forecast.
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

// peer adds the results of gradient boosting.
func (o Options) peer(ctx context.Context, t *table, chosen []int, progress bench.Progress) error {
	layout := series.Layout{Lookback: 7 * o.Dataset.StepsPerDay(), Horizon: 1, Targets: o.Targets}
	frame, err := feature.NewFrame(o.Dataset, layout, series.DefaultSplit, nil, 0)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "loadstar-skill-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p, err := StartPeer(ctx)
	if err != nil {
		return err
	}
	defer p.Stop()
	for k, i := range chosen {
		progress(k, len(chosen), p.name)
		m := o.Dataset.Meter(i)
		rows := 0
		for _, loss := range o.Losses {
			method := "boosting-" + loss
			if t.has(m.ID, method) {
				continue
			}
			r := frame.Rows(m)
			if rows == 0 {
				if rows, err = writeRows(dir, m, r, o.Rows, max(o.Stride, 1)); err != nil {
					return err
				}
			}
			f, err := p.Fit(Request{
				Folder: dir, Inputs: r.Inputs(), Deviation: r.Scaling().Deviation, Loss: loss, Rate: 0.05, Leaves: 31, Most: 600, Patience: 50,
			})
			if err != nil {
				return fmt.Errorf("meter %s: %w", m.ID, err)
			}
			if err := t.add(Row{m.ID, method, rows, f.Trees, f.Validation, f.Test, f.CPU}); err != nil {
				return err
			}
		}
	}
	progress(len(chosen), len(chosen), p.name)
	return nil
}

// Summary is the result of one method over all clients: the MAE in kW, and the MAE relative
// to that of the reference forecast.
type Summary struct {
	Method   string        `json:"method"`
	MAE      metric.Spread `json:"mae"`
	Relative metric.Spread `json:"relative_mae"`
	CPU      float64       `json:"cpu_s,omitempty"` // of all clients
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
