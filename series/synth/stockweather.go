package synth

import (
	"math"
	"time"
)

// stockWeather is the weather of a stock in every quarter hour.
type stockWeather struct {
	columns           [][]float32 // in the order of Stock.Weather
	feel, solar, dark []float64
}

// hourly contains the weather at the start of each hour. EnergyPlus reads hourly weather and
// interpolates linearly, and newStockWeather does the same.
type hourly struct{ drift, dew, cloud, wind, direction []float64 }

// newStockWeather computes the weather of n quarter hours. It models seasons and days as sines
// and air masses as slow random walks. Cold fronts bring wind and clouds.
func newStockWeather(st *state, start time.Time, n int) stockWeather {
	p := &st.place
	h := p.hours(st.seed, n/4+2)
	w := stockWeather{feel: make([]float64, n), solar: make([]float64, n), dark: make([]float64, n)}
	for range 7 {
		w.columns = append(w.columns, make([]float32, n))
	}
	noon := solarNoon(start)
	for q := range n {
		t := start.Add(time.Duration(q) * quarter)
		year := (float64(t.YearDay()) + float64(t.Hour())/24) / 365.25
		hour := float64(t.Unix()-noon)/86400 + 0.5 // turns, 0 at solar midnight
		hour -= math.Floor(hour)
		winter := cosine(year - 0.055)
		between := func(v []float64) float64 {
			i, part := q/4, float64(q%4)/4
			return v[i] + float64(part*(v[i+1]-v[i]))
		}

		cloud := clamp(between(h.cloud)+float64(p.cloudWinter*winter), 0, 1)
		declination := float64(-23.44 / 360 * cosine(year+0.027))
		height := float64(sine(p.latitude)*sine(declination)) - float64(cosine(p.latitude)*cosine(declination)*cosine(hour))
		up := max(height, 0)
		global := float64(float64(up*(780+float64(260*up))) * (1 - float64(0.74*cloud*cloud)))
		diffuse := float64(global * clamp(.14+float64(.95*cloud), 0, 1))
		direct := 0.0
		if up > .03 {
			direct = min((global-diffuse)/up, 1000)
		}
		w.solar[q] = global
		if height < .05 {
			w.dark[q] = 1 // lamps are either on or off
		}

		drift := between(h.drift)
		season := p.mean - float64(p.season*winter)
		temp := season + drift + float64(p.swing*(1.25-float64(.7*cloud))*sine(hour-0.385)) // warmest near 15 h
		dew := min(season-p.dew+float64(.7*drift)+between(h.dew), temp-.2)
		humidity := clamp(100*vapour(dew)/vapour(temp), 8, 100)
		wind := max(.1, p.wind-float64(p.windDay*cosine(hour-.1))+between(h.wind))
		direction := p.from - float64(p.fromDay*cosine(hour-.1)) + between(h.direction)
		direction -= float64(360 * math.Floor(direction/360))
		w.feel[q] = temp + float64(0.3*hinge(dew-13, 2))
		for i, v := range []float64{temp, wind, humidity, global, direct, diffuse, direction} {
			w.columns[i][q] = round(v, 10)
		}
	}
	return w
}

// hours draws the random part of n hours of weather.
func (p *place) hours(seed uint64, n int) hourly {
	s := newStream(seed, forWeather, 1)
	step := func(memory float64) walk {
		keep := 1 - 1/memory
		return walk{s.bell(), keep, math.Sqrt(1 - float64(keep*keep))}
	}
	air, moisture, sky, breeze, veer := step(60), step(40), step(9), step(7), step(20)
	var h hourly
	var coming, cold, storm float64
	for range n {
		if s.chance(p.fronts / 24) {
			coming = s.between(2, 9)
			storm = 1
		}
		fall := float64(coming / 4)
		coming -= fall
		cold += fall - cold/33
		storm -= storm / 15
		h.drift = append(h.drift, float64(p.air*air.next(&s))+float64(p.fronts*180/8)-cold)
		h.dew = append(h.dew, float64(2.4*moisture.next(&s))+float64(2*storm))
		h.cloud = append(h.cloud, clamp(p.cloud+float64(.4*sky.next(&s))+float64(.5*storm), 0, 1.2))
		h.wind = append(h.wind, float64(1.4*breeze.next(&s))+float64(2.5*storm))
		h.direction = append(h.direction, float64(p.fromAny*veer.next(&s))+float64(60*storm))
	}
	return h
}
