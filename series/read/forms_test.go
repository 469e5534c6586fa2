package read

import (
	"archive/zip"
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/klauspost/compress/gzip"
	"go.yaml.in/yaml/v3"
	"golang.org/x/text/encoding/unicode"

	"loadstar/series"
)

var rewriteForms = flag.Bool("rewrite", false, "write docs/reference/table-forms.md")

// form is a file in one of the formats that users have.
type form struct {
	Name, File string
	// Zone and Unit are the answers to the questions about the zone and the unit. An empty zone
	// means Europe/Berlin.
	Zone, Unit string
	// Meters are the meters that are read. The command must refuse a form without meters.
	Meters []string
	// Says is part of the command's output or, if the form is refused, the complete error
	// message.
	Says string
	// Power means that the values are in kW. Otherwise they are in kWh per step. Rises is
	// the increase of each meter's counter per step.
	Power bool
	Rises []float64
	// Clock is the dataset's clock if it differs from Zone. Start is the first time. If it is
	// zero, the first time is midnight in Berlin.
	Clock string
	Start time.Time
	// Head, Row and Tail are the templates for the lines of a file.
	Head, Row, Tail, Encoding string
	Step                      time.Duration

	content func(t *testing.T, path string)
	hints   Hints
}

const formDays = 12

func formStart() time.Time { return time.Date(2024, 3, 1, 0, 0, 0, 0, berlin()) }

// formLoad returns a load in kWh or kW with one decimal.
func formLoad(step, meter int) float64 { return 1.5 + float64((step*7+meter*3)%11)/2 }

// textForms returns the forms of testdata/forms.yaml.
func textForms(t *testing.T) (all []form) {
	t.Helper()
	text, err := os.ReadFile("testdata/forms.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	for i, f := range all {
		all[i].content = func(t *testing.T, path string) { rawBytes(f.encode(f.text(t)))(t, path) }
	}
	return all
}

// text returns the lines of the file.
func (f form) text(t *testing.T) string {
	t.Helper()
	var step int
	var at time.Time
	comma := func(text string) string { return strings.Replace(text, ".", ",", 1) }
	load := func(meter int) string { return fmt.Sprintf("%.1f", formLoad(step, meter)) }
	row, err := template.New(f.Name).Funcs(template.FuncMap{
		"at":       func(layout string) string { return at.Format(layout) },
		"until":    func(layout string) string { return at.Add(f.Step).Format(layout) },
		"utc":      func(layout string) string { return at.UTC().Format(layout) },
		"utcUntil": func(layout string) string { return at.Add(f.Step).UTC().Format(layout) },
		"hour":     func(add int) int { return at.Hour() + add },
		"load":     load,
		"german":   func(meter int) string { return comma(load(meter)) },
		"watts":    func(meter int) string { return fmt.Sprintf("%.0f", 1000*formLoad(step, meter)) },
		"counter":  func(from float64, meter int) string { return fmt.Sprintf("%.2f", from+float64(step)*f.Rises[meter]) },
		"comma":    comma,
	}).Parse(f.Row)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString(f.Head + "\n")
	for step = range int(formDays * 24 * time.Hour / f.Step) {
		at = formStart().Add(time.Duration(step) * f.Step)
		if err := row.Execute(&b, nil); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
	}
	if f.Tail != "" {
		b.WriteString(f.Tail + "\n")
	}
	return b.String()
}

// encode returns the bytes of the file.
func (f form) encode(text string) []byte {
	switch {
	case strings.HasSuffix(f.File, ".gz"):
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = w.Write([]byte(text)) // a buffer accepts everything
		_ = w.Close()
		return b.Bytes()
	case f.Encoding == "windows-1252":
		return windows(text)
	case f.Encoding == "utf-16":
		return utf16(unicode.LittleEndian, unicode.UseBOM)(text)
	}
	return []byte(text)
}

func rawBytes(data []byte) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// sheets writes a spreadsheet.
func sheets(order []string, all map[string][][]any) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		if err := os.Rename(workbook(t, all, order...), path); err != nil {
			t.Fatal(err)
		}
	}
}

// cells returns the rows of a sheet, which are the rows of the heading, one row for each hour,
// and the rows at the end.
func cells(head [][]any, row func(i int, at time.Time) []any, tail ...[]any) [][]any {
	for i := range formDays * 24 {
		head = append(head, row(i, time.Date(2024, 3, 1, i, 0, 0, 0, time.UTC)))
	}
	return append(head, tail...)
}

// months returns a sheet with the sum of each month.
func months() (rows [][]any) {
	rows = append(rows, []any{"Monat", "kWh"})
	for m := range 12 {
		rows = append(rows, []any{time.Date(2024, time.Month(m+1), 1, 0, 0, 0, 0, time.UTC), 1000.5})
	}
	return rows
}

func sheetForms() []form {
	compound := append([]byte("\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"), make([]byte, 4096)...)
	return []form{
		{
			Name: "spreadsheet: meter, time, load", File: "long.xlsx", Meters: []string{"house"}, Says: "spreadsheet", Power: true,
			content: sheets([]string{"Data"}, map[string][][]any{"Data": cells([][]any{{"meter", "time", "load kW"}}, func(i int, at time.Time) []any { return []any{"house", at, formLoad(i, 0)} })}),
		},
		{
			Name: "spreadsheet: cover sheet, months, a column per building", File: "campus.xlsx", Meters: []string{"Halle", "Büro", "Küche"}, Says: `sheet "kWh" of 3`,
			content: sheets([]string{"Cover", "Months", "kWh"}, map[string][][]any{
				"Cover":  {{"Energy report"}, {"by", "facility management"}, {"on", time.Date(2024, 3, 13, 0, 0, 0, 0, time.UTC)}},
				"Months": months(),
				"kWh": cells([][]any{{"Zeit", "Halle", "Büro", "Küche", "Summe"}, {"", "kWh", "kWh", "kWh", "kWh"}}, func(i int, at time.Time) []any {
					return []any{at, formLoad(i, 0), formLoad(i, 1), formLoad(i, 2), 99.5}
				}),
			}),
		},
		{
			Name: "spreadsheet: title, empty line, units, totals and remarks below", File: "Lastgang.xlsx", Meters: []string{"Lastgang"}, Says: `left out the last 2 rows, which have no date, such as "Summe 4711.5", header in line 4, units below the header`,
			content: sheets([]string{"A"}, map[string][][]any{"A": cells([][]any{{"Lastgang Zähler 4711"}, {"erstellt", time.Date(2024, 3, 13, 0, 0, 0, 0, time.UTC)}, {}, {"Zeit", "Wirkarbeit\nZähler 1"}, {"", "kWh"}}, func(i int, at time.Time) []any { return []any{at, formLoad(i, 0)} },
				[]any{"Summe", 4711.5}, []any{"Alle Angaben ohne Gewähr, Stand", time.Date(2024, 3, 13, 0, 0, 0, 0, time.UTC)})}),
		},
		{
			Name: "spreadsheet: German dates as text", File: "text.xlsx", Meters: []string{"text"}, Says: "dd.mm.yyyy", Power: true,
			content: sheets([]string{"A"}, map[string][][]any{"A": cells([][]any{{"Zeit", "Leistung kW"}}, func(i int, at time.Time) []any { return []any{at.Format("02.01.2006 15:04"), formLoad(i, 0)} })}),
		},
		{
			Name: "spreadsheet: two sheets with dates, the second by --sheet", File: "years.xlsx", Meters: []string{"years"}, Says: `sheet "2024"`, Power: true, hints: Hints{Format: Table{Sheet: "2024"}},
			content: sheets([]string{"2023", "2024"}, map[string][][]any{
				"2023": {{"Zeit", "kW"}, {time.Date(2023, 1, 1, 0, 0, 0, 0, time.UTC), 1.5}},
				"2024": cells([][]any{{"Zeit", "kW"}}, func(i int, at time.Time) []any { return []any{at, formLoad(i, 0)} }),
			}),
		},
		{
			Name: "spreadsheet without dates", File: "budget.xlsx", Says: "no sheet has dates (A); write the times as dates, or choose a sheet with --sheet",
			content: sheets([]string{"A"}, map[string][][]any{"A": {{"room", "kWh"}, {"kitchen", 12.5}, {"hall", 3.25}}}),
		},
		{Name: "spreadsheet of OpenDocument", File: "x.ods", Says: "this is a document of a program other than Excel; save it as .xlsx, or export it as CSV", content: openDocument},
		{Name: "spreadsheet of Excel 97, or with a password", File: "alt.xls", Says: "this is a spreadsheet of Excel 97 to 2003, or one with a password; save it as .xlsx without a password, or export it as CSV", content: rawBytes(compound)},
	}
}

// openDocument writes the files that every LibreOffice spreadsheet contains.
func openDocument(t *testing.T, path string) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, file := range [][2]string{
		{"mimetype", "application/vnd.oasis.opendocument.spreadsheet"},
		{"content.xml", "<office:document-content><office:body><office:spreadsheet/></office:body></office:document-content>"},
	} {
		f, err := w.Create(file[0])
		if err == nil {
			_, err = io.WriteString(f, file[1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	rawBytes(b.Bytes())(t, path)
}

// TestForms reads files in formats that users have. A file is either read with the necessary
// answers, or refused with advice. The command make tables writes the outcomes to a page of the
// documentation.
func TestForms(t *testing.T) {
	const path = "../../docs/reference/table-forms.md"
	all := append(textForms(t), sheetForms()...)
	var rows strings.Builder
	var read, spreadsheets int
	for _, f := range all {
		outcome, said := "refused", ""
		got, err := f.run(t)
		switch {
		case err != nil:
			said = strings.TrimPrefix(strings.Split(err.Error(), "\n")[0], f.File+": ")
			if len(f.Meters) > 0 || said != f.Says {
				t.Errorf("%s: %v\nwant %q", f.Name, err, f.Says)
			}
		case len(f.Meters) == 0:
			t.Errorf("%s: it is read:\n%s\nwant %q", f.Name, strings.Join(got.Lines, "\n"), f.Says)
		default:
			f.check(t, got.Dataset)
			if !strings.Contains(strings.Join(got.Lines, "; "), f.Says) || f.Says == "" {
				t.Errorf("%s: it says\n%s\nwant %q", f.Name, strings.Join(got.Lines, "\n"), f.Says)
			}
			// The output for every file has lines about the clock and the country, because both
			// are given as answers.
			lines := slices.DeleteFunc(got.Lines, func(line string) bool {
				return strings.HasPrefix(line, "country: ") || strings.HasPrefix(line, "clock: local time")
			})
			said, outcome = strings.TrimPrefix(strings.Join(lines, "; "), "file: "+f.File+"; "), fmt.Sprintf("read, %d", len(f.Meters))
			read++
		}
		if strings.HasSuffix(f.File, ".xlsx") {
			spreadsheets++
		}
		fmt.Fprintf(&rows, "| %s | `%s` | %s | %s |\n", f.Name, f.File, outcome, strings.NewReplacer("|", "\\|", "<", "&lt;").Replace(said))
	}
	if len(all) < 20 || spreadsheets < 5 {
		t.Errorf("%d forms, %d of them spreadsheets", len(all), spreadsheets)
	}
	page := fmt.Sprintf(`# Forms of tables

<!-- Generated by make reference from series/read/testdata/forms.yaml and forms_test.go beside it. -->

Files as utilities, portals, meters and people write them, and what `+"`loadstar data init`"+` makes of each: %d are read, with the number of
meters, and %d are refused with advice. [Exports](../data.md#exports) says how they are recognised. `+"`make tables`"+` repeats this with generated files.

| form | file | outcome | what the command says |
|---|---|---|---|
`, read, len(all)-read) + rows.String()
	t.Log("\n" + page)
	if *rewriteForms {
		if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(path); err != nil || string(have) != page {
		t.Errorf("%s is not that of the forms: run make reference (%v)", path, err)
	}
}

// run describes a form's file with its answers.
func (f form) run(t *testing.T) (*Described, error) {
	path := filepath.Join(t.TempDir(), f.File)
	f.content(t, path)
	s := Setup{Given: Description{Zone: f.zone(), Unit: f.Unit}, Hints: f.hints, Ask: Asker{Defaults: true}}
	got, err := s.Run(path)
	if err == nil {
		// The dataset must be opened from the written description, not taken from memory.
		var d *Description
		if d, err = Load(filepath.Dir(path)); err == nil {
			got.Dataset, err = Open(d, "")
		}
	}
	return got, err
}

func (f form) zone() string { return cmp.Or(f.Zone, "Europe/Berlin") }

// check compares what was read with what was written: meters, zone, first time, number of values
// and every value.
func (f form) check(t *testing.T, d *series.Dataset) {
	t.Helper()
	start := f.Start
	if start.IsZero() {
		start = formStart()
	}
	if clock := d.Clock.String(); clock != cmp.Or(f.Clock, f.zone()) {
		t.Errorf("%s: the clock is %s", f.Name, clock)
	}
	var names []string
	for i := range d.Len() {
		m := d.Meter(i)
		names = append(names, m.ID)
		steps := int(formDays * 24 * time.Hour / d.Interval)
		if f.Rises != nil {
			steps-- // the last reading of a counter begins no step
		}
		if len(m.Load) != steps || m.Start != start.Unix() {
			t.Errorf("%s: meter %s has %d steps of %s from %s, want %d from %s", f.Name, m.ID, len(m.Load), d.Interval, time.Unix(m.Start, 0).UTC(), steps, start.UTC())
			continue
		}
		for k, v := range m.Load {
			want := formLoad(k, i)
			if f.Rises != nil {
				want = f.Rises[i]
			}
			if !f.Power {
				want *= float64(time.Hour / d.Interval)
			}
			if series.Missing(v) || math.Abs(float64(v)-want) > 1e-5*want {
				t.Errorf("%s: meter %s has %g kW at step %d, want %g", f.Name, m.ID, v, k, want)
				break
			}
		}
	}
	if !slices.Equal(names, f.Meters) {
		t.Errorf("%s: the meters are %q, want %q", f.Name, names, f.Meters)
	}
}
