package table

import (
	"bytes"
	"math"
	"testing"
	"time"
)

// FuzzCSV checks that no file and no format makes the reader panic, that every number is
// finite, and that every time is plausible.
func FuzzCSV(f *testing.F) {
	f.Add([]byte("Z\xe4hler;Zeit;kWh\n;;kWh\na;1.2.2020 24:00;1.234,5\n"), byte(1), byte(','), byte(1), byte(0), "Zeit")
	f.Add([]byte("\xff\xfea\x00;\x00b\x00\n\x001\x00;\x002\x00"), byte(2), byte('.'), byte(0), byte(5), "")
	f.Add([]byte("x\ty\n2/1/2020 12:00 AM\t1'234.5\n"), byte(0), byte('.'), byte(0), byte(3), "")
	f.Add([]byte("time,a\n20200229 1:00,1 234\n"), byte(3), byte(0), byte(0), byte(23), "time")
	forms := append(AllDates(), Dates{})
	f.Fuzz(func(t *testing.T, text []byte, encoding, decimal, skip, form byte, header string) {
		in, err := OpenCSV(bytes.NewReader(text), Format{
			Encoding: Encodings()[int(encoding)%len(Encodings())], Decimal: decimal, Skip: int(skip), Header: header,
		})
		if err != nil {
			return
		}
		var columns []int
		for i := range in.Columns() {
			columns = append(columns, i)
		}
		clock := NewClock(time.UTC, 0, forms[int(form)%len(forms)])
		_ = in.Each(columns, func(cells []Cell) error { // a damaged row ends the file
			for i := range cells {
				if v, err := cells[i].Value(); err == nil && math.IsInf(v, 0) {
					t.Fatalf("%q is %g", cells[i].Name(), v)
				}
				for _, at := range []*Cell{&cells[i], &cells[len(cells)-1]} {
					when, err := clock.Join(&cells[0], at)
					if err == nil && (when.Unix < 0 || when.Unix > 1<<33) {
						t.Fatalf("%q and %q are %d", cells[0].Name(), at.Name(), when.Unix)
					}
				}
				if when, err := clock.Instant(&cells[i]); err == nil && (when.Unix < 0 || when.Unix > 1<<33) {
					t.Fatalf("%q is %d", cells[i].Name(), when.Unix)
				}
			}
			return nil
		})
	})
}
