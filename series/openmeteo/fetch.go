package openmeteo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"loadstar/internal/backoff"
)

// The public service, which is free for non-commercial use.
const (
	PublicForecast = "https://api.open-meteo.com"
	PublicArchive  = "https://archive-api.open-meteo.com"
)

// Limits on the size of a service's response and on the duration of a request.
const (
	maxAnswer  = 4 << 20
	maxHours   = 1 << 16
	answerFor  = 30 * time.Second
	tries      = 4
	firstPause = time.Second
	lastPause  = 20 * time.Second
	// MaxAhead is the maximum number of forecast days, and MaxPast is the maximum number of days
	// before today.
	MaxAhead = 16
	MaxPast  = 92
)

const columns = "temperature_2m,wind_speed_10m,relative_humidity_2m,shortwave_radiation"

// Place is the place whose weather is requested. The service receives only these two numbers.
type Place struct{ Latitude, Longitude float64 }

// Check returns an error if the coordinates are impossible.
func (p Place) Check() error {
	if !(math.Abs(p.Latitude) <= 90 && math.Abs(p.Longitude) <= 180) || p == (Place{}) {
		return fmt.Errorf("%g,%g is not a place: want a latitude from -90 to 90 and a longitude from -180 to 180, in degrees, such as 52.5,13.4", p.Latitude, p.Longitude)
	}
	return nil
}

// Rounded returns the place rounded to multiples of the given number of degrees, or the exact
// place if that number is 0. A tenth of a degree is about 11 km from south to north.
func (p Place) Rounded(degrees float64) Place {
	if degrees <= 0 {
		return p
	}
	round := func(x float64) float64 {
		// Formatting the number as a string removes the digits that binary fractions add.
		v, _ := strconv.ParseFloat(strconv.FormatFloat(math.Round(x/degrees)*degrees, 'f', 6, 64), 64)
		return v + 0 // turns -0 into 0
	}
	return Place{round(p.Latitude), round(p.Longitude)}
}

// String returns the place in the format in which it is sent.
func (p Place) String() string { return number(p.Latitude) + "," + number(p.Longitude) }

func number(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

// Service is a weather service.
type Service struct {
	address *url.URL
	client  *http.Client
	pause   time.Duration // before the second attempt; later pauses are longer
}

// New returns the service at an address such as https://api.open-meteo.com.
func New(address string) (*Service, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "" {
		return nil, fmt.Errorf("%q is not the address of a weather service: want https://HOST, such as %s", address, PublicForecast)
	}
	return &Service{
		address: u,
		// A redirect would tell another host where the meters are.
		client: &http.Client{Timeout: answerFor, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		pause:  firstPause,
	}, nil
}

// Forecast returns the weather of today and of the given numbers of days before and after it.
func (s *Service) Forecast(ctx context.Context, at Place, past, ahead int) (*Hours, error) {
	q := url.Values{"past_days": {strconv.Itoa(min(max(past, 0), MaxPast))}, "forecast_days": {strconv.Itoa(min(max(ahead, 0)+1, MaxAhead))}}
	return s.get(ctx, "forecast", at, q)
}

// Archive returns the weather of past days, including the first and the last day. It requests
// one year at a time.
func (s *Service) Archive(ctx context.Context, at Place, from, to time.Time) (*Hours, error) {
	var all *Hours
	for !from.After(to) {
		end := from.AddDate(1, 0, -1)
		if end.After(to) {
			end = to
		}
		h, err := s.get(ctx, "archive", at, url.Values{"start_date": {from.Format(time.DateOnly)}, "end_date": {end.Format(time.DateOnly)}})
		switch {
		case err != nil:
			return nil, err
		case all == nil:
			all = h
		case !slices.Equal(all.Names, h.Names):
			return nil, fmt.Errorf("the service sent %s for some years and %s for others", strings.Join(all.Names, ", "), strings.Join(h.Names, ", "))
		default:
			all.Times, all.Rows = append(all.Times, h.Times...), append(all.Rows, h.Rows...)
		}
		from = end.AddDate(0, 0, 1)
	}
	if all == nil {
		return nil, errors.New("the first day is after the last one")
	}
	return all, nil
}

// get sends the request, up to a few times, until there is a response.
func (s *Service) get(ctx context.Context, what string, at Place, q url.Values) (*Hours, error) {
	if err := at.Check(); err != nil {
		return nil, err
	}
	q.Set("latitude", number(at.Latitude))
	q.Set("longitude", number(at.Longitude))
	q.Set("hourly", columns)
	q.Set("wind_speed_unit", "ms")
	q.Set("timezone", "UTC")
	u := s.address.JoinPath("v1", what)
	u.RawQuery = q.Encode()
	pause := backoff.Backoff{Base: s.pause, Cap: lastPause}
	for n := 1; ; n++ {
		data, again, err := s.once(ctx, u.String())
		if err == nil {
			var h *Hours
			if h, err = Parse(data, maxHours); err == nil {
				return h, nil
			}
		}
		if err = fmt.Errorf("request weather from %s: %w", s.address.Host, err); !again || n == tries || pause.Wait(ctx) != nil {
			return nil, err
		}
	}
}

// once sends the request once. again reports whether a later attempt might succeed.
func (s *Service) once(ctx context.Context, address string) (data []byte, again bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, false, err
	}
	r.Header.Set("User-Agent", "loadstar")
	a, err := s.client.Do(r)
	if err != nil {
		// The error from package net/http contains the address with the coordinates, which logs
		// must not contain.
		if u := (*url.Error)(nil); errors.As(err, &u) {
			err = u.Err
		}
		return nil, true, err
	}
	defer a.Body.Close()
	data, err = io.ReadAll(io.LimitReader(a.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, true, err
	case len(data) > maxAnswer:
		return nil, false, errors.New("its answer is larger than 4 MiB")
	case a.StatusCode == http.StatusOK:
		return data, false, nil
	}
	return nil, a.StatusCode == http.StatusTooManyRequests || a.StatusCode >= 500, fmt.Errorf("it answered %d%s", a.StatusCode, reason(data))
}

// reason returns the service's error message, shortened and without control characters.
func reason(data []byte) string {
	var problem struct{ Reason string }
	if json.Unmarshal(data, &problem) != nil || problem.Reason == "" {
		return ""
	}
	text := strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return ' '
		}
		return r
	}, problem.Reason)
	return fmt.Sprintf(": %.200s", text)
}
