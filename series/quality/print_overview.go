package quality

import (
	"fmt"
	"strings"

	"loadstar/series"
)

// DescribeSpan formats the time span, the interval and the coverage of a dataset.
func DescribeSpan(o Overview) string {
	const minute = "2006-01-02 15:04"
	return fmt.Sprintf("%s to %s, every %s, coverage %.1f %%", o.From.Format(minute), o.To.Format(minute), o.Interval, 100*o.Coverage)
}

// DescribeFaults formats the counts of faulty rows, or returns "" if there are none.
func DescribeFaults(f series.Faults) string {
	var out []string
	for _, c := range []struct {
		n    int
		what string
	}{
		{f.Duplicates, "repeated"},
		{f.Conflicts, "in conflict with an earlier row, dropped"},
		{f.OutOfOrder, "out of order"},
		{f.OffGrid, "off the interval grid, dropped"},
		{f.Nonexistent, "in the hour that daylight saving time skips, dropped"},
	} {
		if c.n > 0 {
			out = append(out, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return fmt.Sprintf("%d in total: %s", f.Rows, strings.Join(out, "; "))
}
