package command

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"loadstar/agent/config"
	"loadstar/series/store"
)

// TestWeather runs an agent that requests weather from a service. It checks that the service
// receives only rounded coordinates, that a failure does not stop the agent, and that the agent
// stores the weather.
func TestWeather(t *testing.T) {
	if testing.Short() {
		t.Skip("runs an agent")
	}
	var mu sync.Mutex
	var asked []string
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.URL.String())
		first := len(asked) == 1
		mu.Unlock()
		if first {
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return
		}
		var times, values []string
		for at := time.Now().UTC().Truncate(time.Hour).Add(-24 * time.Hour); len(times) < 72; at = at.Add(time.Hour) {
			times, values = append(times, at.Format(`"2006-01-02T15:04"`)), append(values, fmt.Sprint(at.Hour()))
		}
		fmt.Fprintf(w, `{"utc_offset_seconds":0,"hourly_units":{"temperature_2m":"°C"},"hourly":{"time":[%s],"temperature_2m":[%s]}}`, strings.Join(times, ","), strings.Join(values, ","))
	}))
	defer service.Close()
	path := filepath.Join(t.TempDir(), "agent.yaml")
	text := fmt.Sprintf("site: {zone: Europe/Berlin}\nserver: none\nhttp: {listen: none}\nclients: {a: }\n"+
		"weather: {address: %q, latitude: 52.5234, longitude: 13.4115, every: 15m}\n", service.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Read(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	var log buffer
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Options{Config: path, Out: io.Discard, Log: slog.New(slog.NewTextHandler(&log, nil))})
	}()
	defer stop()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if strings.Contains(log.String(), "weather arrives") {
			break
		}
		if time.Now().After(end) {
			t.Fatal(log.String())
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for _, q := range asked {
		if !strings.Contains(q, "latitude=52.5&longitude=13.4&") || strings.Contains(q, "52.52") {
			t.Errorf("the agent asked %s", q)
		}
	}
	s, err := store.Open(c.File("readings.db"), store.Config{Interval: c.Step(), Clock: c.Location()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	now := time.Now().Truncate(time.Hour).Unix()
	w, _, err := s.Weather(now-20*3600, now+20*3600, now+3600)
	if err != nil || len(w.Names) != 1 || w.Names[0] != "temperature" || len(asked) != 2 {
		t.Fatal(w, err)
	}
	for i, v := range w.Columns[0] {
		if at := time.Unix(w.Start+3600*int64(i), 0).UTC(); float32(at.Hour()) != v {
			t.Errorf("%s: %g", at, v)
		}
	}
	none := httptest.NewServer(http.NotFoundHandler())
	defer none.Close()
	for address, want := range map[string]string{service.URL: "weather at 52.5,13.4 every 15m: temperature\n", none.URL: ""} {
		if err := os.WriteFile(path, []byte(strings.Replace(text, service.URL, address, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		var said buffer
		err := Check(t.Context(), Options{Config: path, Out: &said, Log: slog.New(slog.DiscardHandler)})
		if (err == nil) != (want != "") || !strings.Contains(said.String(), want) {
			t.Errorf("check of %s: %v\n%s", address, err, said.String())
		}
	}
}
