package experiment

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Meta is the part name of rows that are not results: the list of generated datasets, and
// the cost of the runs.
const Meta = "meta"

const header = "part\tdataset\tmethod\tat\tmetric\tvalues"

// maxLine bounds the length of a line in a table of results.
const maxLine = 1 << 20

// WriteTSV writes results in long format: one row for each figure, with one value for each
// seed.
func WriteTSV(w io.Writer, results []Result) error {
	out := bufio.NewWriter(w)
	fmt.Fprintln(out, header)
	write := func(part, dataset, method, at, name string, f Figure) {
		values := make([]string, len(f))
		for i, v := range f {
			values[i] = strconv.FormatFloat(v, 'g', 6, 64)
			if math.Trunc(v) == v && math.Abs(v) < 1e15 {
				values[i] = strconv.FormatFloat(v, 'f', -1, 64)
			}
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\n", part, dataset, method, at, name, strings.Join(values, " "))
	}
	var generated []string
	for _, r := range results {
		if r.Generated && !slices.Contains(generated, r.Dataset) {
			generated = append(generated, r.Dataset)
			write(Meta, r.Dataset, "", "", "generated", Figure{1})
		}
	}
	for _, r := range results {
		for _, name := range slices.SortedFunc(maps.Keys(r.Figures), func(a, b string) int {
			return cmp.Or(cmp.Compare(order(a), order(b)), strings.Compare(a, b))
		}) {
			write(r.Part, r.Dataset, r.Method, strings.Join(r.At, "; "), name, r.Figures[name])
		}
	}
	return out.Flush()
}

func order(name string) int {
	if i := slices.Index(Names, name); i >= 0 {
		return i
	}
	return len(Names)
}

// ReadTSV reads results that WriteTSV wrote.
func ReadTSV(r io.Reader) ([]Result, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	var (
		results   []Result
		generated = map[string]bool{}
	)
	if !lines.Scan() || lines.Text() != header {
		return nil, cmp.Or(lines.Err(), errors.New("the first line is not \""+strings.ReplaceAll(header, "\t", " ")+"\""))
	}
	for n := 2; lines.Scan(); n++ {
		fields := strings.Split(lines.Text(), "\t")
		if len(fields) != 6 {
			return nil, fmt.Errorf("line %d has %d fields, want 6", n, len(fields))
		}
		row := Result{Part: fields[0], Dataset: fields[1], Method: fields[2]}
		if fields[3] != "" {
			row.At = strings.Split(fields[3], "; ")
		}
		name := fields[4]
		var f Figure
		for _, text := range strings.Fields(fields[5]) {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return nil, fmt.Errorf("line %d: %q is not a number", n, text)
			}
			f = append(f, v)
		}
		if name == "" || len(f) == 0 {
			return nil, fmt.Errorf("line %d has no metric or no values", n)
		}
		if row.Part == Meta && row.Dataset != "" && name == "generated" {
			generated[row.Dataset] = true
			continue
		}
		if last := len(results) - 1; last < 0 || !results[last].same(row) {
			if slices.ContainsFunc(results, row.same) {
				return nil, fmt.Errorf("line %d: the rows of %s %s %s %s are not together", n, row.Part, row.Dataset, row.Method, fields[3])
			}
			row.Figures = map[string]Figure{}
			results = append(results, row)
		}
		figures := results[len(results)-1].Figures
		if figures[name] != nil {
			return nil, fmt.Errorf("line %d: %s appears twice", n, name)
		}
		figures[name] = f
	}
	for i := range results {
		results[i].Generated = generated[results[i].Dataset]
	}
	return results, lines.Err()
}

// same reports whether two results are of the same method, dataset and point of the grid.
func (r Result) same(other Result) bool {
	return r.Part == other.Part && r.Dataset == other.Dataset && r.Method == other.Method && slices.Equal(r.At, other.At)
}
