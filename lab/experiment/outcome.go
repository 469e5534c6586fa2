package experiment

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/lab/run"
	"loadstar/metric"
)

// outcome contains the data in the folder of one trial.
type outcome struct {
	*run.Summary // nil if a weight or a loss became infinite
	plan         *fed.Plan
	course       run.Course
	evaluations  []run.Evaluation
	clients      []run.Client
	bytes        float64
}

// readOutcome reads the tables of a trial's folder. s is nil if training failed because it
// diverged; the tables then end at the failure.
func readOutcome(dir string, t Trial, s *run.Summary) (*outcome, error) {
	o := &outcome{Summary: s, plan: t.Plan}
	var err error
	if o.course, err = run.ReadCourse(dir); err != nil {
		return nil, err
	}
	if o.evaluations, err = run.Read[run.Evaluation](dir, "evaluations"); err != nil {
		return nil, err
	}
	if s == nil {
		return o, nil
	}
	rounds, err := run.Read[run.Round](dir, "rounds")
	if err != nil {
		return nil, err
	}
	for _, r := range rounds {
		o.bytes += float64(r.Down + r.Up)
	}
	o.clients, err = run.Read[run.Client](dir, "clients")
	return o, err
}

// figures returns the numbers of one run. A failed run has only the numbers of its
// training.
func (o *outcome) figures() map[string]float64 {
	out := map[string]float64{
		"diverged": 0, "rose": float64(o.course.Rose),
		"train_loss_first": float64(o.course.TrainFirst), "train_loss_last": float64(o.course.TrainLast),
	}
	if o.Summary == nil {
		out["diverged"], out["rose"] = 1, math.NaN()
		return out
	}
	if o.course.Diverged {
		out["diverged"] = 1
	}
	maps.Copy(out, ofFleet(o.Fleet))
	if l := o.Last; l != nil {
		out["mae_last_round"], out["relative_mae_last_round"] = float64(l.MAE), float64(l.RelativeMAE)
	}
	out["rounds"] = float64(o.Rounds)
	trained := float64(o.Clients)
	if recipe.Pooled(o.plan) {
		trained = 1 // one model is trained on the readings of all clients
	}
	out["clients"] = float64(len(o.clients))
	out["steps"] = float64(o.Steps)
	out["gradients"] = float64(o.Steps) / trained
	out["bytes_per_turn"] = float64(o.Down + o.Up)
	out["bytes"] = o.bytes
	o.validation(out)
	o.spreads(out)
	return out
}

// validation adds the numbers from the evaluations during training. late_gain is the share by
// which the last validation loss is below the lowest one before it.
func (o *outcome) validation(out map[string]float64) {
	if len(o.evaluations) == 0 {
		return
	}
	out["validation_loss_lowest"], out["validation_loss_late"] = float64(o.course.Lowest), float64(o.course.Late)
	if losses := run.Losses(o.evaluations); len(losses) > 1 {
		before := losses[run.Lowest(losses[:len(losses)-1])].Loss
		out["late_gain"] = 1 - losses[len(losses)-1].Loss/before
	}
	var loss, relative []float64
	last := o.evaluations[len(o.evaluations)-1].Round
	for _, r := range o.evaluations {
		if r.Round == last {
			loss, relative = append(loss, r.Loss), append(relative, r.RelativeMAE)
		}
	}
	out["validation_loss"] = float64(metric.NewSpread(loss).Mean)
	out["validation_relative_mae"] = float64(metric.NewSpread(relative).Median)
	out["converged_round"] = o.converged()
}

// converged returns the first round from which on the median validation error over clients
// stays within 5 % of its final value. The error is the root of a squared loss, and otherwise
// the loss itself.
func (o *outcome) converged() float64 {
	type at struct {
		round  int
		median float64
	}
	var medians []at
	for from := 0; from < len(o.evaluations); {
		var errors []float64
		to := from
		for ; to < len(o.evaluations) && o.evaluations[to].Round == o.evaluations[from].Round; to++ {
			errors = append(errors, o.scaled(o.evaluations[to].Loss))
		}
		medians = append(medians, at{o.evaluations[from].Round, float64(metric.NewSpread(errors).Median)})
		from = to
	}
	final := medians[len(medians)-1]
	round := final.round
	for _, m := range slices.Backward(medians) {
		if !(math.Abs(m.median-final.median) <= 0.05*final.median) {
			break
		}
		round = m.round
	}
	return float64(round)
}

// scaled returns the error on the scale on which the model is trained: the root of a
// squared loss, and otherwise the loss itself.
func (o *outcome) scaled(loss float64) float64 {
	if o.plan.Model.Loss == "mse" {
		return math.Sqrt(loss)
	}
	return loss
}

// spreads adds the spread of the clients' test errors, and the errors' dependence on the
// clients' loads.
func (o *outcome) spreads(out map[string]float64) {
	var relative, load, unit []float64
	for _, c := range o.clients {
		unit = append(unit, o.scaled(c.Loss))
		if !math.IsNaN(c.RelativeMAE) && !math.IsNaN(c.Level) {
			relative, load = append(relative, c.RelativeMAE), append(load, c.Level)
		}
	}
	out["relative_mae_iqr"], _ = ranges(relative)
	out["rank_load"] = rankCorrelation(relative, load)
	// If each client has its own scale, the scaled errors are fractions of a client's own
	// range of loads.
	if m := o.plan.Model; m.Loss == "mse" && m.Scaling == "client" {
		out["rmse01"] = float64(metric.NewSpread(unit).Mean)
		out["rmse01_iqr"], out["rmse01_range"] = ranges(unit)
	}
}

// ranges returns the interquartile range and the full range of the finite values. The quartiles
// are interpolated linearly between the two nearest values.
func ranges(values []float64) (quartiles, full float64) {
	finite := slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	if len(finite) == 0 {
		return math.NaN(), math.NaN()
	}
	slices.Sort(finite)
	return quantile(finite, 0.75) - quantile(finite, 0.25), finite[len(finite)-1] - finite[0]
}

// quantile returns the quantile for the given share. It interpolates linearly between the two
// nearest sorted values. It is NaN if there are no values.
func quantile(sorted []float64, share float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	x := share * float64(len(sorted)-1)
	i := min(int(x), len(sorted)-1)
	next := min(i+1, len(sorted)-1)
	return sorted[i] + (x-float64(i))*(sorted[next]-sorted[i])
}

// rankCorrelation returns Spearman's rank correlation: Pearson's correlation of the ranks,
// where equal values all get the mean of their ranks. It is NaN for fewer than two values, and
// if all values of a variable are equal.
func rankCorrelation(a, b []float64) float64 {
	x, y := ranks(a), ranks(b)
	mean := float64(len(x)+1) / 2
	var xy, xx, yy float64
	for i := range x {
		dx, dy := x[i]-mean, y[i]-mean
		xy, xx, yy = xy+dx*dy, xx+dx*dx, yy+dy*dy
	}
	return xy / math.Sqrt(xx*yy)
}

func ranks(values []float64) []float64 {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, k int) int { return cmp.Compare(values[i], values[k]) })
	out := make([]float64, len(values))
	for from := 0; from < len(order); {
		to := from
		for to < len(order) && values[order[to]] == values[order[from]] {
			to++
		}
		for _, i := range order[from:to] {
			out[i] = float64(from+to+1) / 2
		}
		from = to
	}
	return out
}
