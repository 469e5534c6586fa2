package readings

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"loadstar/series/store"
)

func post(t testing.TB, i *Intake, path, kind, body string) (int, Answer, string) {
	t.Helper()
	r := httptest.NewRequest("POST", path, strings.NewReader(body))
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	w := httptest.NewRecorder()
	i.Handler().ServeHTTP(w, r)
	var answer Answer
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatalf("%s: %v", w.Body, err)
	}
	if w.Code != http.StatusOK && w.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("an error is %s", w.Header().Get("Content-Type"))
	}
	return w.Code, answer, w.Body.String()
}

func TestPostReadings(t *testing.T) {
	for _, form := range []struct{ kind, body string }{
		{"text/csv", "\ufeffunique_id,ds,y,quality\r\na,2026-03-10T11:00:00Z,1.5,\r\na,2026-03-10 12:15:00+01:00,2.5,estimated\r\n\"b\",1773141300,,\r\na,2026-03-10T12:45,3,OK\r\n"},
		{"application/x-ndjson", `{"unique_id":"a","ds":"2026-03-10T11:00:00Z","y":1.5}
{"unique_id":"a","ds":"2026-03-10T11:15:00Z","y":2.5,"quality":"ESTIMATED"}

{"unique_id":"b","ds":1773141300,"y":null}
{"unique_id":"a","ds":"2026-03-10T12:45","y":3}`},
		{"", `[{"unique_id":"a","ds":"2026-03-10T11:00:00Z","y":1.5}, {"unique_id":"a","ds":"2026-03-10T11:15:00Z","y":2.5,"quality":"ESTIMATED"},
{"unique_id":"b","ds":1773141300,"y":null},{"unique_id":"a","ds":"2026-03-10T12:45","y":3}]`},
	} {
		i, s, _ := intake(t, nil)
		code, answer, body := post(t, i, "/v1/readings", form.kind, form.body)
		if code != 200 || answer.Accepted != 3 || answer.Unchanged != 1 || !strings.Contains(body, `"refused":[]`) {
			t.Errorf("%s: %d %s", form.kind, code, body)
		}
		if got := load(t, s, "a", start.Add(-time.Hour), 4); got[0] != 1.5 || got[1] != 2.5 || got[2] == got[2] || got[3] != 3 {
			t.Errorf("%s: %v", form.kind, got)
		}
		code, answer, body = post(t, i, "/v1/readings", "text/csv", "unique_id,ds,y\na,2026-03-10T11:00:00Z,7\na,2026-03-10T11:00:00Z,8\na,2026-03-10T11:01:00Z,8\n")
		if code != 200 || answer.Corrected != 2 || len(answer.Refused) != 1 || answer.Refused[0] != (RefusedRow{3, "off-grid"}) {
			t.Errorf("correction: %d %s", code, body)
		}
		if got := load(t, s, "a", start.Add(-time.Hour), 1); got[0] != 8 {
			t.Errorf("the later row of a stream counts: %v", got)
		}
	}
}

func TestPostRefused(t *testing.T) {
	i, s, _ := intake(t, nil)
	head := "unique_id,ds,y,quality,revision\n"
	good := "a,2026-03-10T11:00:00Z,1,,\n"
	for _, c := range []struct{ row, want string }{
		{"c,2026-03-10T11:00:00Z,1,,", "unknown-client"},
		{"a,2026-03-10T11:00:00Z,-1,,", "negative"},
		{"a,10.03.2026 11:00,1,,", "time"},
		{"a,2026-03-10T11:00:00Z,\"1,5\",,", "value"},
		{"a,2026-03-10T11:00:00Z,inf,,", "value"},
		{"a,2026-03-10T11:00:00Z,1e30,,", "value"},
		{"a,2026-03-10T11:00:00Z,1,good,", "quality"},
		{"a,2026-03-10T11:00:00Z,1,,-1", "revision"},
		{"a,2026-03-10T11:00:00Z,1,,64", "revision"},
		{"a,2026-03-10T11:00:00.5Z,1,,", "off-grid"},
		{"a,2026-03-10T13:00:00Z,1,,", "future"},
		{"a,2025-03-10T13:00:00Z,1,,", "too-late"},
		{"a,0,1,,", "before-2015"},
		{"a,2025-10-26T02:30,1,,", "ambiguous-time"},
		{"a,2025-03-30T02:30,1,,", "nonexistent-time"},
	} {
		code, answer, body := post(t, i, "/v1/readings", "text/csv", head+good+c.row+"\n")
		if code != 200 || len(answer.Refused) != 1 || answer.Refused[0] != (RefusedRow{2, c.want}) {
			t.Errorf("%s: %d %s", c.row, code, body)
		}
		if code, answer, _ = post(t, i, "/v1/readings", "text/csv", head+c.row+"\n"); code != 422 || len(answer.Refused) != 1 {
			t.Errorf("%s alone: %d", c.row, code)
		}
	}
	many := strings.Repeat("x,0,1,,\n", maxListed+50)
	if _, answer, _ := post(t, i, "/v1/readings", "text/csv", head+good+many); len(answer.Refused) != maxListed || answer.MoreRefused != 50 {
		t.Errorf("listed %d, %d more", len(answer.Refused), answer.MoreRefused)
	}
	before, _ := s.Clients()
	for _, c := range []struct {
		kind, body string
		code       int
	}{
		{"text/csv", "", 400},
		{"text/csv", "unique_id,ds\nb,1\n", 400},
		{"text/csv", "unique_id,ds,y,unit\nb,1,1,W\n", 400},
		{"text/csv", "unique_id,ds,y,y\nb,1,1,1\n", 400},
		{"text/csv", "unique_id;ds;y\nb;1;1\n", 400},
		{"text/csv", "unique_id,ds,y\nb,2026-03-10T11:00:00Z,1\nb,1\n", 400},
		{"text/csv", "unique_id,ds,y\nb,2026-03-10T11:00:00Z,1\nb,\"1\n", 400},
		{"text/csv", head + strings.Repeat("x", maxLine+1), 400},
		{"application/json", `{"unique_id":"b","ds":"2026-03-10T11:00:00Z","y":1}` + "\n" + `{"unique_id":`, 400},
		{"application/json", `{"unique_id":"b","ds":"2026-03-10T11:00:00Z","y":1,"unit":"W"}`, 400},
		{"application/json", `[{"unique_id":"b","ds":"2026-03-10T11:00:00Z","y":1}] x`, 400},
		{"application/json", ``, 400},
		{"image/png", `x`, 415},
		{"text/csv", head + strings.Repeat(good, maxBody/len(good)+1), 413},
	} {
		if code, _, body := post(t, i, "/v1/readings", c.kind, c.body); code != c.code {
			t.Errorf("%.60q: %d %s, want %d", c.body, code, body, c.code)
		}
	}
	if after, _ := s.Clients(); fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("a document that cannot be read left something: %v", after)
	}
	s.Close()
	if code, _, body := post(t, i, "/v1/readings", "text/csv", head+good); code != 503 {
		t.Errorf("in a closed store: %d %s", code, body)
	}
}

func TestPostWeather(t *testing.T) {
	at := func(hour int) int64 { return time.Date(2026, 3, 10, hour, 0, 0, 0, time.UTC).Unix() }
	for _, form := range []struct{ kind, body string }{
		{"text/csv", "ds,temperature,wind,issued\n2026-03-10T13:00:00Z,5,10,2026-03-10T11:00:00Z\n2026-03-10T15:00+01:00,6,,2026-03-10T11:00:00Z\n"},
		{"text/csv", "ds,temperature_2m,wind_speed_10m\n2026-03-10T13:00:00Z,5,10\n2026-03-10T14:00:00Z,6,nan\n"},
		{"", `{"ds":"2026-03-10T13:00:00Z","temperature":5,"wind":10}
{"ds":"2026-03-10T14:00:00Z","temperature":6,"wind":null,"issued":null}`},
		{"application/json", `{"latitude":52.5,"utc_offset_seconds":3600,"timezone":"Europe/Berlin","hourly_units":{"time":"iso8601","temperature_2m":"°C","wind_speed_10m":"km/h"},
"hourly":{"time":["2026-03-10T14:00","2026-03-10T15:00"],"temperature_2m":[5,6],"wind_speed_10m":[36,null],"cloud_cover":[1,2]}}`},
		{"application/json", `{"utc_offset_seconds":0,"hourly_units":{"time":"unixtime","temperature_2m":"°F","wind_speed_10m":"m/s"},
"hourly":{"time":[1773147600,1773151200],"temperature_2m":[41,42.8],"wind_speed_10m":[10,null]}}`},
	} {
		i, s, _ := intake(t, nil)
		if code, answer, body := post(t, i, "/v1/weather", form.kind, form.body); code != 200 || answer.Accepted != 2 {
			t.Errorf("%s: %d %s", form.body, code, body)
		}
		w, marks, err := s.Weather(at(13), at(15), start.Unix())
		if err != nil || len(w.Names) != 2 || w.Column("temperature")[3] != 5 || w.Column("temperature")[4] != 6 || w.Column("wind")[0] != 10 ||
			marks[0] != store.Known || marks[4] == store.Known {
			t.Errorf("%s: %+v %v %v", form.body, w, marks, err)
		}
	}
	i, _, _ := intake(t, nil)
	for _, body := range []string{
		`{"hourly":{"time":["2026-03-10T14:00"],"temperature_2m":[5]},"hourly_units":{"temperature_2m":"°C"}}`,
		`{"utc_offset_seconds":0,"hourly":{"time":["2026-03-10T14:00"],"temperature_2m":[5,6]},"hourly_units":{"temperature_2m":"°C"}}`,
		`{"utc_offset_seconds":0,"hourly":{"time":["2026-03-10T14:00"],"temperature_2m":[5]},"hourly_units":{"temperature_2m":"K"}}`,
		`{"utc_offset_seconds":0,"hourly":{"time":["2026-03-10T14:00"]}}`,
		`{"ds":"2026-03-10T14:00Z","Temperature":5}`,
		`{"ds":"2026-03-10T14:00Z","temperature":"5"}`,
		`[]x`,
	} {
		if code, _, got := post(t, i, "/v1/weather", "application/json", body); code != 400 {
			t.Errorf("%s: %d %s", body, code, got)
		}
	}
}

func FuzzDocument(f *testing.F) {
	f.Add("unique_id,ds,y\na,2026-03-10T11:00:00Z,1\n", false, false)
	f.Add(`{"unique_id":"a","ds":"2026-03-10T11:00","y":1}`, true, false)
	f.Add("ds,temperature\n2026-03-10T11:00:00Z,1\n", false, true)
	f.Add(`{"utc_offset_seconds":0,"hourly_units":{"temperature_2m":"°C"},"hourly":{"time":["2026-03-10T14:00"],"temperature_2m":[5]}}`, true, true)
	i, s, _ := intake(f, nil)
	f.Fuzz(func(t *testing.T, text string, asJSON, weather bool) {
		take := i.take
		if weather {
			take = i.takeWeather
		}
		if _, err := take("fuzz", strings.NewReader(text), asJSON); err != nil {
			return
		}
		names, err := s.Clients()
		if err != nil || len(names) > 3 {
			t.Fatal(names, err)
		}
	})
}
