package issue

// Advice is a finding in plain words, and what to do.
type Advice struct{ Message, Advice string }

const postWeather = "Give a weather forecast for the place of the meter: docs/how-to/weather.md says how."

// weatherCosts are what rows lose whose model was trained with weather that is not known. The
// figures are those of trained day-ahead models with the weather of the day before; see
// docs/forecast.md.
var weatherCosts = map[Reason]Advice{
	WeatherPersisted: {
		"The model was trained with weather, but there is no weather forecast. The weather of the day before stands for it. In electrically heated homes this costs up to 32 % more error, in other homes about 2 %, in buildings hardly anything.",
		postWeather,
	},
	WeatherClimatology: {
		"The model was trained with weather, but there is no recent weather. The usual weather stands for it. In electrically heated homes this can cost more than 32 % more error, in buildings hardly anything.",
		postWeather,
	},
	WeatherMissing: {
		"The model was trained with weather, and there is none, so simpler forecasts replace it.",
		postWeather,
	},
}

// WeatherCost says what missing weather costs a row with this reason. It returns false if the
// reason is another one.
func (r Reason) WeatherCost() (Advice, bool) {
	a, ok := weatherCosts[r]
	return a, ok
}
