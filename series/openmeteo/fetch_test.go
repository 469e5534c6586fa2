package openmeteo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// station is a weather service. A test can set its first responses. All others cover the
// requested days, with the hour of the day as the temperature.
type station struct {
	*testing.T
	*Service
	asked  []url.Values
	before []http.HandlerFunc // answer the first requests
}

func newStation(t *testing.T, before ...http.HandlerFunc) *station {
	s := &station{T: t, before: before}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	var err error
	if s.Service, err = New(server.URL); err != nil {
		t.Fatal(err)
	}
	s.pause = time.Millisecond
	return s
}

func (s *station) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	s.asked = append(s.asked, q)
	if len(s.before) > 0 {
		answer := s.before[0]
		s.before = s.before[1:]
		answer(w, r)
		return
	}
	first, last := day(s.T, q.Get("start_date")), day(s.T, q.Get("end_date"))
	if r.URL.Path == "/v1/forecast" {
		first, last = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	} else if r.URL.Path != "/v1/archive" {
		http.NotFound(w, r)
		return
	}
	var times, values []string
	for at := first; at.Before(last.AddDate(0, 0, 1)); at = at.Add(time.Hour) {
		times, values = append(times, at.Format(`"2006-01-02T15:04"`)), append(values, fmt.Sprint(at.Hour()))
	}
	values[len(values)-1] = "null"
	fmt.Fprintf(w, `{"utc_offset_seconds":0,"hourly_units":{"time":"iso8601","temperature_2m":"°C"},"hourly":{"time":[%s],"temperature_2m":[%s]}}`,
		strings.Join(times, ","), strings.Join(values, ","))
}

func day(t *testing.T, text string) time.Time {
	if text == "" {
		return time.Time{}
	}
	d, err := time.Parse(time.DateOnly, text)
	if err != nil {
		t.Error(err)
	}
	return d
}

func status(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, body, code) }
}

var place = Place{52.5, 13.4}

func TestForecast(t *testing.T) {
	s := newStation(t)
	h, err := s.Forecast(t.Context(), place, 1, 7)
	if err != nil || len(h.Times) != 48 || *h.Times[30] != time.Date(2026, 3, 2, 6, 0, 0, 0, time.UTC).Unix() || h.Rows[30][0] != 6 || !math.IsNaN(float64(h.Rows[47][0])) {
		t.Fatal(h, err)
	}
	want := url.Values{
		"latitude": {"52.5"}, "longitude": {"13.4"}, "hourly": {columns}, "wind_speed_unit": {"ms"}, "timezone": {"UTC"}, "past_days": {"1"}, "forecast_days": {"8"},
	}
	if len(s.asked) != 1 || s.asked[0].Encode() != want.Encode() {
		t.Errorf("asked %v; the service may learn nothing else than %v", s.asked, want)
	}
}

// TestArchive checks that years are requested one after the other and returned as one series.
func TestArchive(t *testing.T) {
	s := newStation(t)
	from, to := time.Date(2023, 3, 1, 0, 0, 0, 0, time.UTC), time.Date(2025, 3, 2, 0, 0, 0, 0, time.UTC)
	h, err := s.Archive(t.Context(), place, from, to)
	if err != nil || len(s.asked) != 3 {
		t.Fatal(s.asked, err)
	}
	for i, at := range h.Times {
		if *at != from.Unix()+3600*int64(i) {
			t.Fatalf("hour %d is %s", i, time.Unix(*at, 0).UTC())
		}
	}
	if end := from.Unix() + 3600*int64(len(h.Times)); end != to.AddDate(0, 0, 1).Unix() {
		t.Errorf("it ends at %s", time.Unix(end, 0).UTC())
	}
	if _, err := s.Archive(t.Context(), place, to, from); err == nil {
		t.Error("an archive that ends before it begins")
	}
}

func TestRetries(t *testing.T) {
	for name, c := range map[string]struct {
		before []http.HandlerFunc
		asked  int
		want   string // in the error; empty if there is none
	}{
		"busy":      {[]http.HandlerFunc{status(503, ""), status(429, "")}, 3, ""},
		"broken":    {[]http.HandlerFunc{status(500, ""), status(500, ""), status(500, ""), status(500, "")}, 4, "answered 500"},
		"refused":   {[]http.HandlerFunc{status(400, `{"error":true,"reason":"Latitude must be\u001b[31m in range"}`)}, 1, "answered 400: Latitude must be [31m in range"},
		"not JSON":  {[]http.HandlerFunc{status(200, "<html>")}, 1, "no hourly"},
		"too large": {[]http.HandlerFunc{status(200, strings.Repeat(" ", maxAnswer+1))}, 1, "larger than 4 MiB"},
		"too many":  {[]http.HandlerFunc{status(200, `{"utc_offset_seconds":0,"hourly":{"time":["a"`+strings.Repeat(`,"a"`, maxHours)+`]}}`)}, 1, "too many hours"},
		"redirect": {[]http.HandlerFunc{func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/elsewhere", http.StatusFound)
		}}, 1, "answered 302"},
		"cut": {[]http.HandlerFunc{func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("{")) // a failure to write would fail the test below
		}}, 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStation(t, c.before...)
			_, err := s.Forecast(t.Context(), place, 1, 1)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if len(s.asked) != c.asked {
				t.Errorf("asked %d times, want %d", len(s.asked), c.asked)
			}
		})
	}
}

// TestSlow checks that a request without a response is abandoned, and that the error does not
// contain the coordinates.
func TestSlow(t *testing.T) {
	never := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	s := newStation(t, never, never, never, never)
	s.client.Timeout = 20 * time.Millisecond
	if _, err := s.Forecast(t.Context(), place, 1, 1); err == nil || strings.Contains(err.Error(), "52.5") || len(s.asked) != 4 {
		t.Error(err, len(s.asked))
	}
	s = newStation(t, status(500, ""))
	s.pause = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Forecast(ctx, place, 1, 1); err == nil || len(s.asked) != 1 {
		t.Error(err, len(s.asked))
	}
}

func TestPlaces(t *testing.T) {
	for _, c := range []struct {
		place   Place
		degrees float64
		want    string
	}{
		{Place{52.5234, 13.4115}, 0.1, "52.5,13.4"},
		{Place{-33.8688, 151.2093}, 0.1, "-33.9,151.2"},
		{Place{52.5234, 13.4115}, 0, "52.5234,13.4115"},
		{Place{52.5234, 13.4115}, 0.25, "52.5,13.5"},
		{Place{0.04, -0.04}, 0.1, "0,0"},
	} {
		if got := c.place.Rounded(c.degrees).String(); got != c.want {
			t.Errorf("%v rounded to %g is %s, want %s", c.place, c.degrees, got, c.want)
		}
	}
	for _, p := range []Place{{}, {91, 0}, {0, 181}, {math.NaN(), 1}, {1, math.Inf(1)}} {
		if p.Check() == nil {
			t.Errorf("%v is a place", p)
		}
	}
	for _, address := range []string{"", "api.open-meteo.com", "ftp://x", "https://user:secret@x", "https://x?apikey=1"} {
		if _, err := New(address); err == nil {
			t.Errorf("%q is an address", address)
		}
	}
	if _, err := Parse([]byte(`{"ds":1}`), 10); !errors.Is(err, ErrOther) {
		t.Error(err)
	}
}

// FuzzParse checks that Parse returns an error or rows of equal length, whatever a service
// sends.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"utc_offset_seconds":3600,"hourly_units":{"temperature_2m":"°F"},"hourly":{"time":["2026-03-01T00:00","x"],"temperature_2m":[1,null]}}`))
	f.Add([]byte(`{"hourly_units":{"time":"unixtime","wind_speed_10m":"kn"},"hourly":{"time":[1],"wind_speed_10m":[3]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := Parse(data, 50)
		if err != nil {
			return
		}
		if len(h.Times) != len(h.Rows) || len(h.Times) > 50 || len(h.Names) == 0 {
			t.Fatalf("%+v", h)
		}
		for _, r := range h.Rows {
			if len(r) != len(h.Names) {
				t.Fatalf("%+v", h)
			}
		}
	})
}
