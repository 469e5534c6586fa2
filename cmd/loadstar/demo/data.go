package demo

import (
	"fmt"
	"math"
	"time"

	"loadstar/series"
	"loadstar/series/synth"
)

// The days of the demo. The model trains on the first days and is validated on the following
// days. All methods are compared on the last days, which arrive only after training.
const (
	trainDays = 90
	checkDays = 10
	testDays  = 20
	// beyond is the number of days after the last reading for which weather is known. Agents
	// look two days ahead from the next issue, and mark forecasts as estimated if weather is
	// missing there.
	beyond = 3

	daySeconds = 24 * 60 * 60
)

// stage contains the generated readings.
type stage struct {
	all *series.Dataset // all readings and the weather
	// arrive is the time of the first reading that is not used for training, and end is the end
	// of the last reading. Both are midnights on the buildings' clock, in Unix seconds.
	arrive, end int64
}

// newStage generates buildings with readings up to the end of yesterday.
func newStage(seed uint64, buildings int, today time.Time) (*stage, error) {
	const zone = "America/Chicago" // the generator's zone
	place, err := time.LoadLocation(zone)
	if err != nil {
		return nil, fmt.Errorf("%w; install the time zone database (tzdata)", err)
	}
	y, m, d := today.In(place).Date()
	midnight := func(days int) time.Time { return time.Date(y, m, d+days, 0, 0, 0, 0, place) }
	start, end := midnight(-trainDays-checkDays-testDays), midnight(0)
	g, err := synth.New(synth.Config{
		Seed: seed, Meters: buildings, Start: start, Days: trainDays + checkDays + testDays + beyond, Zone: zone, Faults: synth.ModestFaults(),
	})
	if err != nil {
		return nil, err
	}
	weather := g.Weather()
	site := series.Dataset{
		Name: "demo", Generated: true, Interval: time.Hour, Clock: place, Country: synth.Country,
		Weather: series.Weather{
			Start: start.Unix(), Names: []string{"temperature", "wind", "humidity", "solar"},
			Columns: [][]float32{weather.Temperature, weather.Wind, weather.Humidity, weather.Solar},
		},
	}
	var meters []series.Meter
	for i := range buildings {
		load := make([]float32, g.Len())
		b := g.Building(i, load)
		meters = append(meters, series.Meter{ID: b.ID, Start: start.Unix(), Load: load[:(end.Unix()-start.Unix())/3600]})
	}
	s := &stage{arrive: midnight(-testDays).Unix(), end: end.Unix()}
	s.all, err = series.NewDataset(site, meters)
	return s, err
}

// part returns the readings of agent i of n in [from, to), with all the weather. Buildings are
// assigned to the agents in turn.
func (s *stage) part(i, n int, from, to int64) (*series.Dataset, error) {
	var meters []series.Meter
	for k := i; k < s.all.Len(); k += n {
		m := s.all.Meter(k)
		meters = append(meters, m.Cut(max(from, m.Start), to, s.all.Seconds()))
	}
	return s.all.With(meters)
}

// at returns the load of a meter at a time, or NaN.
func at(m series.Meter, t, seconds int64) float64 {
	i := (t - m.Start) / seconds
	if t < m.Start || i >= int64(len(m.Load)) {
		return math.NaN()
	}
	return float64(m.Load[i])
}
