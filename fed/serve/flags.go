package serve

import (
	"fmt"
	"math"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/forecast"
	"loadstar/series"
	"loadstar/series/feature"
)

const (
	// flagOrigins is the number of origins at which flags are tried. They are 25 hours apart,
	// so they fall on different hours and weekdays.
	flagOrigins = 14
	// flagRange and flagChange are limits on a forecast with a flag, in standard deviations of
	// the client's scaling. flagRange is the maximum distance of the forecast from the range of
	// the readings and the forecast without the flag. flagChange is the maximum difference from
	// the forecast without the flag. Both were chosen after measuring honest models (decision
	// 48).
	flagRange, flagChange = 1.5, 3.5
)

// FlagTrial is the worst forecast of a model with a calendar flag set: the forecast farthest
// outside the range that a client's readings allow or, if all forecasts are inside, the one
// nearest to the edge of the range.
type FlagTrial struct {
	// Flag is the name of the input, or empty if no flag was tried.
	Flag string
	// Forecast is in kW. Least and Most bound the range that the readings and the forecast
	// without the flag allow. Deviation is the standard deviation by which the client's loads
	// are scaled.
	Forecast, Least, Most, Deviation float64
}

// Outside reports whether the forecast is outside the permitted range.
func (f FlagTrial) Outside() bool { return f.Flag != "" && f.Beyond() > 0 }

// Beyond returns how far the forecast is outside the permitted range, in kW. The result is
// negative if the forecast is within the range.
func (f FlagTrial) Beyond() float64 { return max(f.Least-f.Forecast, f.Forecast-f.Most) }

func (f FlagTrial) String() string {
	return fmt.Sprintf("with the input %s set, it forecasts %.4g kW; the readings allow %.4g to %.4g kW", f.Flag, f.Forecast, f.Least, f.Most)
}

// TryFlags forecasts from a meter's last days before a cutoff with each calendar flag set, and
// returns the worst of these forecasts. On the days on which a release is compared, a flag is
// usually 0, so the comparison does not show how the model responds to it. Window models have
// no flags.
func (m *Model) TryFlags(d *series.Dataset, meter int, c Client, cutoff int64) (worst FlagTrial, err error) {
	if !recipe.Rows(m.Plan) {
		return worst, nil
	}
	own, err := one(d, meter, cutoff)
	if err != nil {
		return worst, err
	}
	q, err := m.split(own, fed.Split{Train: 1})
	if err != nil {
		return worst, err
	}
	readings := own.Meter(0)
	least, most := rangeOf(readings.Load)
	deviation := c.Scaling.Features.Deviation
	flags := feature.Flags(q.InputNames())
	data := q.Frozen(readings, c.Scaling)
	predictor := m.predictors.Get().(*forecast.Predictor)
	defer m.predictors.Put(predictor)
	out := make([]float64, data.PerOrigin()*max(len(m.levels), 1))
	without := make([]float64, len(out))
	for k := range flagOrigins {
		last := len(readings.Load) - 1 - k*own.StepsPerDay()*25/24
		if last < 0 || data.Ready(last) == series.Unready {
			continue
		}
		if err := predictor.Predict(without, c.Weights, data, last); err != nil {
			return worst, err
		}
		for _, flag := range flags {
			if err := predictor.Predict(out, c.Weights, flagged{data, flag}, last); err != nil {
				return worst, err
			}
			for i, v := range out {
				x := FlagTrial{
					Flag: flag.Name, Forecast: v, Deviation: deviation,
					// If the forecast without the flag is also outside the range of the
					// readings, the flag is not the cause.
					Least: max(min(least, without[i])-flagRange*deviation, without[i]-flagChange*deviation),
					Most:  min(max(most, without[i])+flagRange*deviation, without[i]+flagChange*deviation),
				}
				if worst.Flag == "" || x.Beyond() > worst.Beyond() {
					worst = x
				}
			}
		}
	}
	return worst, nil
}

// rangeOf returns the smallest and the largest load.
func rangeOf(load []float32) (least, most float64) {
	least, most = math.Inf(1), math.Inf(-1)
	for _, v := range load {
		if !series.Missing(v) {
			least, most = min(least, float64(v)), max(most, float64(v))
		}
	}
	return least, most
}

// flagged contains the examples of a client with a flag set.
type flagged struct {
	series.Examples
	flag feature.Flag
}

func (f flagged) Gather(x, y []float32, at []series.Example) {
	f.Examples.Gather(x, y, at)
	for e := range at {
		x[e*f.Inputs()+f.flag.Input] = 1
	}
}

func (f flagged) GatherColumns(x []float32, stride int, y []float32, at []series.Example) {
	f.Examples.GatherColumns(x, stride, y, at)
	for e := range at {
		x[f.flag.Input*stride+e] = 1
	}
}
