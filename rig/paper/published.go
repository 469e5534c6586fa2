package paper

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// printed is a row of published.tsv: a number that the paper prints.
type printed struct {
	table, row, column, metric string
	value                      string // as printed, or "" if the paper shows only a picture
	unit, note                 string
}

const publishedHeader = "table\trow\tcolumn\tmetric\tvalue\tunit\tnote"

func readPublished(r io.Reader) ([]printed, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	var all []printed
	for n := 1; lines.Scan(); n++ {
		if n == 1 {
			if lines.Text() != publishedHeader {
				return nil, fmt.Errorf("the first line is not %q", strings.ReplaceAll(publishedHeader, "\t", " "))
			}
			continue
		}
		f := strings.Split(lines.Text(), "\t")
		if len(f) != 7 {
			return nil, fmt.Errorf("line %d has %d fields, want 7", n, len(f))
		}
		all = append(all, printed{f[0], f[1], f[2], f[3], f[4], f[5], f[6]})
	}
	return all, lines.Err()
}

// printed returns a number of published.tsv.
func (r *rules) printed(table, row, column, metric string) (float64, error) {
	var there []string
	for _, p := range r.published {
		if p.table == table && p.row == row && p.column == column && p.metric == metric {
			v, err := strconv.ParseFloat(p.value, 64)
			if err != nil {
				return math.NaN(), fmt.Errorf("published(%q, %q, %q, %q) is %q, not a number", table, row, column, metric, p.value)
			}
			return v, nil
		}
		there = append(there, fmt.Sprintf("(%q, %q, %q, %q)", p.table, p.row, p.column, p.metric))
	}
	asked := fmt.Sprintf("(%q, %q, %q, %q)", table, row, column, metric)
	return math.NaN(), fmt.Errorf("published.tsv has no %s; there are %s", asked, nearest(asked, there))
}

// nearest lists the names that are most similar to a name that does not exist.
func nearest(name string, names []string) string {
	const few = 4
	far := func(other string) int { return distance(strings.ToLower(name), strings.ToLower(other)) }
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) > few {
		slices.SortStableFunc(names, func(a, b string) int { return far(a) - far(b) })
		return strings.Join(names[:few], ", ") + fmt.Sprintf(" and %d more", len(names)-few)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// distance returns the edit distance of two strings, in bytes.
func distance(a, b string) int {
	line := make([]int, len(b)+1)
	for k := range line {
		line[k] = k
	}
	for i := range len(a) {
		before := line[0]
		line[0] = i + 1
		for k := range len(b) {
			cost := before
			if a[i] != b[k] {
				cost = 1 + min(before, line[k], line[k+1])
			}
			before, line[k+1] = line[k+1], cost
		}
	}
	return line[len(b)]
}
