package read

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// hoursOf returns a row for each hour of the given number of days.
func hoursOf(days int, layout, sep string, value func(i int) string) string {
	var b strings.Builder
	for i := range 24 * days {
		b.WriteString(time.Date(2020, 4, 1, i, 0, 0, 0, time.UTC).Format(layout) + sep + value(i) + "\n")
	}
	return b.String()
}

func plainValue(i int) string { return fmt.Sprintf("%d.5", i%7) }

// TestRefusals checks that a file that cannot be recognised is refused, that the error states
// the line, what was found there and the remedy, and that nothing is written.
func TestRefusals(t *testing.T) {
	iso := "2006-01-02 15:04"
	for _, c := range []struct {
		name, text string
		need       map[string]string
		want       []string
	}{
		{"no header", hoursOf(2, "02.01.2006 15:04", ";", func(int) string { return "1,5" }), nil, []string{"x.csv: line 1 is already a row (01.04.2020 00:00;1,5)", "insert a line with names, such as time;load"}},
		{"empty", "", nil, []string{"x.csv: the file is empty"}},
		{"no table", "hello\nworld\n", nil, []string{"x.csv: this is not a table"}},
		{"binary", "time;load\x00\x01\x02\x03\n" + strings.Repeat("\x00\x01\x00\x07\n", 99), nil, []string{"x.csv: this is not a text file; export the table as CSV"}},
		{"spreadsheet", "PK\x03\x04....", nil, []string{"x.csv: the file begins like a spreadsheet but is damaged", "export it as CSV"}},
		{"no numbers", "time;word\n" + hoursOf(1, iso, ";", func(int) string { return "abc" }), nil, []string{"x.csv: line 1: there is a column of times (time) but none of numbers", "--column load=NAME"}},
		{"several loads", "meter;time;T1 kWh;T2 kWh\n" + strings.ReplaceAll(hoursOf(1, iso, ";", func(int) string { return "1;2" }), "2020-", "a;2020-"), nil, []string{"x.csv: line 1: meters are in column meter, but several columns may be the load: T1 kWh, T2 kWh", "--column load=NAME"}},
		{"several units", "time;A [kWh];B [kW]\n" + hoursOf(1, iso, ";", func(int) string { return "1.5;2.5" }), nil, []string{"x.csv: line 1: A [kWh] is in kWh, but B [kW] is in kW", "--ignore"}},
		{"ambiguous dates", "time;kW\n" + hoursOf(1, "02/01/2006 15:04", ";", plainValue), map[string]string{"zone": "UTC"}, []string{"use --date (01/04/2020 01:00 could be dd/mm/yyyy (1 April 2020) or mm/dd/yyyy (4 January 2020))"}},
		{"wrong date format", "time;kW\n" + hoursOf(30, "02/01/2006 15:04", ";", plainValue), map[string]string{"zone": "UTC", "date": "mm/dd/yyyy"}, []string{`x.csv: line 290: time "13/04/2020 00:00" is not in the format mm/dd/yyyy; correct --date`}},
		{"unknown date format", "time;kW\n", map[string]string{"date": "dd mmm"}, []string{`--date is "dd mmm"; it must be a format such as`}},
		{"mixed dates", "time;kW\n" + hoursOf(20, "02.01.2006 15:04", ";", plainValue) + "2020-05-01 00:00;1\n", nil, []string{`x.csv: line 482: time "2020-05-01 00:00" is not in the format dd.mm.yyyy of the rows before it`, "--date"}},
		{"mixed decimals", "time;kW\n" + hoursOf(1, iso, ";", plainValue) + "2020-04-02 00:00;1,55\n", nil, []string{"x.csv: the numbers 1,55 and 0.5 have different decimal separators", "--decimal"}},
		{"hours as numbers", "CUPS;Fecha;Hora;AE_kWh\nES;" + strings.ReplaceAll(hoursOf(2, "02/01/2006", ";", func(i int) string { return fmt.Sprintf("%d;1,5", i%24+1) }), "\n0", "\nES;0"), nil, []string{"has no time of day, and a day has several rows"}},
		{"no unit and no zone", "time;a;b\n" + hoursOf(1, iso, ";", func(int) string { return "1.5;2.5" }), nil, []string{"use --zone, --unit (or --yes for kW)"}},
		{"decimals or thousands", "time;kW\n" + hoursOf(1, iso, ";", func(i int) string { return fmt.Sprintf("1,%03d", i) }), map[string]string{"zone": "UTC"}, []string{"use --decimal (or --yes for ,)"}},
		{"one row", "time;kW\n2020-04-01 00:00;1\n", nil, []string{"x.csv: no meter has two rows", "--interval"}},
		{"total between rows", "time;kW\n" + hoursOf(1, iso, ";", plainValue) + ";99.5\n2020-04-02 00:00;1\n", map[string]string{"zone": "UTC", "stamp": "start"}, []string{"x.csv: line 26: the time is missing; delete the line if it is a total", "nothing was written"}},
		{"unknown column", "time;kW\n" + hoursOf(1, iso, ";", plainValue), map[string]string{"load": "Last"}, []string{"x.csv: line 1: there is no column Last for load; the columns are time, kW"}},
		{"unknown zone", "time;kW\n" + hoursOf(1, iso, ";", plainValue), map[string]string{"zone": "Berlin"}, []string{`zone "Berlin" is unknown`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "x.csv")
			if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
			s := setupFor(c.need)
			if c.need["load"] != "" {
				s.Hints.Columns = map[string]string{"load": c.need["load"]}
			}
			_, err := s.Run(path)
			if err == nil {
				t.Fatal("it was accepted")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %s", err, want)
				}
			}
			if _, err := os.Stat(filepath.Join(dir, FileName)); err == nil {
				t.Error("a description was written")
			}
		})
	}
}

// TestLargeFile checks that only the beginning and the end of a large file are read, and that
// the end is used as evidence. The middle is a hole that would take minutes to read.
func TestLargeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.csv")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var head bytes.Buffer
	head.WriteString("time;kWh\n")
	at := time.Date(2020, 1, 1, 1, 0, 0, 0, time.UTC)
	for ; head.Len() < headBytes+1000; at = at.Add(time.Hour) {
		fmt.Fprintf(&head, "%s;1,5\n", at.Format("02.01.2006 15:04"))
	}
	if _, err := f.Write(head.Bytes()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("\n31.12.2100 23:00;1,5\n01.01.2101 00:00;1,5\n"), 8<<30); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	s, err := look(path, Hints{})
	if err != nil {
		t.Fatal(err)
	}
	if d := s.Description; d.Stamp != StampEnd || d.Load.Date != "dd.mm.yyyy" || d.Load.Decimal != "," || d.Interval != "1h" {
		t.Errorf("%+v", d)
	}
	if took := time.Since(started); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}

// TestCountries checks that every country that can be guessed has public holidays, and that
// every zone exists.
func TestCountries(t *testing.T) {
	for zone, country := range zoneCountry {
		d := describe(t, "zone: "+zone, "country: "+country)
		if d.Country != country {
			t.Error(zone)
		}
	}
	if code, note := HolidaysOf("", "Europe/Berlin"); code != "DE" || note == "" {
		t.Error(code, note)
	}
	if code, note := HolidaysOf("AT", "Europe/Berlin"); code != "AT" || note != "" {
		t.Error(code, note)
	}
}
