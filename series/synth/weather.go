package synth

import (
	"math"
	"time"
)

// Weather contains the mean weather of every interval. It resembles the weather of an inland
// place at 41 degrees north, regardless of the zone.
type Weather struct {
	Temperature []float32 // dry bulb, in degrees Celsius, multiples of 0.1
	Humidity    []float32 // relative, in per cent, multiples of 1
	Wind        []float32 // in m/s, multiples of 0.1
	Solar       []float32 // on a level plane, in W/m2, multiples of 1
}

// climate contains the weather of every quarter hour.
type climate struct {
	temperature, humidity, wind, solar []float64
	feel                               []float64 // temperature, higher for humid air
	dark                               []float64 // 1 by night, 0 by day
}

// walk is an autocorrelated random process with mean 0 and variance 1. The memory passed to
// newWalk is the correlation time.
type walk struct{ x, keep, push float64 }

func newWalk(s *stream, memory time.Duration) walk {
	keep := 1 - float64(quarter)/float64(memory)
	return walk{s.bell(), keep, math.Sqrt(1 - float64(keep*keep))}
}

func (w *walk) next(s *stream) float64 {
	w.x = float64(w.keep*w.x) + float64(w.push*s.bell())
	return w.x
}

// newClimate computes the weather of n quarter hours. It models seasons and days as sines,
// air masses as slow random walks, and cold fronts with wind and clouds every few days.
func newClimate(seed uint64, start time.Time, n int) climate {
	const latitude = 41.0 / 360 // turns
	c := climate{}
	for _, p := range []*[]float64{&c.temperature, &c.humidity, &c.wind, &c.solar, &c.feel, &c.dark} {
		*p = make([]float64, n)
	}
	s := newStream(seed, forWeather, 0)
	var (
		air      = newWalk(&s, 60*time.Hour)
		moisture = newWalk(&s, 40*time.Hour)
		sky      = newWalk(&s, 9*time.Hour)
		breeze   = newWalk(&s, 7*time.Hour)
		gust     = newWalk(&s, time.Hour)

		coming, cold, storm float64 // a front: kelvin yet to fall, kelvin fallen, wind and clouds
		swing               = 4.0   // amplitude of the daily temperature, in kelvin
	)
	noon := solarNoon(start)
	for q := range n {
		t := start.Add(time.Duration(q) * quarter)
		year := (float64(t.YearDay()) + float64(t.Hour())/24) / 365.25
		hour := float64(t.Unix()-noon)/86400 + 0.5 // turns, 0 at solar midnight
		hour -= math.Floor(hour)
		winter := cosine(year - 0.055) // 1 around January 20, -1 in July

		if s.chance(1 / (5.5 * dayQuarter)) {
			coming = s.between(2, 8) + float64(2.5*winter)
			storm = 1
		}
		fall := coming / 12
		coming -= fall
		cold += fall - cold/130
		storm -= storm / 60

		cloud := clamp(0.45+float64(0.42*sky.next(&s))+float64(0.5*storm)+float64(0.08*winter), 0, 1)
		declination := float64(-23.44 / 360 * cosine(year+0.027))
		height := float64(sine(latitude)*sine(declination)) - float64(cosine(latitude)*cosine(declination)*cosine(hour))
		up := max(height, 0)
		c.solar[q] = float64(up*(780+float64(260*up))) * (1 - float64(0.74*cloud*cloud))
		c.dark[q] = clamp(0.5-float64(8*height), 0, 1)

		swing += (7.2 - float64(5.2*cloud) - float64(1.3*winter) - swing) / 40
		season := 10 - float64(13.2*winter)
		drift := float64((3.6+float64(1.3*winter))*air.next(&s)) + 2.4 - cold
		temp := season + drift + float64(swing*sine(hour-0.385)) // warmest near 15 h

		dew := min(season-5.5-float64(0.5*winter)+float64(0.75*drift)+float64(2.6*moisture.next(&s))+float64(2*storm), temp-0.2)
		c.temperature[q] = temp
		c.humidity[q] = clamp(100*vapour(dew)/vapour(temp), 8, 100)
		c.feel[q] = temp + float64(0.3*hinge(dew-13, 2))
		c.wind[q] = max(0.2, 4.1+float64(0.7*winter)-float64(1.1*cosine(hour-0.08))+
			float64(1.7*breeze.next(&s))+float64(0.5*gust.next(&s))+float64(3*storm))
	}
	return c
}

// solarNoon returns the Unix time of a solar noon, which is assumed to be noon in the zone's
// standard time.
func solarNoon(start time.Time) int64 {
	zone, y := start.Location(), start.Year()
	_, january := time.Date(y, 1, 15, 0, 0, 0, 0, zone).Zone()
	_, july := time.Date(y, 7, 15, 0, 0, 0, 0, zone).Zone()
	return time.Date(y, 1, 15, 12, 0, 0, 0, time.UTC).Unix() - int64(min(january, july))
}

// vapour returns a value proportional to the saturation vapour pressure (Magnus formula).
func vapour(celsius float64) float64 { return exp(17.625 * celsius / (243.04 + celsius)) }

// means returns the mean weather of intervals that each consist of per quarter hours.
func (c *climate) means(per int) Weather {
	mean := func(v []float64, scale float64) []float32 {
		out := make([]float32, len(v)/per)
		for k := range out {
			sum := 0.0
			for _, x := range v[k*per : (k+1)*per] {
				sum += x
			}
			out[k] = round(sum/float64(per), scale)
		}
		return out
	}
	return Weather{mean(c.temperature, 10), mean(c.humidity, 1), mean(c.wind, 10), mean(c.solar, 1)}
}

// round rounds x to the nearest multiple of 1/scale.
func round(x, scale float64) float32 {
	return float32(math.RoundToEven(x*scale)/scale) + 0 // adding 0 turns negative zero into zero
}
