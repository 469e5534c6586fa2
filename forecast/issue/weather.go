package issue

// Advice explains a finding in plain words, and what to do.
type Advice struct{ Message, Advice string }

const postWeather = "Give a weather forecast for the place of the meter, for example with weather.address in agent.yaml: docs/how-to/weather.md says how."

// weatherCosts describes the loss of accuracy if a model's weather is unknown. The figures
// come from trained day-ahead models with the weather of the day before (see
// docs/forecast.md).
var weatherCosts = map[Reason]Advice{
	WeatherPersisted: {
		"The model was trained with weather, but there is no weather forecast. The weather of the day before stands for it. Errors of electrically heated homes are about 32 % higher by this, in one of ten homes 66 %; in other homes about 2 %, in buildings hardly at all.",
		postWeather,
	},
	WeatherClimatology: {
		"The model was trained with weather, but there is no recent weather. The usual weather stands for it. Errors of electrically heated homes can be more than 32 % higher by this; in buildings hardly at all.",
		postWeather,
	},
	WeatherMissing: {
		"The model was trained with weather, and there is none, so simpler forecasts replace it.",
		postWeather,
	},
}

// WeatherCost returns the cost of missing weather for a row with this reason. It returns
// false for all other reasons.
func (r Reason) WeatherCost() (Advice, bool) {
	a, ok := weatherCosts[r]
	return a, ok
}
