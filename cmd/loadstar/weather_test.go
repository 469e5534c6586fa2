package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestWeatherFetch fetches weather from a service, and checks that data init recognises the file
// as the weather of a dataset.
func TestWeatherFetch(t *testing.T) {
	var asked []string
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path+" "+r.URL.Query().Get("latitude")+" "+r.URL.Query().Get("longitude"))
		if r.URL.Query().Get("start_date") == "2020-01-01" {
			http.Error(w, `{"error":true,"reason":"no such day"}`, http.StatusBadRequest)
			return
		}
		var times, values []string
		for at := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC); len(times) < 40*24; at = at.Add(time.Hour) {
			times, values = append(times, at.Format(`"2006-01-02T15:04"`)), append(values, fmt.Sprint(36*at.Hour()))
		}
		values[3] = "null"
		fmt.Fprintf(w, `{"utc_offset_seconds":0,"hourly_units":{"temperature_2m":"°C","wind_speed_10m":"km/h"},"hourly":{"time":[%s],"temperature_2m":[%[2]s],"wind_speed_10m":[%[2]s]}}`,
			strings.Join(times, ","), strings.Join(values, ","))
	}))
	defer service.Close()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	run := func(args ...string) (string, error) {
		root := newRoot()
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs(args)
		err := root.ExecuteContext(t.Context())
		return out.String(), err
	}
	out, err := run("data", "weather", "--at", "52.5234,13.4115", "--address", service.URL, "--from", "2026-03-01", "--to", "2026-04-09", "-o", at("weather.csv"))
	if err != nil || !strings.Contains(out, "960 hours of temperature, wind at 52.5,13.4") {
		t.Fatal(out, err)
	}
	if text, err := os.ReadFile(at("weather.csv")); err != nil || !strings.HasPrefix(string(text), "ds,temperature,wind\n2026-03-01T00:00:00Z,0,0\n2026-03-01T01:00:00Z,36,10\n2026-03-01T02:00:00Z,72,20\n2026-03-01T03:00:00Z,,\n") {
		t.Errorf("%.200s %v", text, err)
	}
	rows := "unique_id,ds,y\n"
	for at := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC); at.Before(time.Date(2026, 4, 10, 0, 0, 0, 0, time.UTC)); at = at.Add(time.Hour) {
		rows += fmt.Sprintf("a,%s,%d\n", at.Format(time.RFC3339), 1+at.Hour())
	}
	if err := os.WriteFile(at("load.csv"), []byte(rows), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err = run("data", "init", dir, "--zone", "Europe/Berlin", "--name", "x", "--yes"); err != nil {
		t.Fatal(out, err)
	}
	if text, err := os.ReadFile(at("dataset.yaml")); err != nil || !strings.Contains(string(text), "weather.csv") {
		t.Fatalf("%s %v", text, err)
	}
	if out, err = run("data", "check", dir); err != nil || !strings.Contains(out, "temperature") {
		t.Error(out, err)
	}
	// A failure does not change an existing file.
	if out, err = run("data", "weather", "--at", "52.5234,13.4115", "--address", service.URL, "--from", "2020-01-01", "--to", "2020-01-02", "-o", at("weather.csv")); err == nil || !strings.Contains(err.Error(), "no such day") {
		t.Error(out, err)
	}
	if text, err := os.ReadFile(at("weather.csv")); err != nil || !strings.Contains(string(text), "2026-03-01") {
		t.Error(err)
	}
	if _, err = run("data", "weather", "--at", "-52.5234,13.4115", "--precision", "0", "--address", service.URL, "-o", "-"); err != nil || asked[len(asked)-1] != "/v1/forecast -52.5234 13.4115" {
		t.Error(asked, err)
	}
	for _, wrong := range [][]string{
		{},
		{"--at", "Berlin"},
		{"--at", "91,0"},
		{"--at", "1,1", "--to", "2026-01-01"},
		{"--at", "1,1", "--from", "yesterday"},
		{"--at", "1,1", "--days", "17"},
		{"--at", "1,1", "--from", "2026-01-02", "--to", "2026-01-01"},
		{"--at", "1,1", "--address", "ftp://x"},
	} {
		if _, err := run(append([]string{"weather", "fetch", "-o", at("none.csv")}, wrong...)...); err == nil {
			t.Errorf("%v is accepted", wrong)
		}
	}
	if _, err := os.Stat(at("none.csv")); err == nil {
		t.Error("a refused command has written a file")
	}
}
