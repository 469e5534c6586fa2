// Package issue makes the forecasts that users see. For every step of the next hours or days,
// they contain quantiles of the load, the source of the forecast, and the reason why it does
// not come from a better source. The package has no clock and does no I/O, so the same readings
// give the same forecasts, whether the readings come from a file or from a client's meter.
//
// A forecast is issued at a cutoff and uses no load after it. The sources form a ladder. The
// first source that can forecast a step is used. A client's [State] learns from the errors
// of
// earlier issues.
package issue

// Source is the origin of a forecast row.
type Source string

// The sources, from best to worst.
const (
	Model   Source = "model"   // the client's model
	Generic Source = "generic" // a model without personal layers
	Median  Source = "median"  // the median at the same clock time in the last 28 days, if it has been better than last week's load
	Week    Source = "week"    // the load at the same clock time 7 or 14 days before, or the load of the extreme day
	Day     Source = "day"     // the load at the same clock time the day before
	Last    Source = "last"    // the newest load
	None    Source = "none"    // there is no forecast
)

// Ladder lists the sources from best to worst.
var Ladder = []Source{Model, Generic, Median, Week, Day, Last, None}

// Reason explains why a row is not from a better source, or which inputs the source lacked.
type Reason string

const (
	NoRelease          Reason = "no-release"          // there is no model
	NoHead             Reason = "no-head"             // the client has no personal layers yet
	Refused            Reason = "refused"             // the client tried the newest model, which would be worse than the model in use
	Gap                Reason = "gap"                 // too many readings are missing
	Flat               Reason = "flat"                // the readings have not changed for a day
	WeatherMissing     Reason = "weather"             // the model needs weather that is not known
	BeyondReach        Reason = "beyond-reach"        // the model does not forecast that far
	StepDiffers        Reason = "step-differs"        // the model is for another interval
	ShortHistory       Reason = "short-history"       // the history of readings is too short
	NoReadings         Reason = "no-readings"         // there is no recent reading
	InputFilled        Reason = "input-filled"        // missing readings were replaced
	WeatherObserved    Reason = "weather-observed"    // the weather is observed, not forecast
	WeatherPersisted   Reason = "weather-persisted"   // the weather of the previous day was used
	WeatherClimatology Reason = "weather-climatology" // the weather is the mean of month and hour
	MostlyWeek         Reason = "mostly-week"         // the model has little weight compared with last week
	ModelFailed        Reason = "model-failed"        // the model's output was not a number
)

// Reasons lists all reasons.
var Reasons = []Reason{
	NoRelease, NoHead, Refused, Gap, Flat, WeatherMissing, BeyondReach, StepDiffers, ShortHistory, NoReadings, InputFilled,
	WeatherObserved, WeatherPersisted, WeatherClimatology, MostlyWeek, ModelFailed,
}

// Quality describes a row.
type Quality string

// The qualities.
const (
	OK        Quality = "OK"        // from the model, with measured inputs
	Estimated Quality = "ESTIMATED" // anything else
	Missing   Quality = "MISSING"   // no value
)

// Row is the forecast of one step.
type Row struct {
	Time   int64 // start of the step, Unix seconds
	Values []float64
	// Mean is the mean of the load, or NaN. All sums use means.
	Mean    float64
	Source  Source
	Quality Quality
	Reason  Reason // may be empty
	// Paths contains joint scenarios, or is nil unless [AddPaths] added them.
	Paths []float64
}

// Forecast is one issue of a client's forecasts.
type Forecast struct {
	Client string
	Cutoff int64 // end of the newest step whose load was known, Unix seconds
	// Levels are the quantiles of each row's values.
	Levels []float64
	Rows   []Row
	// Days are the energies of the local day of the cutoff and of the following days, for days
	// whose end the rows reach.
	Days []DayEnergy
	// Peak is the peak of the first 24 hours.
	Peak Peak
	// Model is the name of the client's model, such as day@7, or is empty. Weight is the model's
	// weight in the blend with a simple forecast, or 0 if no row is from a model.
	Model  string
	Weight float64

	nonnegative bool // the client never had a negative load
}
