package mqtt

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"time"

	"loadstar/forecast/issue"
)

// Forecasts provides what the agent publishes.
type Forecasts interface {
	Clients() []string
	// Forecast returns the newest forecast of a client, or false if there is none.
	Forecast(client string) (Forecast, bool)
}

// Forecast is a forecast with the data needed to publish it.
type Forecast struct {
	issue.Forecast
	Issued time.Time
	Step   time.Duration
	Zone   *time.Location
	// Generated means that the readings are synthetic.
	Generated bool
}

// Hourly returns the means of whole clock hours of the zone. It averages the steps' means, and the values of
// each level. An hour with a missing step
// has no values. Source, quality and reason come from the hour's worst row.
//
// The mean of the steps' quantiles equals the quantile of the hour's mean only if errors within the
// hour move together. Usually they move together only partly, so the stated range from P10 to P90
// is somewhat wider than the true one.
func Hourly(f Forecast) []issue.Row {
	per := int(time.Hour / f.Step)
	var rows []issue.Row
	for i := 0; i < len(f.Rows); {
		t := time.Unix(f.Rows[i].Time, 0).In(f.Zone)
		if t.Minute() != 0 || t.Second() != 0 {
			i++
			continue
		}
		end := f.Rows[i].Time + 3600
		j := i
		for j < len(f.Rows) && f.Rows[j].Time < end {
			j++
		}
		if j-i < per && j == len(f.Rows) {
			break // the forecast ends within the hour
		}
		rows = append(rows, mean(f.Rows[i:j], per, len(f.Levels)))
		i = j
	}
	return rows
}

// mean returns the mean of the rows of one hour.
func mean(rows []issue.Row, per, levels int) issue.Row {
	worst := 0
	for i, r := range rows {
		if rank(r) > rank(rows[worst]) {
			worst = i
		}
	}
	out := rows[worst]
	out.Time = rows[0].Time
	out.Values, out.Mean = make([]float64, levels), 0
	for _, r := range rows {
		out.Mean += r.Mean / float64(per)
	}
	if len(rows) != per {
		out.Mean = math.NaN()
	}
	for q := range out.Values {
		total := 0.0
		for _, r := range rows {
			if q >= len(r.Values) {
				total = math.NaN()
				break
			}
			total += r.Values[q]
		}
		out.Values[q] = total / float64(per)
		if len(rows) != per {
			out.Values[q] = math.NaN()
		}
	}
	return out
}

// rank returns the position of a row's source on the ladder, counted from the top.
func rank(r issue.Row) int {
	return slices.Index(issue.Ladder, r.Source)
}

// value is a number in JSON, rounded to a thousandth, or null.
type value float64

// MarshalJSON writes null for numbers that JSON cannot represent.
func (v value) MarshalJSON() ([]byte, error) {
	x := math.Round(float64(v)*1000) / 1000
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return []byte("null"), nil
	}
	if x == 0 {
		x = 0 // avoids negative zero
	}
	return strconv.AppendFloat(nil, x, 'f', -1, 64), nil
}

// exact is a number in JSON with as many digits as in all other outputs, or null.
type exact float64

// MarshalJSON writes null for numbers that JSON cannot represent.
func (v exact) MarshalJSON() ([]byte, error) {
	if b := issue.AppendNumber(nil, float64(v)); len(b) > 0 {
		return b, nil
	}
	return []byte("null"), nil
}

// summary contains the states of a client's sensors. Energies are sums of means. The bounds
// of energies and the peak are separate forecasts.
type summary struct {
	NextHour       exact         `json:"next_hour"`    // kW
	EnergyToday    exact         `json:"energy_today"` // kWh
	TodayP10       exact         `json:"energy_today_P10"`
	TodayP90       exact         `json:"energy_today_P90"`
	EnergyTomorrow exact         `json:"energy_tomorrow"` // kWh
	TomorrowP10    exact         `json:"energy_tomorrow_P10"`
	TomorrowP90    exact         `json:"energy_tomorrow_P90"`
	PeakPower      exact         `json:"peak_power"` // median in kW
	PeakP10        exact         `json:"peak_power_P10"`
	PeakP90        exact         `json:"peak_power_P90"`
	PeakTime       *string       `json:"peak_time"`
	Quality        issue.Quality `json:"quality"`
}

// summarize computes the states.
func summarize(f Forecast) summary {
	step := int64(f.Step / time.Second)
	// Readings may be late, so the first rows can be in the past.
	start := max(f.Cutoff, f.Issued.Unix()/step*step)
	unknown := exact(math.NaN())
	s := summary{EnergyToday: unknown, TodayP10: unknown, TodayP90: unknown, EnergyTomorrow: unknown, TomorrowP10: unknown, TomorrowP90: unknown, Quality: issue.Missing}
	next, n := 0.0, int64(0)
	known, fine := 0, true
	for _, r := range f.Rows {
		if r.Time < start || r.Time >= start+86400 {
			continue
		}
		if r.Time < start+3600 {
			next += r.Mean
			n++
		}
		fine = fine && r.Quality == issue.OK
		if !math.IsNaN(r.Mean) {
			known++
		}
	}
	if s.NextHour = unknown; n == 3600/step {
		s.NextHour = exact(next * f.Step.Hours())
	}
	local := f.Issued.In(f.Zone)
	for _, d := range f.Days {
		switch d.Start {
		case time.Date(local.Year(), local.Month(), local.Day(), 0, 0, 0, 0, f.Zone).Unix():
			s.EnergyToday, s.TodayP10, s.TodayP90 = exact(d.Mean), exact(d.P10), exact(d.P90)
		case time.Date(local.Year(), local.Month(), local.Day()+1, 0, 0, 0, 0, f.Zone).Unix():
			s.EnergyTomorrow, s.TomorrowP10, s.TomorrowP90 = exact(d.Mean), exact(d.P10), exact(d.P90)
		}
	}
	s.PeakPower, s.PeakP10, s.PeakP90 = exact(f.Peak.P50), exact(f.Peak.P10), exact(f.Peak.P90)
	if f.Peak.Time != 0 {
		text := time.Unix(f.Peak.Time, 0).In(f.Zone).Format(time.RFC3339)
		s.PeakTime = &text
	}
	switch {
	case known > 0 && fine:
		s.Quality = issue.OK
	case known > 0:
		s.Quality = issue.Estimated
	}
	return s
}

// note explains the values of the hours in every message.
const note = "means of clock hours; an hour's quantile is the mean of its steps' quantiles, so that intervals are rather too wide"

// maxRows limits the hours of a message, because Home Assistant does not record attributes
// of more than 16,384 bytes.
const maxRows = 96

// Payload returns the message of a forecast.
func Payload(f Forecast) ([]byte, error) {
	rows := Hourly(f)
	rows = rows[:min(len(rows), maxRows)]
	utc := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	var b bytes.Buffer
	put := func(key string, v any) error {
		data, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if b.Len() > 1 && b.Bytes()[b.Len()-1] != '{' {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Quote(key))
		b.WriteByte(':')
		b.Write(data)
		return nil
	}
	type pair struct {
		key   string
		value any
	}
	columns := struct{ times, sources []string }{[]string{}, []string{}}
	for _, r := range rows {
		columns.times = append(columns.times, time.Unix(r.Time, 0).In(f.Zone).Format(time.RFC3339))
		columns.sources = append(columns.sources, string(r.Source))
	}
	b.WriteByte('{')
	for _, p := range []pair{
		{"client", f.Client},
		{"cutoff", utc(time.Unix(f.Cutoff, 0))},
		{"issued", utc(f.Issued)},
		{"step", "PT1H"},
		{"timezone", f.Zone.String()},
		{"model", f.Model},
		{"weight", value(f.Weight)},
		{"generated", f.Generated},
		{"unit", "kW"},
		{"hourly", note},
		{"summary", summarize(f)},
	} {
		if err := put(p.key, p.value); err != nil {
			return nil, err
		}
	}
	b.WriteString(`,"values":{`)
	if err := put("time", columns.times); err != nil {
		return nil, err
	}
	for q, l := range f.Levels {
		column := make([]value, len(rows))
		for i, r := range rows {
			column[i] = value(r.Values[q])
		}
		if err := put("P"+strconv.FormatFloat(math.Round(l*1e6)/1e4, 'f', -1, 64), column); err != nil {
			return nil, err
		}
	}
	means := make([]value, len(rows))
	for i, r := range rows {
		means[i] = value(r.Mean)
	}
	if err := put("mean", means); err != nil {
		return nil, err
	}
	if err := put("source", columns.sources); err != nil {
		return nil, err
	}
	b.WriteString("}}")
	return b.Bytes(), nil
}
