package outlook

import (
	"math"
	"os"
	"time"

	"loadstar/internal/textfmt"

	"loadstar/forecast/issue"
	"loadstar/internal/disk"
)

// dayTable is a CSV table with the energy of each local day in kWh, and the highest step of the
// first 24 hours in kW. ds is the start of the day or, for peaks, the start of the step that is
// most likely the highest, in UTC.
type dayTable struct{ b []byte }

func newDayTable() *dayTable {
	return &dayTable{[]byte("unique_id,cutoff,quantity,ds,mean,P10,P50,P90\n")}
}

func (t *dayTable) add(f issue.Forecast) {
	unknown := math.NaN()
	at := func(unix int64) string { return time.Unix(unix, 0).UTC().Format(time.RFC3339) }
	row := func(quantity string, start int64, values ...float64) {
		t.b = append(t.b, textfmt.Quoted(f.Client)+","+at(f.Cutoff)+","+quantity+","+at(start)...)
		for _, v := range values {
			t.b = issue.AppendNumber(append(t.b, ','), v)
		}
		t.b = append(t.b, '\n')
	}
	for _, d := range f.Days {
		row("energy", d.Start, d.Mean, d.P10, unknown, d.P90)
	}
	if f.Peak.Time != 0 {
		row("peak", f.Peak.Time, unknown, f.Peak.P10, f.Peak.P50, f.Peak.P90)
	}
}

func (t *dayTable) write(path string) error {
	return disk.Write(path, func(to *os.File) error {
		_, err := to.Write(t.b)
		return err
	})
}
