package outlook

import (
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/guptarohit/asciigraph"

	"loadstar/forecast/issue"
)

// chartWidth and chartHeight are the size of a chart in characters. With its axis it fits
// into a terminal of 80 columns.
const (
	chartWidth  = 66
	chartHeight = 12
)

// PrintChart draws a forecast: the median, and the band between the lowest and the highest
// quantile. A step without a forecast is blank.
func PrintChart(w io.Writer, f issue.Forecast, clock *time.Location) error {
	if len(f.Rows) == 0 {
		return nil
	}
	median := slices.Index(f.Levels, 0.5)
	if median < 0 {
		median = len(f.Levels) / 2
	}
	var lines [][]float64
	for _, level := range slices.Compact([]int{0, median, len(f.Levels) - 1}) {
		line := make([]float64, len(f.Rows))
		for i, r := range f.Rows {
			line[i] = r.Values[level]
		}
		lines = append(lines, line)
	}
	at := func(r issue.Row) string { return time.Unix(r.Time, 0).In(clock).Format(minute) }
	return plot(w, lines, fmt.Sprintf("%s, median and band, kW, %s to %s", f.Client, at(f.Rows[0]), at(f.Rows[len(f.Rows)-1])))
}

// PrintSum draws the sum of the means of all meters. Quantiles of a sum are not the sum of
// quantiles, so there is no band.
func (s *Summary) PrintSum(w io.Writer) error {
	if s.Sum == nil {
		return nil
	}
	t := s.Sum.Times
	return plot(w, [][]float64{s.Sum.Values}, fmt.Sprintf("sum of means, kW, %s to %s", t[0].Format(minute), t[len(t)-1].Format(minute)))
}

func plot(w io.Writer, lines [][]float64, caption string) error {
	known := false
	for _, line := range lines {
		known = known || slices.ContainsFunc(line, func(v float64) bool { return !math.IsNaN(v) })
	}
	if !known {
		_, err := fmt.Fprintf(w, "\n%s: no value\n", caption)
		return err
	}
	text := asciigraph.PlotMany(lines, asciigraph.Width(chartWidth), asciigraph.Height(chartHeight), asciigraph.Precision(2), asciigraph.Caption(caption))
	_, err := fmt.Fprintf(w, "\n%s\n", text)
	return err
}
