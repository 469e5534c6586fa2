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
	"strings"
	"time"

	"loadstar/series/store"
)

// theirNames maps the names that weather services use to ours.
var theirNames = map[string]string{
	"temperature_2m": "temperature", "wind_speed_10m": "wind", "windspeed_10m": "wind",
	"relative_humidity_2m": "humidity", "relativehumidity_2m": "humidity", "shortwave_radiation": "solar",
}

// maxWeatherColumns bounds the columns of one document.
const maxWeatherColumns = 16

// weatherRows are the rows of one document.
type weatherRows struct {
	names []string
	rows  []store.WeatherRow
	// numbers has the row of the document for each of rows.
	numbers []int
	refused []RefusedRow
}

func ourName(name string) string {
	if our, ok := theirNames[name]; ok {
		return our
	}
	return name
}

// readWeatherCSV reads weather: ds, columns, and optionally issued. Weather without issued
// is as known now.
func (p *rowReader) readWeatherCSV(r io.Reader, now int64) (*weatherRows, error) {
	out := &weatherRows{}
	var theirs []string
	err := table(r, []string{"ds"}, func(name string) bool {
		if name == "ds" || name == "issued" {
			return true
		}
		theirs = append(theirs, name)
		out.names = append(out.names, ourName(name))
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

// add adds a row, or the reason why it cannot be one.
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

// readWeatherJSON reads weather as JSON lines or an array of objects with ds and numbers, or
// as Open-Meteo answers.
func (p *rowReader) readWeatherJSON(r io.Reader, now int64) (*weatherRows, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	var answer openMeteo
	if json.Unmarshal(data, &answer) == nil && answer.Hourly != nil {
		return answer.rows(now)
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

// shortObject is an object that is at most as long as a line may be. One with as many members as
// fit into a document would take long to decode.
type shortObject map[string]json.RawMessage

// UnmarshalJSON implements json.Unmarshaler.
func (o *shortObject) UnmarshalJSON(data []byte) error {
	if len(data) > maxLine {
		return fmt.Errorf("the object is longer than %d bytes", maxLine)
	}
	return json.Unmarshal(data, (*map[string]json.RawMessage)(o))
}

// addObject adds an object as a row, and its new columns. The values are in the order in which
// the document first named their columns, and may be fewer.
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
			values, err = addValue(values, ourName(name), all[name], columns)
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

// members calls do for each member of an object, with a decoder that is at the member's value.
func members(raw json.RawMessage, do func(name string, d *json.Decoder) error) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.Join(errors.New("want an object"), err)
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		name := t.(string) // what follows { or , is a name, otherwise Token fails
		if err := do(name, d); err != nil {
			return fmt.Errorf("%.60q: %w", name, err)
		}
	}
	_, err := d.Token()
	return err
}

// openMeteo is an answer of the weather service Open-Meteo, as far as it is used.
type openMeteo struct {
	Offset *int64                     `json:"utc_offset_seconds"`
	Units  ofWeather[string]          `json:"hourly_units"`
	Hourly ofWeather[json.RawMessage] `json:"hourly"`
}

// ofWeather has the members of an object that are about times or weather. The other members are
// not kept, because there may be hundreds of thousands.
type ofWeather[T any] map[string]T

// UnmarshalJSON implements json.Unmarshaler.
func (w *ofWeather[T]) UnmarshalJSON(data []byte) error {
	*w = ofWeather[T]{}
	var skipped json.RawMessage
	return members(data, func(name string, d *json.Decoder) error {
		if theirNames[name] == "" && name != "time" {
			return d.Decode(&skipped)
		}
		var v T
		err := d.Decode(&v)
		(*w)[name] = v
		return err
	})
}

// elements decodes an array that has at most as many elements as a document may have rows.
func elements[T any](raw json.RawMessage) (all []T, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, errors.Join(errors.New("want an array"), err)
	}
	for d.More() {
		if len(all) == maxDocumentRows {
			return nil, errRows
		}
		var v T
		if err := d.Decode(&v); err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	_, err = d.Token()
	return all, err
}

// conversions turns the units that Open-Meteo can be asked for into ours.
var conversions = map[string]func(float64) float64{
	"°C": same, "%": same, "W/m²": same, "m/s": same,
	"°F":   func(v float64) float64 { return (v - 32) / 1.8 },
	"km/h": func(v float64) float64 { return v / 3.6 },
	"mp/h": func(v float64) float64 { return v * 0.44704 },
	"kn":   func(v float64) float64 { return v * (1852. / 3600) },
}

func same(v float64) float64 { return v }

func (o *openMeteo) rows(now int64) (*weatherRows, error) {
	times, err := elements[string](o.Hourly["time"])
	if err != nil {
		if o.Units["time"] != "unixtime" || errors.Is(err, errRows) {
			return nil, &syntaxError{0, fmt.Errorf("hourly.time: %w", err)}
		}
		seconds, err := elements[int64](o.Hourly["time"])
		if err != nil {
			return nil, &syntaxError{0, fmt.Errorf("hourly.time: %w", err)}
		}
		times = nil
		for _, s := range seconds {
			times = append(times, time.Unix(s, 0).UTC().Format("2006-01-02T15:04"))
		}
		o.Offset = new(int64)
	}
	if o.Offset == nil {
		return nil, &syntaxError{0, errors.New("utc_offset_seconds is missing, so the times mean nothing")}
	}
	out := &weatherRows{}
	var columns [][]*float64
	for _, theirs := range []string{"temperature_2m", "wind_speed_10m", "windspeed_10m", "relative_humidity_2m", "relativehumidity_2m", "shortwave_radiation"} {
		raw, ok := o.Hourly[theirs]
		if !ok || slices.Contains(out.names, ourName(theirs)) {
			continue
		}
		column, err := elements[*float64](raw)
		if err != nil || len(column) != len(times) {
			return nil, &syntaxError{0, errors.Join(fmt.Errorf("hourly.%s does not have a number or null for each of the %d times", theirs, len(times)), err)}
		}
		convert, ok := conversions[o.Units[theirs]]
		if !ok {
			return nil, &syntaxError{0, fmt.Errorf("hourly_units.%s is %.20q, which is not known", theirs, o.Units[theirs])}
		}
		for _, v := range column {
			if v != nil {
				*v = convert(*v)
			}
		}
		out.names = append(out.names, ourName(theirs))
		columns = append(columns, column)
	}
	if len(columns) == 0 {
		return nil, &syntaxError{0, errors.New("hourly has none of temperature_2m, wind_speed_10m, relative_humidity_2m, shortwave_radiation")}
	}
	for i, text := range times {
		t, err := time.Parse("2006-01-02T15:04", strings.TrimSuffix(text, "Z"))
		if err != nil {
			out.refused = append(out.refused, RefusedRow{i + 1, badTime})
			continue
		}
		values := make([]float32, len(columns))
		for c, column := range columns {
			values[c] = float32(math.NaN())
			if column[i] != nil {
				values[c] = float32(*column[i])
			}
		}
		out.rows = append(out.rows, store.WeatherRow{Time: t.Unix() - *o.Offset, Issued: now, Values: values})
		out.numbers = append(out.numbers, i+1)
	}
	return out, nil
}
