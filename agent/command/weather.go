package command

import (
	"context"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"loadstar/agent/config"
	"loadstar/agent/readings"
	"loadstar/internal/backoff"
	"loadstar/series/openmeteo"
)

// missedDays is the number of past days that the agent requests after a start. Later requests
// ask for one day.
const missedDays = 7

// weatherService returns the service of a configuration, and the coordinates that it sends to the service.
func weatherService(c *config.Config) (*openmeteo.Service, openmeteo.Place, error) {
	w := c.Weather
	at := openmeteo.Place{Latitude: w.Latitude, Longitude: w.Longitude}.Rounded(w.Precision)
	service, err := openmeteo.New(w.Address)
	return service, at, err
}

// checkWeather requests one day of weather from the service.
func checkWeather(ctx context.Context, c *config.Config, say func(string, ...any)) error {
	service, at, err := weatherService(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	hours, err := service.Forecast(ctx, at, 0, 1)
	if err == nil {
		say("weather at %s every %s: %s", at, c.Weather.Every, strings.Join(hours.Names, ", "))
	}
	return err
}

// fetchWeather requests weather at intervals until ctx ends. If the service fails, forecasts go
// on and report that weather is missing.
func (x *Agent) fetchWeather(ctx context.Context, intake *readings.Intake) error {
	w := x.c.Weather
	service, at, err := weatherService(x.c)
	if err != nil {
		return err
	}
	every := time.Duration(w.Every)
	ahead := int(math.Ceil(time.Duration(x.c.Forecast.H).Hours()/24)) + 1
	x.o.Log.Info("asking for weather", "service", w.Address, "place", at.String(), "every", w.Every.String())
	// Spread the requests of agents that start together, for example after a power cut.
	wait := rand.N(every/120 + 1)
	retry := backoff.Backoff{Base: time.Minute, Cap: every}
	failed, arrives, past := false, false, missedDays
	for backoff.Sleep(ctx, wait) == nil {
		hours, err := service.Forecast(ctx, at, past, ahead)
		if err == nil {
			_, err = intake.TakeHours(hours)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if !failed {
				x.o.Log.Warn("no weather; forecasts use what is stored, and the agent tries again", "error", err)
			}
			failed, arrives, wait = true, false, retry.Next()
			continue
		case !arrives:
			x.o.Log.Info("weather arrives", "hours", len(hours.Times))
		}
		retry.Reset()
		failed, arrives, past = false, true, 1
		wait = every - rand.N(every/10)
	}
	return nil
}
