package readings

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"loadstar/series/openmeteo"
	"loadstar/series/store"
)

// maxWeatherColumns bounds the columns of one document.
const maxWeatherColumns = 16

// weatherRows are the rows of one document.
type weatherRows struct {
	names []string
	rows  []store.WeatherRow
	// numbers contains the row number in the document for each of rows.
	numbers []int
	refused []RefusedRow
}

// readWeatherCSV reads weather: ds, columns, and optionally issued. Without a column issued,
// the weather counts as issued now.
func (p *rowReader) readWeatherCSV(r io.Reader, now int64) (*weatherRows, error) {
	out := &weatherRows{}
	var theirs []string
	err := table(r, []string{"ds"}, func(name string) bool {
		if name == "ds" || name == "issued" {
			return true
		}
		theirs = append(theirs, name)
		out.names = append(out.names, openmeteo.Name(name))
		return len(theirs) <= maxWeatherColumns
	}, func(n int, cell func(string) string) error {
		if n > maxDocumentRows {
			return &syntaxError{n, errRows}
		}
		values := make([]float32, len(theirs))
		for i, name := range theirs {
			v, ok := number(cell(name))
			if !ok {
				out.refused = append(out.refused, RefusedRow{n, string(store.BadValue)})
				return nil
			}
			values[i] = float32(v)
		}
		out.add(p, n, cell("ds"), cell("issued"), now, values)
		return nil
	})
	return out, err
}

// add adds a row, or the reason to refuse it.
func (w *weatherRows) add(p *rowReader, n int, ds, issued string, now int64, values []float32) {
	at, why := p.instant("", ds)
	known := now
	if why == "" && issued != "" {
		known, why = p.instant("issued", issued)
	}
	if why != "" {
		w.refused = append(w.refused, RefusedRow{n, why})
		return
	}
	w.rows = append(w.rows, store.WeatherRow{Time: at, Issued: known, Values: values})
	w.numbers = append(w.numbers, n)
}

// readWeatherJSON reads weather as JSON lines, as an array of objects with ds and numbers,
// or in Open-Meteo's format.
func (p *rowReader) readWeatherJSON(r io.Reader, now int64) (*weatherRows, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	switch hours, err := openmeteo.Parse(data, maxDocumentRows); {
	case errors.Is(err, openmeteo.ErrOther):
	case errors.Is(err, openmeteo.ErrHours):
		return nil, &syntaxError{0, errRows}
	case err != nil:
		return nil, &syntaxError{0, err}
	default:
		return hoursOf(hours, now), nil
	}
	out := &weatherRows{}
	columns := map[string]int{}
	err = objects(bytes.NewReader(data), func(n int, row *shortObject) error {
		if n > maxDocumentRows {
			return &syntaxError{n, errRows}
		}
		if err := out.addObject(p, n, *row, now, columns); err != nil {
			return &syntaxError{n, err}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out.names = make([]string, len(columns))
	for name, i := range columns {
		out.names[i] = name
	}
	for i := range out.rows {
		out.rows[i].Values = filled(out.rows[i].Values, len(columns))
	}
	return out, nil
}

// filled appends NaN until there are n values.
func filled(values []float32, n int) []float32 {
	for len(values) < n {
		values = append(values, float32(math.NaN()))
	}
	return values
}

// shortObject is an object that is at most as long as a line may be. A longer object would take
// a long time to decode.
type shortObject map[string]json.RawMessage

// UnmarshalJSON implements json.Unmarshaler.
func (o *shortObject) UnmarshalJSON(data []byte) error {
	if len(data) > maxLine {
		return fmt.Errorf("the object is longer than %d bytes", maxLine)
	}
	return json.Unmarshal(data, (*map[string]json.RawMessage)(o))
}

// addObject adds an object as a row, and its new columns. The values are in the order in which
// the document first named their columns, and there may be fewer values than columns.
func (w *weatherRows) addObject(p *rowReader, n int, all shortObject, now int64, columns map[string]int) (err error) {
	var ds, issued jsonTime
	var values []float32
	for _, name := range slices.Sorted(maps.Keys(all)) {
		switch name {
		case "ds":
			err = json.Unmarshal(all[name], &ds)
		case "issued":
			if string(all[name]) != "null" {
				err = json.Unmarshal(all[name], &issued)
			}
		default:
			values, err = addValue(values, openmeteo.Name(name), all[name], columns)
		}
		if err != nil {
			return fmt.Errorf("%.60q: %w", name, err)
		}
	}
	w.add(p, n, string(ds), string(issued), now, values)
	return nil
}

func addValue(values []float32, name string, raw json.RawMessage, columns map[string]int) ([]float32, error) {
	i, ok := columns[name]
	if !ok {
		if i = len(columns); i == maxWeatherColumns {
			return nil, errColumns
		}
		columns[name] = i
	}
	var v *float64
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, err
	}
	values = filled(values, i+1)
	if v != nil {
		values[i] = float32(*v)
	}
	return values, nil
}

var errColumns = fmt.Errorf("more than %d columns", maxWeatherColumns)

// hoursOf returns the rows of an Open-Meteo response.
func hoursOf(h *openmeteo.Hours, now int64) *weatherRows {
	out := &weatherRows{names: h.Names}
	for i, t := range h.Times {
		if t == nil {
			out.refused = append(out.refused, RefusedRow{i + 1, badTime})
			continue
		}
		out.rows = append(out.rows, store.WeatherRow{Time: *t, Issued: now, Values: h.Rows[i]})
		out.numbers = append(out.numbers, i+1)
	}
	return out
}
