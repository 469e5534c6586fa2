// Package openmeteo requests weather from a service with Open-Meteo's interface, and parses the
// responses.
package openmeteo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// theirNames maps the names that weather services use to ours.
var theirNames = map[string]string{
	"temperature_2m": "temperature", "wind_speed_10m": "wind", "windspeed_10m": "wind",
	"relative_humidity_2m": "humidity", "relativehumidity_2m": "humidity", "shortwave_radiation": "solar",
}

// Name returns our name of a weather column.
func Name(theirs string) string {
	if our, ok := theirNames[theirs]; ok {
		return our
	}
	return theirs
}

var (
	// ErrOther means that the data is not a response of such a service.
	ErrOther = errors.New("it is not an answer in the form of Open-Meteo: it has no hourly")
	// ErrHours means that a response has more hours than are allowed.
	ErrHours = errors.New("it has too many hours")
)

// Hours is the weather in a response. It has a value of each column for each time.
type Hours struct {
	Names []string
	Times []*int64 // Unix seconds; nil if a time is invalid
	Rows  [][]float32
}

// members calls do for each member of an object, with a decoder positioned at the member's
// value.
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
		name := t.(string) // after { or , the token is a name; otherwise Token fails
		if err := do(name, d); err != nil {
			return fmt.Errorf("%.60q: %w", name, err)
		}
	}
	_, err := d.Token()
	return err
}

// document contains the fields of a response that are used.
type document struct {
	Offset *int64                     `json:"utc_offset_seconds"`
	Units  ofWeather[string]          `json:"hourly_units"`
	Hourly ofWeather[json.RawMessage] `json:"hourly"`
}

// ofWeather contains the members of an object that hold times or weather. Other members are not
// kept, because there may be hundreds of thousands of them.
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

// elements decodes an array that has at most the given number of elements.
func elements[T any](raw json.RawMessage, most int) (all []T, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, errors.Join(errors.New("want an array"), err)
	}
	for d.More() {
		if len(all) == most {
			return nil, ErrHours
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

// conversions maps each unit that Open-Meteo offers to its conversion to our unit.
var conversions = map[string]func(float64) float64{
	"°C": same, "%": same, "W/m²": same, "m/s": same,
	"°F":   func(v float64) float64 { return (v - 32) / 1.8 },
	"km/h": func(v float64) float64 { return v / 3.6 },
	"mp/h": func(v float64) float64 { return v * 0.44704 },
	"kn":   func(v float64) float64 { return v * (1852. / 3600) },
}

func same(v float64) float64 { return v }

// Parse reads a response with at most the given number of hours. Missing values are NaN.
func Parse(data []byte, most int) (*Hours, error) {
	var o document
	if json.Unmarshal(data, &o) != nil || o.Hourly == nil {
		return nil, ErrOther
	}
	times, err := o.times(most)
	if err != nil {
		return nil, fmt.Errorf("hourly.time: %w", err)
	}
	if o.Offset == nil {
		return nil, errors.New("utc_offset_seconds is missing, so the times are ambiguous")
	}
	out := &Hours{}
	var columns [][]*float64
	for _, theirs := range []string{"temperature_2m", "wind_speed_10m", "windspeed_10m", "relative_humidity_2m", "relativehumidity_2m", "shortwave_radiation"} {
		raw, ok := o.Hourly[theirs]
		if !ok || slices.Contains(out.Names, Name(theirs)) {
			continue
		}
		column, err := elements[*float64](raw, most)
		if err != nil || len(column) != len(times) {
			return nil, errors.Join(fmt.Errorf("hourly.%s does not have a number or null for each of the %d times", theirs, len(times)), err)
		}
		convert, ok := conversions[o.Units[theirs]]
		if !ok {
			return nil, fmt.Errorf("hourly_units.%s is %.20q, which is not known", theirs, o.Units[theirs])
		}
		for _, v := range column {
			if v != nil {
				*v = convert(*v)
			}
		}
		out.Names = append(out.Names, Name(theirs))
		columns = append(columns, column)
	}
	if len(columns) == 0 {
		return nil, errors.New("hourly has none of temperature_2m, wind_speed_10m, relative_humidity_2m, shortwave_radiation")
	}
	for i, text := range times {
		var at *int64
		if t, err := time.Parse("2006-01-02T15:04", strings.TrimSuffix(text, "Z")); err == nil {
			seconds := t.Unix() - *o.Offset
			at = &seconds
		}
		values := make([]float32, len(columns))
		for c, column := range columns {
			values[c] = float32(math.NaN())
			if column[i] != nil {
				values[c] = float32(*column[i])
			}
		}
		out.Times, out.Rows = append(out.Times, at), append(out.Rows, values)
	}
	return out, nil
}

// times returns a response's times as strings. Unix times are in UTC.
func (o *document) times(most int) ([]string, error) {
	texts, err := elements[string](o.Hourly["time"], most)
	if err == nil || o.Units["time"] != "unixtime" || errors.Is(err, ErrHours) {
		return texts, err
	}
	seconds, err := elements[int64](o.Hourly["time"], most)
	if err != nil {
		return nil, err
	}
	texts = nil
	for _, s := range seconds {
		texts = append(texts, time.Unix(s, 0).UTC().Format("2006-01-02T15:04"))
	}
	o.Offset = new(int64)
	return texts, nil
}
