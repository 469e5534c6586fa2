package paper

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"loadstar/lab/experiment"
	"loadstar/lab/report"
)

// loads reports whether the rows are distributions of the load of buildings.
func loads(rows []experiment.Result) bool {
	return !slices.ContainsFunc(rows, func(r experiment.Result) bool { return r.Figures["p5"] == nil || r.Figures["p95"] == nil })
}

// loadColumns are the columns of a summary of loads.
var loadColumns = []string{"buildings", "lowest median, kW", "middle median, kW", "highest median, kW", "largest mean / smallest mean"}

// summary describes the loads of all buildings of a dataset in one row, because a row for each
// building would make the text hard to read. ours.tsv and the report have all rows.
func summary(rows []experiment.Result) []string {
	medians, means := sorted(rows, "p50"), sorted(rows, "mean")
	n := len(medians)
	if n == 0 {
		return []string{buildings(rows), "-", "-", "-", "-"}
	}
	ratio := math.NaN()
	if means[0] > 0 { // a ratio to zero, or to a building that exports, is meaningless
		ratio = means[n-1] / means[0]
	}
	cells := []string{buildings(rows)}
	for _, v := range []float64{medians[0], (medians[(n-1)/2] + medians[n/2]) / 2, medians[n-1], ratio} {
		cells = append(cells, experiment.Figure{v}.String())
	}
	return cells
}

// sorted returns the values of a figure in ascending order, without buildings that have no
// readings.
func sorted(rows []experiment.Result, name string) []float64 {
	var values []float64
	for _, r := range rows {
		if v := r.Figures[name].Mean(); !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	slices.Sort(values)
	return values
}

// buildings formats the number of buildings that the rows describe, and the number of buildings
// of which they are a sample.
func buildings(rows []experiment.Result) string {
	if all := rows[0].Figures["buildings"]; all != nil {
		return fmt.Sprintf("%d of %s", len(rows), grouped(all.Mean()))
	}
	return fmt.Sprint(len(rows))
}

// writeLoads writes a row for each dataset for a README.
func writeLoads(out *strings.Builder, rows []experiment.Result) {
	fmt.Fprintf(out, "Quantiles are over time; `ours.tsv` and the report have those of each building.\n\n| dataset | %s |\n|---|%s\n",
		strings.Join(loadColumns, " | "), strings.Repeat("---|", len(loadColumns)))
	for len(rows) > 0 {
		own := Of(rows, rows[0].Part, rows[0].Dataset)
		fmt.Fprintf(out, "| %s | %s |\n", own[0].Dataset, strings.Join(summary(own), " | "))
		rows = slices.DeleteFunc(slices.Clone(rows), func(r experiment.Result) bool { return r.Dataset == own[0].Dataset })
	}
	fmt.Fprintln(out)
}

func printLoads(t io.Writer, rows []experiment.Result) {
	fmt.Fprintln(t, "BUILDINGS\tLOWEST MEDIAN kW\tMIDDLE\tHIGHEST\tLARGEST MEAN / SMALLEST\t")
	fmt.Fprintf(t, "%s\t\n", strings.Join(summary(rows), "\t"))
}

// boxChart has a box for each building.
func boxChart(p experiment.Part, rows []experiment.Result) report.BoxChart {
	c := report.BoxChart{
		Title: fmt.Sprintf("%s: %s", p.Title, rows[0].Dataset), Generated: rows[0].Generated,
		Of: "building", Value: "load", Unit: "kW",
	}
	cells := summary(rows)
	c.Note = "Quantiles and means are over time."
	if rows[0].Figures["buildings"] != nil {
		c.Note += " These are " + cells[0] + " buildings, evenly spaced in the order of the dataset."
	}
	if cells[4] != "-" {
		c.Note += fmt.Sprintf(" The largest mean is %s times the smallest.", cells[4])
	}
	for _, r := range rows {
		b := report.Box{Name: r.Method, Mean: r.Figures["mean"].Mean()}
		for i, name := range []string{"p5", "p25", "p50", "p75", "p95"} {
			b.Quantiles[i] = r.Figures[name].Mean()
		}
		c.Boxes = append(c.Boxes, b)
	}
	return c
}
