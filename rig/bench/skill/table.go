package skill

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// columns are the columns of a table of results.
const columns = "client\tmethod\trows\ttrees\tvalidation_mae\ttest_mae\tcpu_s"

// table contains the results. It is also stored in a file, unless Options has no folder. Its
// first line describes how the results were made.
type table struct {
	rows []Row
	file *os.File
}

// openTable opens the table of a dataset and a number of targets in the folder of results.
// It reads the results in the table.
func openTable(o Options) (*table, error) {
	t := &table{}
	if o.Out == "" {
		return t, nil
	}
	if err := os.MkdirAll(o.Out, 0o777); err != nil {
		return nil, err
	}
	path := filepath.Join(o.Out, fmt.Sprintf("%s-%d.tsv", o.Dataset.Name, o.Targets))
	head := fmt.Sprintf("# dataset %s, %d targets, origins every %d steps, at most %d training rows", o.Dataset.Name, o.Targets, max(o.Stride, 1), o.Rows)
	if err := t.read(path, head); err != nil {
		return nil, err
	}
	// Rewrite the table, because the last line of an interrupted run can be incomplete.
	var err error
	if t.file, err = os.Create(path + ".new"); err != nil {
		return nil, err
	}
	w := bufio.NewWriter(t.file)
	fmt.Fprintf(w, "%s\n%s\n", head, columns)
	for _, r := range t.rows {
		fmt.Fprintln(w, r)
	}
	if err := errors.Join(w.Flush(), os.Rename(path+".new", path)); err != nil {
		t.file.Close()
		return nil, err
	}
	return t, nil
}

// read reads the complete rows of a table, if it exists.
func (t *table) read(path, head string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	lines := strings.Split(string(text), "\n")
	if lines[0] != head {
		return fmt.Errorf("%s has results of other settings (%s); choose another folder with --out", path, lines[0])
	}
	for i, line := range lines[1:] {
		if i == 0 || i == len(lines)-2 {
			continue // the line with the column names, or the text after the last complete line
		}
		r, err := parseRow(line)
		if err != nil {
			return fmt.Errorf("%s, line %d: %w", path, i+2, err)
		}
		t.rows = append(t.rows, r)
	}
	return nil
}

// String returns the row as a line of a table.
func (r Row) String() string {
	return fmt.Sprintf("%s\t%s\t%d\t%d\t%.7g\t%.7g\t%.3f", r.Client, r.Method, r.Rows, r.Trees, r.Validation, r.Test, r.CPU)
}

func parseRow(line string) (r Row, err error) {
	f := strings.Split(line, "\t")
	if len(f) != strings.Count(columns, "\t")+1 {
		return r, fmt.Errorf("%d columns, want %s", len(f), strings.ReplaceAll(columns, "\t", ", "))
	}
	r.Client, r.Method = f[0], f[1]
	var errs [5]error
	r.Rows, errs[0] = strconv.Atoi(f[2])
	r.Trees, errs[1] = strconv.Atoi(f[3])
	r.Validation, errs[2] = strconv.ParseFloat(f[4], 64)
	r.Test, errs[3] = strconv.ParseFloat(f[5], 64)
	r.CPU, errs[4] = strconv.ParseFloat(f[6], 64)
	return r, errors.Join(errs[:]...)
}

// has reports whether the table contains the result of a method for a client.
func (t *table) has(client, method string) bool {
	for _, r := range t.rows {
		if r.Client == client && r.Method == method {
			return true
		}
	}
	return false
}

// add adds a result, unless the table already contains it.
func (t *table) add(r Row) error {
	if t.has(r.Client, r.Method) {
		return nil
	}
	t.rows = append(t.rows, r)
	if t.file == nil {
		return nil
	}
	_, err := fmt.Fprintln(t.file, r)
	return err
}

// close closes the file. Later calls do nothing.
func (t *table) close() error {
	if t.file == nil {
		return nil
	}
	f := t.file
	t.file = nil
	return f.Close()
}
