package cli

import (
	"encoding/csv"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"loadstar/internal/textfmt"
)

// Table writes rows whose columns are separated by tabs.
type Table interface {
	io.Writer
	// Flush writes the buffered rows.
	Flush() error
}

// NewTable returns a table with aligned columns. If w is a table of [NewCSV], NewTable returns
// w, so commands need only one code path for both formats.
func NewTable(w io.Writer, flags uint) Table {
	if t, ok := w.(*csvTable); ok {
		return t
	}
	return tabwriter.NewWriter(w, 0, 4, 2, ' ', flags)
}

// NewCSV returns a table that is written as comma-separated values. It omits lines without
// tabs, which are text around the table.
func NewCSV(w io.Writer) Table { return &csvTable{to: csv.NewWriter(w)} }

// none is the cell of a missing value.
const none = "-"

type csvTable struct {
	to   *csv.Writer
	rest string // the rest of an incomplete line
}

func (t *csvTable) Write(p []byte) (int, error) {
	lines := strings.Split(t.rest+string(p), "\n")
	t.rest = lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		if !strings.Contains(line, "\t") {
			continue
		}
		row := strings.Split(strings.TrimSuffix(line, "\t"), "\t")
		for i := range row {
			if row[i] = strings.TrimSpace(row[i]); row[i] != none {
				row[i] = textfmt.Cell(row[i])
			}
		}
		if err := t.to.Write(row); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (t *csvTable) Flush() error {
	t.to.Flush()
	return t.to.Error()
}

// Width returns the width of the terminal w, between 40 and 100 columns, or 80 if w is not
// a terminal.
func Width(w io.Writer) int {
	const least, usual, most = 40, 80, 100
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return min(max(n, least), most)
	}
	if f, ok := w.(*os.File); ok {
		if n := columns(f); n > 0 {
			return min(max(n, least), most)
		}
	}
	return usual
}

// Terminal reports whether w is a terminal.
func Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && columns(f) > 0
}
