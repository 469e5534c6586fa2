package read

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/xuri/excelize/v2"
)

// workbook writes a spreadsheet. A cell is a string, a number or a time.
func workbook(t *testing.T, sheets map[string][][]any, order ...string) string {
	t.Helper()
	f := excelize.NewFile()
	defer f.Close()
	form := "dd.mm.yyyy hh:mm"
	day, err := f.NewStyle(&excelize.Style{CustomNumFmt: &form})
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range order {
		if _, err := f.NewSheet(name); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if err := f.DeleteSheet("Sheet1"); err != nil {
				t.Fatal(err)
			}
		}
		for r, row := range sheets[name] {
			for c, v := range row {
				cell, err := excelize.CoordinatesToCellName(c+1, r+1)
				if err == nil {
					err = f.SetCellValue(name, cell, v)
				}
				if _, ok := v.(time.Time); ok && err == nil {
					err = f.SetCellStyle(name, cell, cell, day)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	path := filepath.Join(t.TempDir(), "export.xlsx")
	if err := f.SaveAs(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSpreadsheets reads the layouts in which users keep readings in spreadsheets.
func TestSpreadsheets(t *testing.T) {
	at := func(i int) time.Time {
		return time.Date(2024, 3, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(i) * time.Hour)
	}
	const n = 24 * 20
	load := func(i, meter int) float64 { return 1.5 + float64((i*7+meter*3)%11)/4 }
	rows := func(row func(i int) []any, head ...[]any) [][]any {
		for i := range n {
			head = append(head, row(i))
		}
		return head
	}
	long := rows(func(i int) []any { return []any{"house", at(i), load(i, 0)} }, []any{"meter", "time", "load kW"})
	for name, c := range map[string]struct {
		path   string
		hints  Hints
		meters int
		said   []string
	}{
		"long": {workbook(t, map[string][][]any{"Data": long}, "Data"), Hints{}, 1, []string{"spreadsheet"}},
		"second sheet, a column per meter": {
			workbook(t, map[string][][]any{
				"Cover": {{"Consumption report"}, {"created by", "somebody"}},
				"kW":    rows(func(i int) []any { return []any{at(i), load(i, 0), load(i, 1)} }, []any{"Time", "North", "South"}),
			}, "Cover", "kW"), Hints{}, 2, []string{`sheet "kW" of 2`},
		},
		"title, units and totals": {
			workbook(t, map[string][][]any{"A": append(rows(func(i int) []any { return []any{at(i), load(i, 0)} },
				[]any{"Export of meter 4711"}, []any{}, []any{"Time", "Load"}, []any{"", "kW"}), []any{"Total", 2500.5}, []any{"all values without guarantee"})}, "A"),
			Hints{},
			1,
			[]string{"left out the last 2 rows, which have no date"},
		},
		"one total, and a title in the column of dates": {
			workbook(t, map[string][][]any{"A": append(rows(func(i int) []any { return []any{at(i), load(i, 0)} },
				[]any{4711, "number of the meter"}, []any{"Time", "Load kW"}), []any{"Total", 2500.5})}, "A"),
			Hints{},
			1,
			[]string{`left out the last row, which has no date: "Total 2500.5"`},
		},
		"dates as text": {
			workbook(t, map[string][][]any{"A": rows(func(i int) []any { return []any{at(i).Format("02.01.2006 15:04"), load(i, 0)} }, []any{"Time", "Load kW"})}, "A"),
			Hints{},
			1, nil,
		},
		"named sheet": {
			workbook(t, map[string][][]any{"old": long[:100], "new": long}, "old", "new"), Hints{Format: Table{Sheet: "new"}}, 1, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := look(c.path, c.hints)
			if err != nil {
				t.Fatal(err)
			}
			d := s.Description
			d.Zone, d.Interval, d.path = "UTC", "1h", filepath.Join(filepath.Dir(c.path), FileName)
			if d.Unit == "" {
				d.Unit = "kW"
			}
			got, err := Open(d, "")
			if err != nil {
				t.Fatalf("%v with %+v", err, d.Load)
			}
			if got.Len() != c.meters {
				t.Fatalf("%d meters, want %d", got.Len(), c.meters)
			}
			for k := range got.Len() {
				m := got.Meter(k)
				if len(m.Load) != n || m.Start != at(0).Unix() {
					t.Fatalf("%d readings from %v", len(m.Load), time.Unix(m.Start, 0).UTC())
				}
				for i, v := range m.Load {
					if v != float32(load(i, k)) {
						t.Fatalf("meter %d: reading %d is %v, want %v", k, i, v, load(i, k))
					}
				}
			}
			text := strings.Join(s.lines(), "\n")
			for _, part := range c.said {
				if !strings.Contains(text, part) {
					t.Errorf("%q is not said:\n%s", part, text)
				}
			}
		})
	}
	for name, c := range map[string]struct{ path, sheet, want string }{
		"no dates":     {workbook(t, map[string][][]any{"A": {{"a", "b"}, {1, 2}}}, "A"), "", "no sheet has dates"},
		"other sheet":  {workbook(t, map[string][][]any{"A": long}, "A"), "B", `there is no sheet "B"; there are A`},
		"no workbook":  {archive(t), "", "is damaged"},
		"formula only": {workbook(t, map[string][][]any{"A": {{}}}, "A"), "", "no sheet has dates"},
	} {
		if _, err := look(c.path, Hints{Format: Table{Sheet: c.sheet}}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func archive(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "x.xlsx")
	if err := os.WriteFile(path, bytes.Join([][]byte{[]byte("PK\x03\x04"), make([]byte, 100)}, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
