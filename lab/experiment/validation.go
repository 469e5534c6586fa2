package experiment

import (
	"loadstar/lab/run"
	"loadstar/metric"
)

// validation is a run's last look at its sample of validation windows.
type validation struct {
	clients int
	loss    float64 // mean over clients
	mase    float64 // median
}

// readValidation reads the last round of a run's evaluations. A run without any has
// no clients there.
func readValidation(dir string) (v validation, err error) {
	rows, err := run.Read[run.Evaluation](dir, "evaluations")
	if err != nil || len(rows) == 0 {
		return v, err
	}
	var loss, mase []float64
	for _, r := range rows {
		if r.Round == rows[len(rows)-1].Round {
			v.clients++
			loss = append(loss, r.Loss)
			mase = append(mase, r.MASE)
		}
	}
	v.loss = float64(metric.NewSpread(loss).Mean)
	v.mase = float64(metric.NewSpread(mase).Median)
	return v, nil
}
