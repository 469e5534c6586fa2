// Package report generates a self-contained HTML report from runs, with tables and charts, in a
// light and a dark theme, for screens, phones and print. The page needs no network. The tables
// contain all results, and JavaScript draws charts from data in the page.
//
// The output depends only on the input folders. Tables and charts that use synthetic data
// are labelled.
package report

import (
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

	"loadstar/internal/textfmt"
)

// Report is the content of a page. All fields are optional. Sections appear in the order of the
// fields.
type Report struct {
	Title string // default: the methods and datasets
	About string // plain text; line breaks are preserved
	Tool  string // program that generated the page, such as "loadstar v1.2"

	Claims   []Claim
	Tables   []Table
	Boxes    []BoxChart
	HeatMaps []HeatMap

	Runs      []*Run
	Baselines []Baseline // baselines of datasets without a run are ignored
}

// Verdict is the result of testing a claim.
type Verdict string

// The possible verdicts on a claim.
const (
	Holds       Verdict = "holds"
	HoldsPartly Verdict = "holds partly"
	DoesNotHold Verdict = "does not hold here"
	NotTrained  Verdict = "not trained to the end"
	NotTested   Verdict = "not tested"
)

// Class returns the CSS class of the verdict.
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

// Claim is a claim of a paper and our verdict.
type Claim struct {
	Text    string
	Verdict Verdict
	Figures string // evidence for the verdict
}

// Table contains text. The first column contains row headers. Columns that contain only numbers
// are right-aligned.
type Table struct {
	Title, Note string
	Columns     []string
	Rows        [][]string
	Generated   bool // whether the table uses synthetic data
	Best        int  // row to highlight, from 1; 0 for none
}

// HeatMap shows a value for each pair of values of two settings. Lower values are better.
// NaN means that there is no value, for example because training diverged.
type HeatMap struct {
	Title, Note      string
	X, Y             string // names of the two settings, such as "client learning rate"
	XLabels, YLabels []string
	Value            string      // name of the metric, such as "median relative MAE"
	Values           [][]float64 // one row per YLabel
	Generated        bool
}

//go:embed page.html.tmpl
var pageText string

//go:embed bundle/page.js
var script string

//go:embed bundle/page.css
var style string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{"numeric": numeric, "unbroken": unbroken, "best": func(t Table, i int) bool { return t.Best == i+1 }}).Parse(pageText))

// page is the data for the HTML template.
type page struct {
	*Report
	Policy    string // content security policy: allows only the page's own script
	Generated string // names of the synthetic datasets, unless a headline lists them
	Verdicts  string // the number of claims with each verdict
	Marked    bool   // whether all tables use synthetic data
	Boxed     []figure
	Extra     []figure
	Groups    []group
	Ran       []Table // settings and cost of the runs
	Plans     []planText
	Style     template.CSS
	Script    template.JS
	Data      template.JS
}

// group is the section of the page about one dataset.
type group struct {
	ID, Name  string
	Generated bool
	About     string
	Headline  headline
	Sections  []section
}

// section is a part of a group with a heading.
type section struct {
	ID, Title string
	Figures   []figure
	Tables    []Table
}

// figure is a chart and its tables.
type figure struct {
	ID, Kind, Title, Caption string
	Alt                      string // text alternative of the chart
	Generated                bool   // whether it uses synthetic data
	Marked                   bool   // the figure's own title is marked, because the section's title is not
	Layout                   string // "wide": tables below the chart; "narrow": small tables beside it
	Tables                   []Table

	data any
}

// Write writes the report as an HTML page.
func (r *Report) Write(w io.Writer) error {
	for _, h := range r.HeatMaps {
		if err := h.check(); err != nil {
			return err
		}
	}
	sets := groupRuns(r.Runs, r.Baselines)
	whole := *r
	whole.Tables = slices.Clone(r.Tables)
	if whole.Title == "" {
		whole.Title = title(sets)
	}
	p := page{Report: &whole, Style: template.CSS(style), Script: template.JS(script), Verdicts: verdicts(r.Claims)}
	var synthetic []string
	for i, s := range sets {
		p.Groups = append(p.Groups, s.group(i, 1/float64(len(sets))))
		if s.generated {
			synthetic = append(synthetic, s.name)
		}
	}
	if p.Marked = len(r.Tables) > 0 && !slices.ContainsFunc(r.Tables, func(t Table) bool { return !t.Generated }); p.Marked {
		for i := range whole.Tables {
			whole.Tables[i].Generated = false // the heading of the section is already marked
		}
	}
	for i, c := range r.Boxes {
		f := c.figure()
		f.ID, f.Marked = fmt.Sprintf("boxes-%d", i+1), f.Generated
		f.Tables[0].Generated = false
		p.Boxed = append(p.Boxed, f)
	}
	for i, h := range r.HeatMaps {
		f := h.figure()
		f.ID, f.Marked = fmt.Sprintf("extra-%d", i+1), f.Generated
		f.Tables[0].Generated = false
		p.Extra = append(p.Extra, f)
	}
	if len(synthetic) > 0 && !p.Single() {
		p.Generated = strings.Join(synthetic, ", ")
	}
	if len(sets) > 0 {
		p.Ran, p.Plans = runTables(sets), plans(sets)
	}

	data := map[string]any{}
	addData := func(figures []figure) {
		for _, f := range figures {
			data[f.ID] = f.data
		}
	}
	addData(p.Boxed)
	addData(p.Extra)
	for _, g := range p.Groups {
		for _, one := range g.Sections {
			addData(one.Figures)
		}
	}
	// json.Marshal escapes <, > and &, so a name in the data cannot end the script
	// element.
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	p.Data = template.JS(text)
	sum := sha256.Sum256([]byte(script))
	p.Policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'"
	return pageTemplate.Execute(w, p)
}

// Pictures reports whether the page has charts.
func (p page) Pictures() bool { return len(p.Boxed)+len(p.Extra)+len(p.Groups) > 0 }

// Single reports whether the page is about one dataset and no claims, so that it opens with
// the headline of this dataset.
func (p page) Single() bool {
	return len(p.Groups) == 1 && len(p.Claims) == 0 && p.Groups[0].Headline.Text != ""
}

// verdicts returns the number of claims with each verdict, as text.
func verdicts(claims []Claim) string {
	var parts []string
	for _, v := range []Verdict{Holds, HoldsPartly, DoesNotHold, NotTrained, NotTested} {
		n := 0
		for _, c := range claims {
			n += b2i(c.Verdict == v)
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%s: %d", v, n))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	if !slices.ContainsFunc(claims, func(c Claim) bool { return c.Verdict != NotTested }) {
		return textfmt.Count(len(claims), "claim") + " of the paper; none was tested."
	}
	return fmt.Sprintf("%s of the paper, checked on our data: %s.", textfmt.Count(len(claims), "claim"), strings.Join(parts, ", "))
}

// title lists the methods and datasets, or gives their numbers if there are many.
func title(sets []*dataset) string {
	var methods, datasets []string
	add := func(to *[]string, name string) {
		if !slices.Contains(*to, name) {
			*to = append(*to, name)
		}
	}
	for _, s := range sets {
		add(&datasets, s.trained()[0].runs[0].Dataset)
		for _, m := range s.trained() {
			add(&methods, m.name)
		}
	}
	name := func(all []string, noun string) string {
		if len(all) > 4 {
			return textfmt.Count(len(all), noun)
		}
		return strings.Join(all, ", ")
	}
	return name(methods, "method") + " on " + name(datasets, "dataset")
}

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
	note := "Stronger colours are lower values; the lowest is framed. A dash means that training diverged."
	return figure{
		Kind: "heat", Title: h.Title, Caption: strings.TrimSpace(h.Note + " " + note), Generated: h.Generated, Tables: []Table{t},
		Alt: fmt.Sprintf("Heat map of %s over %s and %s; the lowest is %s.", h.Value, h.X, h.Y, where),
		data: map[string]any{
			"x": h.XLabels, "y": h.YLabels, "xLabel": h.X, "yLabel": h.Y, "value": h.Value, "values": values,
		},
	}
}

// spread matches the range over seeds that follows a number, such as (0.71-0.75).
var spread = regexp.MustCompile(`\(([0-9.]+)-([0-9.]+)\)`)

// unbroken returns the field with joiners that prevent line breaks within ranges.
func unbroken(field string) string { return spread.ReplaceAllString(field, "($1\u2060–\u2060$2)") }

// numeric reports whether a column contains only numbers.
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

// Long reports whether the table is so long that it scrolls on a screen.
func (t Table) Long() bool { return len(t.Rows) > 14 }
