package issue

// Advice explains a finding, and what to do about it, in plain words.
type Advice struct{ Message, Advice string }

const postWeather = "Give a weather forecast for the place of the meter, for example with weather.address in agent.yaml: docs/how-to/weather.md explains how."

// weatherCosts describes the loss of accuracy if the weather that a model needs is unknown. The
// figures were measured with trained day-ahead models that were given the weather of the day
// before (see docs/forecast.md).
var weatherCosts = map[Reason]Advice{
	WeatherPersisted: {
		"The model was trained with weather, but there is no weather forecast. The weather of the day before is used instead. Errors are then about 32 % higher in electrically heated homes (66 % in one of ten), about 2 % higher in other homes, and hardly higher in buildings.",
		postWeather,
	},
	WeatherClimatology: {
		"The model was trained with weather, but there is no recent weather. The usual weather is used instead. Errors can then be more than 32 % higher in electrically heated homes, and are hardly higher in buildings.",
		postWeather,
	},
	WeatherMissing: {
		"The model was trained with weather, and there is none, so simpler forecasts replace it.",
		postWeather,
	},
}

// WeatherCost returns the cost of missing weather for a row with this reason, or false if the
// reason is not about missing weather.
func (r Reason) WeatherCost() (Advice, bool) {
	a, ok := weatherCosts[r]
	return a, ok
}
