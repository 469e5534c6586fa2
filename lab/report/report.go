// Package report writes what came of runs as one HTML file: tables beside pictures,
// in a light and a dark theme, for a screen, a phone or paper. The page needs no
// network, and says everything that matters without JavaScript too; with it, it
// draws the pictures from data that it carries.
//
// The same folders give the same bytes. What rests on generated data says so, on
// every table and picture.
package report

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
)

// Report is a page. Every part is optional; they appear in the order of the fields.
type Report struct {
	Title string
	About string // plain text, shown as it is broken into lines
	Tool  string // what wrote it, such as "loadstar v1.2"

	Claims   []Claim
	Tables   []Table
	HeatMaps []HeatMap

	Runs      []*Run
	Baselines []Baseline // those of datasets without a run are left out
}

// Verdict is what became of a claim.
type Verdict string

// The verdicts.
const (
	Holds       Verdict = "holds"
	HoldsPartly Verdict = "holds partly"
	DoesNotHold Verdict = "does not hold here"
	NotTested   Verdict = "not tested"
)

// Class is the verdict's mark in the style sheet.
func (v Verdict) Class() string {
	switch v {
	case Holds:
		return "holds"
	case HoldsPartly:
		return "partly"
	case DoesNotHold:
		return "fails"
	}
	return "untested"
}

// Claim is something that was said, and what we found.
type Claim struct {
	Text    string
	Verdict Verdict
	Figures string // what the verdict rests on
}

// Table is a table of text. The first column heads its rows. Columns in which every
// field is a number or empty are set to the right.
type Table struct {
	Title, Note string
	Columns     []string
	Rows        [][]string
	Generated   bool // rests on generated data
	Best        int  // which row to set off, from 1; 0 for none
}

// HeatMap is a value for each pair of settings, of which lower is better. A NaN is a
// pair without a value, such as a training that blew up.
type HeatMap struct {
	Title, Note      string
	X, Y             string // what varies, such as "client learning rate"
	XLabels, YLabels []string
	Value            string      // what is shown, such as "median MASE"
	Values           [][]float64 // a row for each of YLabels
	Generated        bool
}

//go:embed page.html.tmpl
var pageText string

//go:embed bundle/page.js
var script string

//go:embed bundle/page.css
var style string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{"numeric": numeric, "unbroken": unbroken, "best": func(t Table, i int) bool { return t.Best == i+1 }}).Parse(pageText))

// page is what the template shows.
type page struct {
	*Report
	Policy    string // what the browser may load or run: this page's own script, nothing else
	Generated string // of which datasets that is to be said, in one sentence
	Extra     []figure
	Groups    []group
	Ran       []Table // about the runs
	Style     template.CSS
	Script    template.JS
	Data      template.JS
}

// group is what is shown of one dataset.
type group struct {
	ID, Name  string
	Generated bool
	About     string
	Figures   []figure
}

// figure is a picture and the tables beside it.
type figure struct {
	ID, Kind, Title, Caption string
	Alt                      string // the picture in words
	Generated                bool
	Layout                   string // wide: the tables stand below; narrow: they need little room
	Tables                   []Table

	data any
}

// Write writes the page.
func (r *Report) Write(w io.Writer) error {
	for _, h := range r.HeatMaps {
		if err := h.check(); err != nil {
			return err
		}
	}
	sets := gather(r.Runs, r.Baselines)
	p := page{Report: r, Style: template.CSS(style), Script: template.JS(script)}
	var made []string
	for i, s := range sets {
		p.Groups = append(p.Groups, s.group(i))
		if s.generated {
			made = append(made, s.name)
		}
	}
	for i, h := range r.HeatMaps {
		f := h.figure()
		f.ID = fmt.Sprintf("extra-%d", i+1)
		p.Extra = append(p.Extra, f)
	}
	if len(made) > 0 {
		p.Generated = strings.Join(made, ", ")
	}
	if len(sets) > 0 {
		p.Ran = about(sets)
	}

	data := map[string]any{}
	take := func(figures []figure) {
		for _, f := range figures {
			data[f.ID] = f.data
		}
	}
	take(p.Extra)
	for _, g := range p.Groups {
		take(g.Figures)
	}
	// json.Marshal escapes <, > and &, so that nothing in a name can end the element.
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	p.Data = template.JS(text)
	sum := sha256.Sum256([]byte(script))
	p.Policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'"
	return pageTemplate.Execute(w, p)
}

// Pictures says whether there is anything to draw.
func (p page) Pictures() bool { return len(p.Extra)+len(p.Groups) > 0 }

func (h HeatMap) check() error {
	if len(h.Values) != len(h.YLabels) {
		return fmt.Errorf("heat map %q has %d rows for %d labels", h.Title, len(h.Values), len(h.YLabels))
	}
	for _, row := range h.Values {
		if len(row) != len(h.XLabels) {
			return fmt.Errorf("heat map %q has %d values in a row for %d labels", h.Title, len(row), len(h.XLabels))
		}
	}
	return nil
}

func (h HeatMap) figure() figure {
	t := Table{Title: h.Value, Note: fmt.Sprintf("rows: %s; columns: %s", h.Y, h.X), Columns: append([]string{h.Y}, h.XLabels...), Generated: h.Generated}
	values := make([][]num, len(h.Values))
	best, where := math.Inf(1), "none"
	for j, row := range h.Values {
		fields := []string{h.YLabels[j]}
		for i, v := range row {
			fields = append(fields, short(v))
			values[j] = append(values[j], num(v))
			if v < best {
				best, where = v, fmt.Sprintf("%s at %s %s and %s %s", short(v), h.X, h.XLabels[i], h.Y, h.YLabels[j])
			}
		}
		t.Rows = append(t.Rows, fields)
	}
	note := "The stronger the colour, the lower the value; the lowest is framed. A dash is a training without a usable end."
	return figure{
		Kind: "heat", Title: h.Title, Caption: strings.TrimSpace(h.Note + " " + note), Generated: h.Generated, Tables: []Table{t},
		Alt: fmt.Sprintf("Heat map of %s over %s and %s; the lowest is %s.", h.Value, h.X, h.Y, where),
		data: map[string]any{
			"x": h.XLabels, "y": h.YLabels, "xLabel": h.X, "yLabel": h.Y, "value": h.Value, "values": values,
		},
	}
}

// spread is that of a figure over seeds, in brackets.
var spread = regexp.MustCompile(`\(([0-9.]+)-([0-9.]+)\)`)

// unbroken keeps such a spread in one line.
func unbroken(field string) string { return spread.ReplaceAllString(field, "($1\u2060–\u2060$2)") }

// numeric says whether a column of a table holds numbers alone.
func numeric(t Table, column int) bool {
	some := false
	for _, row := range t.Rows {
		if column >= len(row) {
			continue
		}
		s := strings.TrimSpace(row[column])
		if s == "" {
			continue
		}
		if some = true; s == none {
			continue
		}
		if c := s[0]; (c < '0' || c > '9') && c != '-' && c != '+' && !strings.HasPrefix(s, "−") {
			return false
		}
	}
	return some
}

// Long says whether a table is to scroll on a screen.
func (t Table) Long() bool { return len(t.Rows) > 14 }

// about are the tables of what was run.
func about(sets []*dataset) []Table {
	runs := Table{
		Title: "What was trained", Note: "Bytes and rounds are the plan's; seconds are of the machine that trained.",
		Columns: []string{"dataset", "method", "algorithm", "seeds", "clients", "rounds", "gradient steps", "MB per client", "seconds of training"},
	}
	plans := Table{Title: "Where the plans differ", Note: "Settings that are the same in all plans are left out.", Columns: []string{"setting"}}
	var columns []map[string]string
	for _, s := range sets {
		for _, m := range s.methods {
			if m.baseline {
				continue
			}
			var seeds []string
			seconds := 0.0
			for _, r := range m.runs {
				seeds = append(seeds, fmt.Sprint(r.Seed))
				seconds += r.seconds / float64(len(m.runs))
			}
			r := m.runs[0]
			runs.Generated = runs.Generated || s.generated
			name := s.name
			if s.generated {
				name += " (generated)"
			}
			runs.Rows = append(runs.Rows, []string{
				name, m.name, r.Algorithm, strings.Join(seeds, ", "), fmt.Sprint(r.trained), fmt.Sprint(r.rounds),
				fmt.Sprint(r.steps), short(m.megabytes()), short(seconds),
			})
			// The same plan on another dataset is one column.
			if !slices.Contains(plans.Columns, m.name) {
				plans.Columns = append(plans.Columns, m.name)
				columns = append(columns, r.settings)
			}
		}
	}
	for _, key := range differing(columns) {
		row := []string{key}
		for _, c := range columns {
			row = append(row, cmp.Or(c[key], none))
		}
		plans.Rows = append(plans.Rows, row)
	}
	if len(plans.Rows) == 0 {
		return []Table{runs}
	}
	return []Table{runs, plans}
}
