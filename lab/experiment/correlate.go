package experiment

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"loadstar/series"
)

// correlations is the value of Part.Data for a part whose rows are the correlations of a
// dataset's columns with its load.
const correlations = "correlations"

// checkData checks a part that describes datasets instead of comparing methods.
func (p *Part) checkData() error {
	if p.Data != correlations && p.Data != Loads && p.Data != Volume {
		return fmt.Errorf("data is %q; it must be %s, %s or %s", p.Data, correlations, Loads, Volume)
	}
	if len(p.Methods)+len(p.Baselines)+len(p.Grid)+len(p.Best)+len(p.Plan) > 0 {
		return errors.New("a part with data has no methods, baselines, grid, best or plan")
	}
	if len(p.Datasets) == 0 || p.Name == "" {
		return errors.New("a part needs a name and datasets")
	}
	return nil
}

// describe returns the rows of a part that describes datasets, for one dataset.
func (p *Part) describe(d *series.Dataset) ([]row, error) {
	switch p.Data {
	case Loads:
		return p.loads(d)
	case Volume:
		r, err := p.volume(d)
		return []row{r}, err
	}
	return p.correlated(d), nil
}

// correlated returns a row for each static value and each weather column of a dataset.
func (p *Part) correlated(d *series.Dataset) []row {
	var rows []row
	for _, c := range Correlations(d) {
		rows = append(rows, row{Result: Result{
			Part: p.Name, Dataset: d.Name, Generated: d.Generated, Method: c.Column,
			Figures: map[string]Figure{"correlation": {c.Value}},
		}})
	}
	return rows
}

// Correlation describes how a column of a dataset varies with the load. It is Pearson's
// coefficient, or NaN if the column or the load is constant.
type Correlation struct {
	Column string
	Value  float64
}

// Correlations returns the correlations of all static values, then of all weather columns, as
// in table I of bose2023. A static value is compared with the mean load of each meter. A
// weather column is compared with the load of each meter over time, and the coefficients are
// averaged over meters. Missing values are omitted.
func Correlations(d *series.Dataset) []Correlation {
	statics := make([]moments, len(d.StaticNames))
	sums, counts := make([]float64, len(d.Weather.Names)), make([]float64, len(d.Weather.Names))
	for i := range d.Len() {
		m := d.Meter(i)
		mean, n := 0.0, 0.0
		for _, v := range m.Load {
			if !series.Missing(v) {
				mean += float64(v)
				n++
			}
		}
		for j, v := range m.Static {
			if !series.Missing(v) && n > 0 {
				statics[j].add(float64(v), mean/n)
			}
		}
		offset := int((m.Start - d.Weather.Start) / d.Seconds())
		for j, column := range d.Weather.Columns {
			var pair moments
			for k, v := range m.Load {
				if at := k + offset; at >= 0 && at < len(column) && !series.Missing(v) && !series.Missing(column[at]) {
					pair.add(float64(column[at]), float64(v))
				}
			}
			if r := pair.correlation(); !math.IsNaN(r) {
				sums[j] += r
				counts[j]++
			}
		}
	}
	var out []Correlation
	for j, name := range d.StaticNames {
		out = append(out, Correlation{name, statics[j].correlation()})
	}
	for j, name := range d.Weather.Names {
		out = append(out, Correlation{name, sums[j] / counts[j]}) // NaN if no meter has a value
	}
	return slices.Clip(out)
}

// moments accumulates means and second moments of pairs. It updates them one pair at a time
// (Welford), so that loads of thousands of kW lose no digits.
type moments struct{ n, x, y, xx, yy, xy float64 }

func (m *moments) add(x, y float64) {
	m.n++
	dx, dy := x-m.x, y-m.y
	m.x += dx / m.n
	m.y += dy / m.n
	m.xx += dx * (x - m.x)
	m.yy += dy * (y - m.y)
	m.xy += dx * (y - m.y)
}

func (m *moments) correlation() float64 {
	if m.xx == 0 || m.yy == 0 {
		return math.NaN()
	}
	return m.xy / math.Sqrt(m.xx*m.yy)
}
