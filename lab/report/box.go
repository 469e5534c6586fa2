package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"loadstar/internal/textfmt"
)

// BoxChart shows the distributions of a value, such as the load of each building, on a
// logarithmic axis.
type BoxChart struct {
	Title, Note string
	Of          string // the subject of a box, such as "building"
	Value, Unit string // name and unit of the value, such as "load" and "kW"
	Boxes       []Box
	Generated   bool
}

// Box is a distribution. Quantiles contains its 5, 25, 50, 75 and 95 % quantiles. NaN means
// that there are no values.
type Box struct {
	Name      string
	Quantiles [5]float64
	Mean      float64
}

// figure returns the chart, with the largest box at the top, and a table of all boxes.
func (c BoxChart) figure() figure {
	type row struct {
		Name string `json:"name"`
		Look int    `json:"look"`
		Q    []num  `json:"q"`
		V    []num  `json:"v"`
		N    []int  `json:"n"`
	}
	t := Table{
		Title: fmt.Sprintf("Distribution of the %s, %s", c.Value, c.Unit), Generated: c.Generated,
		Columns: []string{c.Of, "5\u00a0%", "25\u00a0%", "median", "75\u00a0%", "95\u00a0%", "mean"},
	}
	boxes := slices.Clone(c.Boxes)
	slices.SortStableFunc(boxes, func(a, b Box) int { return cmp.Compare(b.Quantiles[2], a.Quantiles[2]) })
	var (
		rows       = []row{} // must not be null in the page, even if no box can be drawn
		names      []string
		lo, hi     = math.Inf(1), 0.0
		least, top = none, none
	)
	for _, b := range boxes {
		cells := []string{b.Name}
		for _, q := range b.Quantiles {
			cells = append(cells, short(q))
			if q > 0 {
				lo, hi = min(lo, q), max(hi, q)
			}
		}
		t.Rows = append(t.Rows, append(cells, short(b.Mean)))
		if b.Quantiles[4] > 0 { // other boxes have no place on a logarithmic axis
			if len(rows) == 0 {
				top = short(b.Quantiles[2])
			}
			least = short(b.Quantiles[2])
			rows = append(rows, row{Name: b.Name, Q: nums(b.Quantiles[:]), V: []num{num(b.Mean)}, N: []int{len(names)}})
			names = append(names, b.Name)
		}
	}
	if len(rows) == 0 {
		lo, hi = 1, 1
	}
	// A building whose load is sometimes nearly zero must not compress the other boxes.
	lo = max(lo, hi/1e6)
	beyond := 0
	for _, b := range boxes {
		beyond += b2i(b.Quantiles[4] > 0 && b.Quantiles[0] < lo)
	}
	f := figure{
		Kind: "box", Layout: "even", Title: c.Title, Generated: c.Generated, Tables: []Table{t},
		Caption: fmt.Sprintf("Each box shows the quartiles and the median of a %s, its whiskers the 5 %% and 95 %% quantiles, and the dot its mean.", c.Of),
		Alt:     fmt.Sprintf("Box chart of the %s of %s; medians from %s to %s %s.", c.Value, textfmt.Count(len(rows), c.Of), least, top, c.Unit),
		data: map[string]any{
			"series": rows, "names": names, "domain": []num{num(lo / 1.1), num(hi * 1.1)}, "dense": true,
			"value": c.Value, "unit": c.Unit, "xLabel": fmt.Sprintf("%s in %s, log scale", c.Value, c.Unit),
		},
	}
	f.Caption = strings.TrimSpace(c.Note + " " + f.Caption)
	if beyond > 0 {
		f.Caption += fmt.Sprintf(" The axis cuts off the lower whiskers of %s.", textfmt.Count(beyond, c.Of))
	}
	if n := len(boxes) - len(rows); n > 0 {
		f.Caption += fmt.Sprintf(" %s without a positive %s: only in the table.", textfmt.Count(n, c.Of), c.Value)
	}
	return f
}
