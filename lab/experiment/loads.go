package experiment

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"loadstar/series"
)

// Loads is the value of Part.Data for a part whose rows are the distributions of the load of
// each building, as in figure 2 of bose2023.
const Loads = "loads"

// maxLoads bounds the number of buildings that such a part describes for each dataset,
// because a dataset can have millions.
const maxLoads = 200

// loads returns a row for each building of a dataset: the mean, standard deviation and
// quantiles over time of its load in kW. They are NaN for a building without readings. If the
// dataset has more than maxLoads buildings, the rows describe a sample, evenly spaced in the
// order of the dataset. Each row then also contains the total number of buildings.
func (p *Part) loads(d *series.Dataset) ([]row, error) {
	var rows []row
	n := min(d.Len(), maxLoads)
	for k := range n {
		at := k
		if n < d.Len() {
			at = k * (d.Len() - 1) / (n - 1)
		}
		m := d.Meter(at)
		if strings.ContainsAny(m.ID, "\t\r\n") {
			return nil, fmt.Errorf("building %q has a tab or a line break in its name, which a table of results cannot hold", m.ID)
		}
		figures := distribution(m.Load)
		if n < d.Len() {
			figures["buildings"] = Figure{float64(d.Len())}
		}
		rows = append(rows, row{Result: Result{Part: p.Name, Dataset: d.Name, Generated: d.Generated, Method: m.ID, Figures: figures}})
	}
	return rows, nil
}

// distribution returns the mean and quantiles of the readings that are not missing.
func distribution(load []float32) map[string]Figure {
	sum := 0.0
	var sorted []float64
	for _, v := range load {
		if !series.Missing(v) {
			sum += float64(v)
			sorted = append(sorted, float64(v))
		}
	}
	slices.Sort(sorted)
	out := map[string]Figure{"mean": {math.NaN()}, "std": {math.NaN()}}
	if n := float64(len(sorted)); n > 0 {
		mean, squares := sum/n, 0.0
		for _, v := range sorted {
			squares += (v - mean) * (v - mean)
		}
		out["mean"], out["std"] = Figure{mean}, Figure{math.Sqrt(squares / n)}
	}
	for _, percent := range []int{5, 25, 50, 75, 95} {
		out[fmt.Sprintf("p%d", percent)] = Figure{quantile(sorted, float64(percent)/100)}
	}
	return out
}
