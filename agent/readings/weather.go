package readings

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	var objs []map[string]json.RawMessage
	err = objects(bytes.NewReader(data), func(n int, row *map[string]json.RawMessage) error {
		if n > maxDocumentRows {
			return &syntaxError{n, errRows}
		}
		objs = append(objs, *row)
		for name := range *row {
			if our := ourName(name); name != "ds" && name != "issued" && !slices.Contains(out.names, our) {
				out.names = append(out.names, our)
			}
		}
		if len(out.names) > maxWeatherColumns {
			return &syntaxError{len(objs), fmt.Errorf("more than %d columns", maxWeatherColumns)}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(out.names)
	for i, row := range objs {
		if err := out.addObject(p, i+1, row, now); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (w *weatherRows) addObject(p *rowReader, n int, row map[string]json.RawMessage, now int64) error {
	values := make([]float32, len(w.names))
	for i := range values {
		values[i] = float32(math.NaN())
	}
	var times [2]jsonTime
	for name, raw := range row {
		var err error
		switch name {
		case "ds":
			err = json.Unmarshal(raw, &times[0])
		case "issued":
			if string(raw) != "null" {
				err = json.Unmarshal(raw, &times[1])
			}
		default:
			var v *float64
			if err = json.Unmarshal(raw, &v); v != nil {
				values[slices.Index(w.names, ourName(name))] = float32(*v)
			}
		}
		if err != nil {
			return &syntaxError{n, fmt.Errorf("%.60q: %w", name, err)}
		}
	}
	w.add(p, n, string(times[0]), string(times[1]), now, values)
	return nil
}

// openMeteo is an answer of the weather service Open-Meteo, as far as it is used.
type openMeteo struct {
	Offset *int64                     `json:"utc_offset_seconds"`
	Units  map[string]string          `json:"hourly_units"`
	Hourly map[string]json.RawMessage `json:"hourly"`
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
	var times []string
	if err := json.Unmarshal(o.Hourly["time"], &times); err != nil {
		var seconds []int64
		if json.Unmarshal(o.Hourly["time"], &seconds) != nil || o.Units["time"] != "unixtime" {
			return nil, &syntaxError{0, fmt.Errorf("hourly.time: %w", err)}
		}
		times = nil
		for _, s := range seconds {
			times = append(times, time.Unix(s, 0).UTC().Format("2006-01-02T15:04"))
		}
		o.Offset = new(int64)
	}
	if len(times) > maxDocumentRows {
		return nil, &syntaxError{0, errRows}
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
		var column []*float64
		if err := json.Unmarshal(raw, &column); err != nil || len(column) != len(times) {
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
