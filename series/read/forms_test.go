package read

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/text/encoding/unicode"

	"loadstar/series"
)

var rewriteForms = flag.Bool("rewrite", false, "write docs/reference/table-forms.md")

// form is a file as people have it.
type form struct {
	name, file string
	content    func(t *testing.T, path string)
	given      Description // the answers; the zone is Europe/Berlin if it is empty
	hints      Hints
	// meters is the number of meters that are read; 0 means that the file is refused.
	meters int
	says   string // is in what the command prints, or in the error
	// kw is 1 if the values are in kW, and otherwise 0 for kWh in a step. value is the value of a
	// meter in each step if it is not formLoad.
	kw    float64
	value func(meter int) float64
}

// each returns the values of a counter that runs evenly.
func each(values ...float64) func(int) float64 {
	return func(meter int) float64 { return values[meter] }
}

const formDays = 12

// formRows returns a row for each step of some days from 1 March 2024 in Berlin.
func formRows(step time.Duration, row func(i int, at time.Time) string) string {
	var b strings.Builder
	from := time.Date(2024, 3, 1, 0, 0, 0, 0, berlin())
	for i := range int(formDays * 24 * time.Hour / step) {
		b.WriteString(row(i, from.Add(time.Duration(i)*step)) + "\n")
	}
	return b.String()
}

// formLoad is a load in kWh or kW with a digit after the point.
func formLoad(i, meter int) float64 { return 1.5 + float64((i*7+meter*3)%11)/2 }

func german(x float64) string { return strings.Replace(fmt.Sprintf("%.1f", x), ".", ",", 1) }

func plainText(text string) func(*testing.T, string) { return rawBytes([]byte(text)) }

func rawBytes(data []byte) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func packed(text string) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		w := gzip.NewWriter(f)
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
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

// cells returns the rows of a sheet: those of the heading, one for each hour, and those at the end.
func cells(head [][]any, row func(i int, at time.Time) []any, tail ...[]any) [][]any {
	for i := range formDays * 24 {
		head = append(head, row(i, time.Date(2024, 3, 1, i, 0, 0, 0, time.UTC)))
	}
	return append(head, tail...)
}

func textForms() []form {
	quarter, hour := 15*time.Minute, time.Hour
	long := formRows(hour, func(i int, at time.Time) string {
		return fmt.Sprintf("house,%s,%.1f", at.Format("2006-01-02 15:04:05"), formLoad(i, 0))
	})
	return []form{
		{name: "pandas and Nixtla: unique_id, ds, y", file: "frame.csv", content: plainText("unique_id,ds,y\n" + long), meters: 1, says: "column ds as yyyy-mm-dd", given: Description{Unit: "kW"}, kw: 1},
		{name: "the same, compressed", file: "frame.csv.gz", content: packed("unique_id,ds,y\n" + long), meters: 1, says: "column unique_id", given: Description{Unit: "kW"}, kw: 1},
		{
			name: "German utility: title, semicolons, comma, umlauts in Windows-1252, a column per meter, sum", file: "Lastgang.csv", meters: 2, says: "columns that are not read: Summe",
			content: rawBytes(windows("Lastgang Straße 5\nZeitraum;März 2024\n\nDatum;Uhrzeit;Büro [kWh];Küche [kWh];Summe [kWh]\n" + formRows(quarter, func(i int, at time.Time) string {
				return at.Format("02.01.2006;15:04;") + german(formLoad(i, 0)) + ";" + german(formLoad(i, 1)) + ";9,9"
			}))),
		},
		{
			name: "German utility: totals and a remark at the end", file: "Verbrauch.csv", meters: 1, says: `left out the last 2 lines, which have no date, such as "Summe 4711,5"`,
			content: plainText("Datum;Verbrauch kWh\n" + formRows(quarter, func(i int, at time.Time) string {
				return at.Format("02.01.2006 15:04;") + german(formLoad(i, 0))
			}) + "Summe;4711,5\nAlle Angaben ohne Gewähr\n"),
		},
		{
			name: "a day that is torn off at the end", file: "torn.csv", says: "time \"13.\"",
			content: plainText("Datum;Verbrauch kWh\n" + formRows(hour, func(i int, at time.Time) string {
				return at.Format("02.01.2006 15:04;") + german(formLoad(i, 0))
			}) + "13.;1,5\n"),
		},
		{
			name: "Enedis (France): details above, UTC offsets, W", file: "Enedis.csv", meters: 1, says: "UTC offset", given: Description{Unit: "W"}, kw: 1,
			content: plainText("Identifiant PRM;Type de donnees;Date de debut;Date de fin;Grandeur physique;Unite\n12345678901234;Courbe de charge;01/03/2024;13/03/2024;Puissance active;W\nHorodate;Valeur\n" +
				formRows(30*time.Minute, func(i int, at time.Time) string {
					return at.Format("2006-01-02T15:04:05-07:00;") + fmt.Sprint(1000*formLoad(i, 0))
				})),
		},
		{
			name: "Datadis (Spain): date and hours 01:00 to 24:00", file: "datadis.csv", meters: 1, says: "24:00",
			content: plainText("cups,fecha,hora,consumo_kWh,metodoObtencion\n" + formRows(hour, func(i int, at time.Time) string {
				return fmt.Sprintf("ES0021,%s,%02d:00,%.1f,Real", at.Format("2006/01/02"), at.Hour()+1, formLoad(i, 0))
			})),
		},
		{
			name: "Spanish distributor: hours numbered 1 to 24", file: "consumo.csv", says: "has no time of day",
			content: plainText("CUPS;Fecha;Hora;AE_kWh\n" + formRows(hour, func(i int, at time.Time) string {
				return fmt.Sprintf("ES0021;%s;%d;%s", at.Format("02/01/2006"), at.Hour()+1, german(formLoad(i, 0)))
			})),
		},
		{
			name: "Octopus (Britain): consumption, start, end", file: "consumption.csv", meters: 1, says: "Consumption (kwh)", given: Description{Zone: "Europe/London"},
			content: plainText("Consumption (kwh), Start, End\n" + formRows(30*time.Minute, func(i int, at time.Time) string {
				return fmt.Sprintf("%.1f, %s, %s", formLoad(i, 0), at.UTC().Format("2006-01-02T15:04:05-07:00"), at.UTC().Add(30*time.Minute).Format("2006-01-02T15:04:05-07:00"))
			})),
		},
		{
			name: "American utility: name and address above, start and end", file: "usage.csv", meters: 1, says: "START TIME", given: Description{Zone: "America/Los_Angeles"},
			content: plainText("Name,JANE DOE\nAddress,\"1 MAIN ST, SPRINGFIELD\"\nAccount Number,1234567890\n\nTYPE,DATE,START TIME,END TIME,USAGE (kWh),COST,NOTES\n" + formRows(hour, func(i int, at time.Time) string {
				return fmt.Sprintf("Electric usage,%s,%s,%s,%.1f,$0.21,", at.Format("2006-01-02"), at.Format("15:04"), at.Add(59*time.Minute).Format("15:04"), formLoad(i, 0))
			})),
		},
		{
			name: "Fluvius (Belgium): four columns of times, EAN, unit, status", file: "Verbruik.csv", meters: 1, says: "kWh",
			content: plainText("Van (datum);Van (tijdstip);Tot (datum);Tot (tijdstip);EAN-code;Meter;Metertype;Register;Volume;Eenheid;Validatiestatus\n" + formRows(quarter, func(i int, at time.Time) string {
				end := at.Add(quarter)
				return at.Format("02-01-2006;15:04:05;") + end.Format("02-01-2006;15:04:05;") + `="541449";1SAG;Digitale meter;Afname Dag;` + german(formLoad(i, 0)) + ";kWh;Gevalideerd"
			})),
		},
		{
			name: "P1 reader (Netherlands): counters of two tariffs", file: "P1e.csv", meters: 2, says: "Import T1 and Import T2 look like tariffs of one meter", value: each(0.1, 0.2),
			content: plainText("time,Import T1 kWh,Import T2 kWh,Export T1 kWh,Export T2 kWh\n" + formRows(quarter, func(i int, at time.Time) string {
				return fmt.Sprintf("%s,%.3f,%.3f,0,0", at.Format("2006-01-02 15:04"), 1000+float64(i)/10, 2000+float64(i)/5)
			})),
		},
		{
			name: "Home Assistant: states of a sensor", file: "history.csv", meters: 1, says: "readings of a counter", given: Description{Unit: "kWh"}, value: each(1.5),
			content: plainText("entity_id,state,last_changed\n" + formRows(hour, func(i int, at time.Time) string {
				return fmt.Sprintf("sensor.energy,%.2f,%s", 500+float64(i)*1.5, at.UTC().Format("2006-01-02T15:04:05.000Z"))
			})),
		},
		{
			name: "counter readings with German heading", file: "Zählerstände.csv", meters: 1, says: "readings of a counter", value: each(1),
			content: plainText("Zählernummer;Zeitpunkt;Zählerstand kWh\n" + formRows(quarter, func(i int, at time.Time) string {
				return "4711;" + at.Format("02.01.2006 15:04;") + german(1000+float64(i))
			})),
		},
		{
			name: "Excel's Unicode text: UTF-16, tabs", file: "export.txt", meters: 1, says: "separated by tabs", kw: 1,
			content: func(t *testing.T, path string) {
				rawBytes(utf16(unicode.LittleEndian, unicode.UseBOM)("Zeit\tLeistung kW\n"+formRows(hour, func(i int, at time.Time) string {
					return at.Format("02.01.2006 15:04\t") + german(formLoad(i, 0))
				})))(t, path)
			},
		},
		{
			name: "names of months", file: "export.csv", says: "write months as numbers, such as 2024-03-01 00:00",
			content: plainText("Time,kWh\n" + formRows(hour, func(i int, at time.Time) string {
				return fmt.Sprintf("%s,%.1f", at.Format("02-Jan-2006 15:04"), formLoad(i, 0))
			})),
		},
		{
			name: "a row per day, a column per hour", file: "matrix.csv", says: "rearrange the table to a row per time",
			content: plainText("Datum;" + strings.Join(hourHeads(), ";") + "\n" + formRows(24*time.Hour, func(i int, at time.Time) string {
				row := at.Format("02.01.2006")
				for h := range 24 {
					row += ";" + german(formLoad(24*i+h, 0))
				}
				return row
			})),
		},
	}
}

func hourHeads() (all []string) {
	for h := range 24 {
		all = append(all, fmt.Sprintf("%02d:00", h))
	}
	return all
}

func sheetForms() []form {
	compound := append([]byte("\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"), make([]byte, 4096)...)
	return []form{
		{
			name: "spreadsheet: meter, time, load", file: "long.xlsx", meters: 1, says: "spreadsheet", kw: 1,
			content: sheets([]string{"Data"}, map[string][][]any{"Data": cells([][]any{{"meter", "time", "load kW"}}, func(i int, at time.Time) []any { return []any{"house", at, formLoad(i, 0)} })}),
		},
		{
			name: "spreadsheet: cover sheet, a column per building", file: "campus.xlsx", meters: 3, says: `sheet "kWh" of 2`,
			content: sheets([]string{"Cover", "kWh"}, map[string][][]any{
				"Cover": {{"Energy report"}, {"by", "facility management"}},
				"kWh": cells([][]any{{"Zeit", "Halle", "Büro", "Küche", "Summe"}, {"", "kWh", "kWh", "kWh", "kWh"}}, func(i int, at time.Time) []any {
					return []any{at, formLoad(i, 0), formLoad(i, 1), formLoad(i, 2), 99.5}
				}),
			}),
		},
		{
			name: "spreadsheet: title, empty line, units, totals and remarks below", file: "Lastgang.xlsx", meters: 1, says: "left out the last 2 rows, which have no date",
			content: sheets([]string{"A"}, map[string][][]any{"A": cells([][]any{{"Lastgang Zähler 4711"}, {}, {"Zeit", "Wirkarbeit"}, {"", "kWh"}}, func(i int, at time.Time) []any { return []any{at, formLoad(i, 0)} },
				[]any{"Summe", 4711.5}, []any{"Alle Angaben ohne Gewähr"})}),
		},
		{
			name: "spreadsheet: German dates as text", file: "text.xlsx", meters: 1, says: "dd.mm.yyyy", kw: 1,
			content: sheets([]string{"A"}, map[string][][]any{"A": cells([][]any{{"Zeit", "Leistung kW"}}, func(i int, at time.Time) []any { return []any{at.Format("02.01.2006 15:04"), formLoad(i, 0)} })}),
		},
		{
			name: "spreadsheet: two sheets with dates, the second by --sheet", file: "years.xlsx", meters: 1, says: `sheet "2024"`, kw: 1, hints: Hints{Format: Table{Sheet: "2024"}},
			content: sheets([]string{"2023", "2024"}, map[string][][]any{
				"2023": {{"Zeit", "kW"}, {time.Date(2023, 1, 1, 0, 0, 0, 0, time.UTC), 1.5}},
				"2024": cells([][]any{{"Zeit", "kW"}}, func(i int, at time.Time) []any { return []any{at, formLoad(i, 0)} }),
			}),
		},
		{
			name: "spreadsheet without dates", file: "budget.xlsx", says: "no sheet has dates",
			content: sheets([]string{"A"}, map[string][][]any{"A": {{"room", "kWh"}, {"kitchen", 12.5}, {"hall", 3.25}}}),
		},
		{name: "spreadsheet of OpenDocument", file: "x.ods", says: "unpack it, or export it as CSV", content: rawBytes(append([]byte("PK\x03\x04"), make([]byte, 200)...))},
		{name: "spreadsheet of Excel 97, or with a password", file: "alt.xls", says: "save it as .xlsx without a password", content: rawBytes(compound)},
	}
}

// TestForms reads files as people have them. A file is read with the answers that it needs, or
// refused with advice. The outcomes are a page of the documentation; make tables prints them.
func TestForms(t *testing.T) {
	const path = "../../docs/reference/table-forms.md"
	all := append(textForms(), sheetForms()...)
	var rows strings.Builder
	var read, spreadsheets int
	for _, f := range all {
		outcome, said := "refused", ""
		got, err := f.run(t)
		switch {
		case err != nil && f.meters > 0:
			t.Errorf("%s: %v", f.name, err)
		case err != nil:
			said = strings.TrimPrefix(strings.Split(err.Error(), "\n")[0], f.file+": ")
		case got.Dataset.Len() != f.meters:
			t.Errorf("%s: %d meters, want %d\n%s", f.name, got.Dataset.Len(), f.meters, strings.Join(got.Lines, "\n"))
		default:
			f.check(t, got.Dataset)
			// The line about the file, the times and the load; what follows are assumptions.
			said, outcome = strings.TrimPrefix(strings.Join(got.Lines, "; "), "file: "+f.file+"; "), fmt.Sprintf("read, %d", f.meters)
			read++
		}
		if strings.HasSuffix(f.file, ".xlsx") {
			spreadsheets++
		}
		if f.says == "" || !strings.Contains(said, f.says) {
			t.Errorf("%s: it says\n%s\nwant %q", f.name, said, f.says)
		}
		fmt.Fprintf(&rows, "| %s | `%s` | %s | %s |\n", f.name, f.file, outcome, strings.NewReplacer("|", "\\|", "<", "&lt;").Replace(said))
	}
	if len(all) < 20 || spreadsheets < 5 {
		t.Errorf("%d forms, %d of them spreadsheets", len(all), spreadsheets)
	}
	page := fmt.Sprintf(`# Forms of tables

<!-- Generated by make reference from series/read/forms_test.go. Change the forms there instead. -->

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
	path := filepath.Join(t.TempDir(), f.file)
	f.content(t, path)
	s := Setup{Given: f.given, Hints: f.hints, Ask: Asker{Defaults: true}}
	if s.Given.Zone == "" {
		s.Given.Zone = "Europe/Berlin"
	}
	got, err := s.Run(path)
	if err == nil {
		// The dataset must come from the written description, not from memory.
		var d *Description
		if d, err = Load(filepath.Dir(path)); err == nil {
			got.Dataset, err = Open(d, "")
		}
	}
	return got, err
}

// check compares what was read with what was written: a reading for each step, and the same
// energy a day.
func (f form) check(t *testing.T, d *series.Dataset) {
	for i := range d.Len() {
		m := d.Meter(i)
		steps := int(formDays * 24 * time.Hour / d.Interval)
		if len(m.Load) != steps && len(m.Load) != steps-1 { // one less from counters
			t.Errorf("%s: meter %s has %d steps of %s, want %d", f.name, m.ID, len(m.Load), d.Interval, steps)
			return
		}
		unit := f.kw
		if unit == 0 {
			unit = float64(time.Hour / d.Interval) // kWh of a step
		}
		for k, v := range m.Load {
			if want := f.want(k, i) * unit; series.Missing(v) || math.Abs(float64(v)-want) > 1e-4*want {
				t.Errorf("%s: meter %s has %g at step %d, want %g", f.name, m.ID, v, k, want)
				return
			}
		}
	}
}

// want returns the value that a form has at a step of a meter.
func (f form) want(step, meter int) float64 {
	if f.value != nil {
		return f.value(meter)
	}
	return formLoad(step, meter)
}
