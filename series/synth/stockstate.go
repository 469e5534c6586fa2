package synth

import "slices"

// state contains the properties in which the stocks of the three states of bose2023 differ. The
// numbers were chosen so that the correlations and the errors of persistence are close to the
// paper's, which TestStockCorrelations and TestStockErrors check.
type state struct {
	name, code, zone string
	seed, sampleSeed uint64
	place

	large     float64 // factor of the floor area of hospitals, secondary schools, large offices and large hotels
	small     float64 // factor of the floor area of small offices and restaurants
	cooling   float64 // factor of the need for cooling
	lag       float64 // hours by which the need for cooling follows the temperature
	electric  float64 // factor of the share of buildings with electric heating
	noHeat    float64 // share of buildings without heating equipment of their own
	shallow   float64 // standard deviation of the logarithm of wall area for a given floor area
	firstOnes [3]plot // buildings that come first by name
}

// place describes the climate of a state.
type place struct {
	latitude               float64 // turns
	mean, season, swing    float64 // °C, half the difference of January and July, and of night and day
	air                    float64 // standard deviation of air masses in kelvin
	fronts                 float64 // cold fronts in a day
	cloud, cloudWinter     float64 // mean share of clouds, and how much more there is in winter
	dew                    float64 // kelvin of the mean temperature above the dew point
	wind, windDay          float64 // m/s, and the part of it that follows the time of day
	from, fromDay, fromAny float64 // degrees: wind direction, its daily change, and its deviation
}

// plot selects a building's type, and its size relative to others of the type.
type plot struct {
	kind  string
	order float64 // in deviations from the median of the logarithm of the floor area
}

var states = [...]state{
	{
		name: "bose2023-ca", code: "ca", zone: "America/Los_Angeles", seed: 1, sampleSeed: 4485,
		place: place{
			latitude: 36.0 / 360, mean: 17.5, season: 7, swing: 4.5, air: 2.5, fronts: .08, cloud: .3, cloudWinter: .12,
			dew: 9, wind: 3, windDay: .8, from: 200, fromDay: 0, fromAny: 80,
		},
		large: 2.9, small: .4, cooling: .75, lag: 8, electric: .8, noHeat: .5, shallow: .6,
		firstOnes: [3]plot{{"small-office", -1}, {"small-office", 0}, {"small-office", 1}},
	},
	{
		name: "bose2023-il", code: "il", zone: "America/Chicago", seed: 2, sampleSeed: 19153,
		place: place{
			latitude: 41.5 / 360, mean: 10.5, season: 14, swing: 5, air: 3.8, fronts: .18, cloud: .42, cloudWinter: .1,
			dew: 5, wind: 4.2, windDay: .7, from: 220, fromDay: 20, fromAny: 80,
		},
		large: 2.75, small: .8, cooling: .5, lag: 3.5, electric: 1.4, noHeat: .1, shallow: .2,
		firstOnes: [3]plot{{"quick-service-restaurant", 0}, {"quick-service-restaurant", 1}, {"full-service-restaurant", -1}},
	},
	{
		name: "bose2023-ny", code: "ny", zone: "America/New_York", seed: 3, sampleSeed: 5715,
		place: place{
			latitude: 41.5 / 360, mean: 11, season: 12.5, swing: 4.8, air: 3.6, fronts: .18, cloud: .45, cloudWinter: .08,
			dew: 5, wind: 4, windDay: .7, from: 240, fromDay: 20, fromAny: 80,
		},
		large: 3.2, small: 1, cooling: .4, lag: 3.5, electric: 2.6, noHeat: .1, shallow: .2,
		firstOnes: [3]plot{{"retail-strip-mall", 0}, {"outpatient", -1}, {"retail-standalone", 1}},
	},
}

// plots returns three buildings of each type: a small, a medium and a large one. The first
// three buildings come from firstOnes. They are followed by one building of each type that is
// still missing, so that the first part of the stock is as diverse as the whole. The rest of
// the buildings are in random order.
func (st *state) plots() []plot {
	all := slices.Clone(st.firstOnes[:])
	for i := range kinds {
		for _, order := range []float64{-1, 0, 1} {
			if p := (plot{kinds[i].name, order}); !slices.Contains(st.firstOnes[:], p) {
				all = append(all, p)
			}
		}
	}
	s := newStream(st.seed, forTypes, 0)
	rest := all[len(st.firstOnes):]
	for j := len(rest) - 1; j > 0; j-- {
		k := s.below(j + 1)
		rest[j], rest[k] = rest[k], rest[j]
	}
	first, later := all[:len(st.firstOnes):len(st.firstOnes)], []plot(nil)
	for _, p := range rest {
		if slices.ContainsFunc(first, func(q plot) bool { return q.kind == p.kind }) {
			later = append(later, p)
		} else {
			first = append(first, p)
		}
	}
	return append(first, later...)
}

// samplePlots returns 20 buildings of random types and sizes.
func (st *state) samplePlots() []plot {
	s := newStream(st.sampleSeed, forTypes, 1)
	out := make([]plot, 20)
	for i := range out {
		out[i] = plot{kinds[s.below(len(kinds))].name, s.bell()}
	}
	return out
}
