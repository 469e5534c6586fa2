package experiment

import (
	"loadstar/lab/run"
	"loadstar/metric"
)

// validation has the results of a run's last evaluation on its sample of validation
// windows.
type validation struct {
	clients  int
	loss     float64 // mean over clients
	relative float64 // median over clients
}

// readValidation reads the last evaluation of a run. The result has no clients if the run
// was never evaluated.
func readValidation(dir string) (v validation, err error) {
	rows, err := run.Read[run.Evaluation](dir, "evaluations")
	if err != nil || len(rows) == 0 {
		return v, err
	}
	var loss, relative []float64
	for _, r := range rows {
		if r.Round == rows[len(rows)-1].Round {
			v.clients++
			loss = append(loss, r.Loss)
			relative = append(relative, r.RelativeMAE)
		}
	}
	v.loss = float64(metric.NewSpread(loss).Mean)
	v.relative = float64(metric.NewSpread(relative).Median)
	return v, nil
}
