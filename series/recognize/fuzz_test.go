package recognize

import (
	"slices"
	"strings"
	"testing"

	"loadstar/series/table"
)

// FuzzTable checks that no file makes the recogniser panic, and that the reader finds the
// recognised columns.
func FuzzTable(f *testing.F) {
	for _, s := range []string{
		"Zeit;Haus 1;Haus 2\n;kWh;kWh\n01.04.2020 00:15;1,5;2,5\n01.04.2020 00:30;1,5;\n",
		"Export\n\nZ\xe4hlpunkt;Datum;Uhrzeit;Wirkarbeit (kWh);Status\na;01.04.2020;24:00;0,6;W\na;02.04.2020;00:15;0,6;F\n",
		"meter,Date,Time,kWh\na,4/1/2020,12:00 AM,1.5\na,4/1/2020,12:15 AM,1.5\n",
		"\xff\xfet\x00;\x00k\x00W\x00\n\x002\x000\x002\x000\x00-\x000\x001\x00-\x000\x001\x00;\x001\x00\n\x00",
		"time|Import kWh|Export kWh\n2020-01-01T00:00:00Z|1 234,5|2\n2020-01-01T01:00:00+01:00|1.234|2\n",
		"\"Time\",\"a\nb\"\n\"20200101\",\"1,5\"\n", "a;b\n1;2\n", ";;;\n;;;\n", "01.04.2020 00:00 - 00:15;1\n", "sep=;\ntime;x\n2020-01-01;-\n",
	} {
		f.Add([]byte(s), []byte(""), true, byte(0))
		f.Add([]byte(s), []byte(s), false, byte(','))
	}
	f.Fuzz(func(t *testing.T, head, tail []byte, whole bool, decimal byte) {
		h := Hints{}
		if decimal == '.' || decimal == ',' {
			h.Decimal = decimal
		}
		found, err := Table(Sample{Head: head, Tail: tail, Whole: whole}, h)
		if err != nil {
			return
		}
		if found.Kind == Load && len(found.Dates) == 0 {
			t.Fatal("a load table without a date format")
		}
		for ours, theirs := range found.Columns {
			if !slices.Contains(found.Names, theirs) {
				t.Fatalf("%s is %q, which is not a column", ours, theirs)
			}
		}
		if found.Format.Header != "" && strings.Contains(string(head), "\x00") {
			return
		}
		in, err := table.OpenCSV(strings.NewReader(string(head)), found.Format)
		if err != nil || found.Kind != Load {
			return
		}
		unnamed := found.Columns["time"] == table.FirstColumn && in.Columns()[0] == ""
		if i := slices.Index(in.Columns(), found.Columns["time"]); i < 0 && !unnamed {
			t.Fatalf("the reader finds %q, the recogniser %q", in.Columns(), found.Names)
		}
	})
}
