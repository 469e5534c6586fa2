package read

import (
	"errors"
	"fmt"
	"time"

	"loadstar/series/table"
)

// delimiterNames maps the names of delimiters in a description to the delimiters.
var delimiterNames = map[string]byte{"": 0, ",": ',', ";": ';', "|": '|', "tab": '\t', "\t": '\t'}

// format returns the format of the table's files and of its dates.
func (t *Table) format() (table.Format, table.Dates, error) {
	f := table.Format{Encoding: t.Encoding, Header: t.Header, Skip: t.Skip, Footer: t.Footer, Sheet: t.Sheet}
	var ok bool
	if f.Delimiter, ok = delimiterNames[t.Delimiter]; !ok {
		return f, table.Dates{}, fmt.Errorf("delimiter is %q; it must be a comma, a semicolon, a bar or tab", t.Delimiter)
	}
	switch t.Decimal {
	case "":
	case ".", ",":
		f.Decimal = t.Decimal[0]
	default:
		return f, table.Dates{}, fmt.Errorf("decimal is %q; it must be a point or a comma", t.Decimal)
	}
	dates, err := table.ParseDates(t.Date)
	if err != nil {
		return f, dates, err
	}
	return f, dates, f.Check()
}

// checkLoad checks the settings that only a load table may have.
func (d *Description) checkLoad() error {
	wide := d.Load.Columns["meter"] == MeterIsColumn
	switch {
	case wide && d.Load.Columns["load"] != "":
		return fmt.Errorf("meter is %s, so every column is a meter and there is no load column", MeterIsColumn)
	case wide && d.Load.Columns["quality"] != "":
		return errors.New("a table with a column per meter has no quality column; name it under ignore")
	case !wide && len(d.Load.Ignore) > 0:
		return fmt.Errorf("ignore needs columns: {meter: %s}; other tables read only the columns that are named", MeterIsColumn)
	case len(d.Load.Missing) > 0 && d.Load.Columns["quality"] == "":
		return errors.New("missing needs the name of the quality column under columns")
	case d.Load.Columns["date"] != "" && d.Load.Columns["time"] == "":
		return errors.New("columns names a date column but no time column; name the column with the time of day, or call the column time if it has both")
	}
	for _, t := range []*Table{d.Weather, d.Meters} {
		if t != nil && (len(t.Ignore) > 0 || len(t.Missing) > 0) {
			return errors.New("ignore and missing are allowed only for the load table")
		}
	}
	if d.Reading == ReadingCounter {
		if !units[d.Unit].energy {
			return fmt.Errorf("reading is %s, so the unit must be kWh, Wh or MWh, not %s", ReadingCounter, d.Unit)
		}
		if d.Stamp == StampEnd {
			return fmt.Errorf("reading is %s: its times are those of the readings, so stamp must be start", ReadingCounter)
		}
	}
	return nil
}

// reader returns a clock for the times of a table.
func (t times) reader(dates table.Dates) *table.Clock {
	var shift time.Duration
	if t.end {
		shift = t.interval
	}
	return table.NewClock(t.clock, shift, dates)
}
