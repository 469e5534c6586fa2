package api

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"loadstar/agent/live"
	"loadstar/agent/readings"
)

// TestForecast checks units, levels and local times across the 25-hour day.
func TestForecast(t *testing.T) {
	s, _ := server(t, nil)
	get := func(url string) (x struct {
		Cutoff, Issued, Step, Timezone, Quality string
		Offset                                  int `json:"utc_offset_seconds"`
		Model                                   struct{ Release, Head string }
		Nominal                                 map[string]float64
		Units                                   map[string]string
		Values                                  struct {
			Time        []string
			P10, P50    []*float64
			P90         []*float64
			Source      []string
			Reason      []*string
			RowsQuality []string `json:"quality"`
		}
		Scores map[string]*float64
	},
	) {
		t.Helper()
		r := ask(s, "GET", url, "")
		if err := json.Unmarshal([]byte(body(t, r)), &x); err != nil || r.StatusCode != 200 {
			t.Fatal(r.StatusCode, err)
		}
		return x
	}
	x := get("/v1/forecasts/main-panel")
	if x.Cutoff != "2026-10-25T00:00:00Z" || x.Issued != "2026-10-25T00:02:04Z" || x.Step != "PT15M" || x.Timezone != "Europe/Berlin" || x.Offset != 7200 ||
		x.Quality != "MISSING" || x.Model.Release != "day@7" || x.Units["P50"] != "kW" || x.Nominal["P10"] != 0.1 {
		t.Errorf("%+v", x)
	}
	v := x.Values
	if len(v.Time) != 192 || v.Time[0] != "2026-10-25T02:00:00+02:00" || v.Time[4] != "2026-10-25T02:00:00+01:00" || *v.P50[1] != 3.5 || *v.P90[0] != 400 ||
		v.P50[191] != nil || v.Source[191] != "none" || v.Reason[0] != nil || *v.Reason[96] != "beyond-reach" || v.RowsQuality[96] != "ESTIMATED" {
		t.Errorf("%+v", v)
	}
	if *x.Scores["coverage_P10_P90"] != 0.79 || x.Scores["fallback_share"] != nil {
		t.Errorf("scores %v", x.Scores)
	}
	x = get("/v1/forecasts/main-panel?h=24h&levels=0.5&unit=kWh&tz=UTC")
	if v := x.Values; len(v.Time) != 96 || v.Time[4] != "2026-10-25T01:00:00+00:00" || *v.P50[0] != 0.625 || v.P10 != nil || x.Quality != "OK" || x.Units["P50"] != "kWh" || x.Offset != 0 {
		t.Errorf("%+v", x)
	}
	if x = get("/v1/forecasts/main-panel?unit=W"); *x.Values.P50[0] != 2500 {
		t.Errorf("W: %v", *x.Values.P50[0])
	}
	// The probability is a half at the median, and a tenth at P90, in every unit.
	for query, want := range map[string]string{"above=5": `"above":5,"chance":0.5}`, "unit=W&above=7000": `"above":7000,"chance":0.1}`} {
		if got := body(t, ask(s, "GET", "/v1/forecasts/main-panel?"+query, "")); !strings.Contains(got, want) {
			t.Errorf("%s: no %s", query, want)
		}
	}
	r := ask(s, "GET", "/v1/forecasts/main-panel?format=csv&h=1h&tz=UTC", "")
	want := "unique_id,cutoff,ds,P10,P50,P90,mean,model,version,source,quality,reason,generated\n" +
		"main-panel,2026-10-25T00:00:00Z,2026-10-25T00:00:00Z,1,2.5,400,121.3,day@7,1840,model,OK,,false\n"
	if got := body(t, r); !strings.HasPrefix(got, want) || strings.Count(got, "\n") != 5 {
		t.Errorf("CSV: %s", got)
	}
	for _, q := range []string{
		"h=0", "h=1m", "h=49h", "h=x", "levels=0.2", "levels=", "levels=0.1,0.1", "unit=kVA", "tz=Local", "tz=../etc/passwd", "tz=Mars", "format=xml", "above=x", "above=NaN", "horizon=3", "h=1h&h=2h",
	} {
		r := ask(s, "GET", "/v1/forecasts/main-panel?"+q, "")
		if ok := q == "levels="; (r.StatusCode == 200) != ok || !ok && r.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d", q, r.StatusCode)
		}
	}
}

func TestCaching(t *testing.T) {
	s, f := server(t, nil)
	r := ask(s, "GET", "/v1/forecasts/main-panel", "")
	tag := r.Header.Get("ETag")
	if !strings.HasPrefix(tag, `"`) || r.Header.Get("Cache-Control") != "private, max-age=840" {
		t.Errorf("%v", r.Header)
	}
	for _, match := range []string{tag, `"x", ` + tag, "W/" + tag, "*"} {
		if r := ask(s, "GET", "/v1/forecasts/main-panel", "", "If-None-Match", match); r.StatusCode != 304 || body(t, r) != "" || r.Header.Get("ETag") != tag {
			t.Errorf("%s: %d", match, r.StatusCode)
		}
	}
	if r := ask(s, "GET", "/v1/forecasts/main-panel?unit=W", "", "If-None-Match", tag); r.StatusCode != 200 {
		t.Error("another unit has the same tag")
	}
	f.issued.Cutoff += 900
	if r := ask(s, "GET", "/v1/forecasts/main-panel", "", "If-None-Match", tag); r.StatusCode != 200 {
		t.Error("a newer forecast has the same tag")
	}
}

func TestPaths(t *testing.T) {
	s, f := server(t, nil)
	for _, c := range []struct {
		method, url string
		code        int
		allow       string
	}{
		{"GET", "/", 200, ""},
		{"POST", "/", 404, ""},
		{"GET", "/v2/clients", 404, ""},
		{"GET", "/v1/forecasts/", 404, ""},
		{"DELETE", "/v1/forecasts/main-panel", 405, "GET, POST"},
		{"GET", "/v1/readings", 405, "POST"},
		{"POST", "/v1/clients", 405, "GET"},
		{"HEAD", "/v1/clients", 200, ""},
		{"OPTIONS", "/v1/clients", 405, "GET"},
	} {
		r := ask(s, c.method, c.url, "")
		if r.StatusCode != c.code || r.Header.Get("Allow") != c.allow || c.code != 200 && r.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: %d %v", c.method, c.url, r.StatusCode, r.Header)
		}
		if r.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Error("other origins may read answers")
		}
	}
	if r := ask(s, "GET", "/readyz", ""); r.StatusCode != 503 || !strings.Contains(body(t, r), `"reasons":["readings"],"clients":{"of":2,"without":1,"names":["ne\"w\\"]}`) {
		t.Errorf("with one of two clients: %d", r.StatusCode)
	}
	f.newest = f.issued.Cutoff
	for _, c := range []struct {
		err  error
		want string
	}{{nil, "[]"}, {fmt.Errorf("%w: it is 1970", live.ErrClock), `["clock"]`}, {live.ErrNoForecast, `["no-forecast"]`}, {errors.New("x"), `["forecast"]`}} {
		f.ready = c.err
		r := ask(s, "GET", "/readyz", "")
		if got := body(t, r); !strings.Contains(got, c.want) || (r.StatusCode == 200) != (c.err == nil) {
			t.Errorf("%v: %d %s", c.err, r.StatusCode, got)
		}
	}
	f.ready = nil
	f.issued.Cutoff -= 7 * 3600
	if r := ask(s, "GET", "/readyz", ""); r.StatusCode != 503 || !strings.Contains(body(t, r), `["readings"]`) {
		t.Errorf("with old readings: %d", r.StatusCode)
	}
}

func TestProtection(t *testing.T) {
	s, _ := server(t, nil)
	for _, c := range []struct {
		host string
		code int
	}{
		{"127.0.0.1:7446", 200},
		{"localhost", 200},
		{"LOCALHOST:7446", 200},
		{"[::1]:7446", 200},
		{"[::1]", 200},
		{"evil.example:7446", 421},
		{"127.0.0.1.evil.example", 421},
		{"192.168.1.5:7446", 421},
	} {
		if r := ask(s, "GET", "/v1/clients", "", "Host", c.host); r.StatusCode != c.code {
			t.Errorf("host %s: %d, want %d", c.host, r.StatusCode, c.code)
		}
	}
	row := "unique_id,ds,y\nmain-panel,2026-10-24T20:00:00Z,1\n"
	if r := ask(s, "POST", "/v1/readings", row, "Content-Type", "text/plain", "Sec-Fetch-Site", "cross-site"); r.StatusCode != 403 {
		t.Errorf("a page from elsewhere stored a reading: %d", r.StatusCode)
	}
	if r := ask(s, "POST", "/v1/readings", row, "Content-Type", "text/plain", "Origin", "http://evil.example"); r.StatusCode != 403 {
		t.Errorf("a page from elsewhere stored a reading: %d", r.StatusCode)
	}
	if r := ask(s, "POST", "/v1/readings", row, "Content-Type", "text/plain"); r.StatusCode != 200 {
		t.Errorf("curl: %d", r.StatusCode)
	}
	token := "0123456789abcdef0123"
	s, _ = server(t, func(c *Config) {
		c.Listen, c.TokenFile = "0.0.0.0:7446", tokenFile(t, token+"\n")
	})
	for _, c := range []struct {
		path, header string
		code         int
	}{
		{"/v1/clients", "Bearer " + token, 200},
		{"/v1/clients", "", 401},
		{"/v1/clients", "Bearer ", 401},
		{"/v1/clients", "Bearer " + token + "x", 401},
		{"/v1/clients", "Basic " + token, 401},
		{"/metrics", "", 401},
		{"/readyz", "", 401},
		{"/healthz", "", 200},
		{"/", "", 200},
		{"/ui/agent.js", "", 200},
		{"/v1/readings/main-panel", "", 401},
		{"/v1/readings/main-panel", "Bearer " + token, 200},
		{"/ui/../v1/clients", "", 307}, // redirected to the path that needs the token
	} {
		r := ask(s, "GET", c.path, "", "Authorization", c.header, "Host", "gateway.local:7446")
		if r.StatusCode != c.code || c.code == 401 && r.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s with %q: %d, want %d", c.path, c.header, r.StatusCode, c.code)
		}
	}
	if page := body(t, ask(s, "GET", "/", "", "Host", "gateway.local:7446")); strings.Contains(page, "main-panel") || !strings.Contains(page, "/ui/agent.js") {
		t.Errorf("the page without a token: %s", page)
	}
	open := tokenFile(t, token)
	if err := os.Chmod(open, 0o644); err != nil { // every user of the machine could read it
		t.Fatal(err)
	}
	for _, c := range []Config{
		{Listen: "0.0.0.0:7446"},
		{Listen: ":7446"},
		{Listen: "192.168.1.5:7446"},
		{Listen: "gateway.local:7446"},
		{Listen: "[::]:7446"},
		{Listen: "7446"},
		{Listen: "0.0.0.0:7446", TokenFile: tokenFile(t, "short")},
		{Listen: "0.0.0.0:7446", TokenFile: tokenFile(t, "")},
		{Listen: "127.0.0.1:7446", TokenFile: filepath.Join(t.TempDir(), "none")},
		{Listen: "0.0.0.0:7446", TokenFile: open},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("listens on %s without a token", c.Listen)
		}
	}
	for _, listen := range []string{"127.0.0.1:0", "localhost:0", "[::1]:0", "127.1.2.3:0"} {
		if _, err := New(Config{Listen: listen}); err != nil {
			t.Error(err)
		}
	}
}

// TestReadings checks the times and gaps of readings.
func TestReadings(t *testing.T) {
	s, _ := server(t, nil)
	var x struct {
		Values struct {
			Time []string
			Load []*float64
		}
	}
	got := body(t, ask(s, "GET", "/v1/readings/main-panel?from=2026-10-25T00:40:00Z&to=1792891800", ""))
	if err := json.Unmarshal([]byte(got), &x); err != nil {
		t.Fatal(err)
	}
	v := x.Values
	if len(v.Time) != 4 || v.Time[0] != "2026-10-25T02:30:00+02:00" || v.Time[2] != "2026-10-25T02:00:00+01:00" || *v.Load[0] != 0.5 || v.Load[1] != nil || *v.Load[2] != 2.5 {
		t.Errorf("%s", got)
	}
	for query, want := range map[string]int{
		"from=2026-10-01T00:00:00Z&to=2027-01-13T04:00:00Z": 200,
		"from=2026-10-01T00:00:00Z&to=2027-01-13T04:15:00Z": 400, // 10,001 steps
		"from=0001-01-01T00:00:00Z&to=0001-01-02T00:00:00Z": 400,
		"from=9e9":          400,
		"to=99999999999999": 400,
		"lead=24h":          400,
	} {
		if r := ask(s, "GET", "/v1/readings/main-panel?"+query, ""); r.StatusCode != want {
			t.Errorf("%s: %d, want %d", query, r.StatusCode, want)
		}
	}
}

// TestBusy checks that the 33rd concurrent request is refused, and that the server shuts down.
func TestBusy(t *testing.T) {
	s, f := server(t, nil)
	f.blocked = make(chan struct{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + listener.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Serve(ctx, listener) }()
	client := &http.Client{Transport: &http.Transport{}}
	get := func(path string) int {
		r, err := client.Get(url + path)
		if err != nil {
			t.Error(err)
			return 0
		}
		r.Body.Close()
		return r.StatusCode
	}
	var group sync.WaitGroup
	for range maxRequests {
		group.Go(func() {
			if code := get("/v1/models"); code != 200 {
				t.Errorf("answered with %d", code)
			}
		})
	}
	for len(s.busy) < maxRequests {
		time.Sleep(time.Millisecond)
	}
	if code := get("/healthz"); code != 503 {
		t.Errorf("one request more: %d", code)
	}
	close(f.blocked)
	group.Wait()
	if code := get("/healthz"); code != 200 {
		t.Errorf("afterwards: %d", code)
	}
	client.CloseIdleConnections()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestHeldConnections checks that connections that somebody keeps open do not block others,
// with or without a token. With a token, the connection of a stranger is closed after the
// response.
func TestHeldConnections(t *testing.T) {
	const token = "0123456789abcdef"
	for _, auth := range []bool{true, false} {
		s, _ := server(t, func(c *Config) {
			if auth {
				c.TokenFile = tokenFile(t, token)
			}
		})
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Serve(ctx, listener) }()
		var held []net.Conn
		for range maxConnections + 10 {
			c, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, c)
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		client := &http.Client{Transport: &http.Transport{}}
		for range 3 {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+listener.Addr().String()+"/v1/models", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+token)
			answer, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			if answer.StatusCode != http.StatusOK || answer.Close {
				t.Errorf("token %t: %s, closed %t", auth, answer.Status, answer.Close)
			}
			answer.Body.Close()
		}
		answer, err := http.Get("http://" + listener.Addr().String() + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.Close != auth {
			t.Errorf("token %t: the connection of a stranger is closed: %t", auth, answer.Close)
		}
		for _, c := range held {
			c.Close()
		}
		client.CloseIdleConnections()
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestMetrics(t *testing.T) {
	s, _ := server(t, nil)
	ask(s, "POST", "/v1/readings", "unique_id,ds,y\nmain-panel,2026-10-24T20:00:00Z,1\n")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(ask(s, "GET", "/metrics", "").Body)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for name, family := range families {
		for _, m := range family.Metric {
			key := name
			for _, l := range m.Label {
				key += " " + l.GetValue()
			}
			got[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	for key, want := range map[string]float64{
		"loadstar_forecast_kilowatts main-panel P50 1h":         5.5,
		"loadstar_forecast_kilowatts main-panel P50 24h":        97.5,
		"loadstar_forecast_kilowatts main-panel P90 6h":         400,
		"loadstar_forecast_issued_timestamp_seconds main-panel": float64(now.Unix()),
		"loadstar_forecast_rows_total model":                    96,
		"loadstar_score main-panel relative_mae 28d":            0.71,
		"loadstar_score ne\"w\\ coverage 28d":                   0.79,
		"loadstar_readings_total http accepted":                 1,
		"loadstar_reading_age_seconds main-panel":               124,
		"loadstar_drift_alarms_total main-panel":                2,
	} {
		if v, ok := got[key]; !ok || math.Abs(v-want) > 1e-9 {
			t.Errorf("%s is %g, %v, want %g; there is %v", key, v, ok, want, got)
		}
	}
}

// TestMetricsReference checks that docs/reference/metrics.md lists every metric with its
// labelsand the values of labels that have few values.
func TestMetricsReference(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	s, _ := server(t, nil)
	ask(s, "POST", "/v1/readings", "unique_id,ds,y\nmain-panel,2026-10-24T20:00:00Z,1\n")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(ask(s, "GET", "/metrics", "").Body)
	if err != nil || len(families) < 7 {
		t.Fatalf("%d metrics: %v", len(families), err)
	}
	for name, family := range families {
		_, row, ok := strings.Cut(string(page), "| `"+name+"` |")
		row, _, _ = strings.Cut(row, "\n")
		if !ok || len(family.Metric) == 0 {
			t.Errorf("the page lacks %s, or the agent has no sample of it", name)
		}
		for _, m := range family.Metric {
			for _, l := range m.Label {
				known := strings.Contains(row, "`"+l.GetName()+"`")
				if slices.Contains([]string{"metric", "lead", "outcome"}, l.GetName()) || name == "loadstar_readings_total" {
					known = known && strings.Contains(row, "`"+l.GetValue()+"`")
				}
				if !known {
					t.Errorf("the row of %s lacks %s=%q", name, l.GetName(), l.GetValue())
				}
			}
		}
	}
}

func TestDrop(t *testing.T) {
	f := newFake(t)
	dir := filepath.Join(t.TempDir(), "forecasts")
	old := filepath.Join(dir, "2026-10-09")
	for _, d := range []string{old, filepath.Join(dir, "2026-10-12"), filepath.Join(dir, "mine")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := Drop(dir, f); err != nil {
		t.Fatal(err)
	}
	latest, err := os.ReadFile(filepath.Join(dir, "latest.csv"))
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(strings.NewReader(string(latest))).ReadAll()
	if err != nil || len(rows) != 193 || rows[1][2] != "2026-10-25T00:00:00Z" || rows[192][4] != "" {
		t.Errorf("%d rows: %v", len(rows), err)
	}
	if same, err := os.ReadFile(filepath.Join(dir, "2026-10-25", "0000.csv")); err != nil || string(same) != string(latest) {
		t.Errorf("the copy: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{"2026-10-12", "2026-10-25", "latest.csv", "mine"}; !slices.Equal(names, want) {
		t.Errorf("there is %v, want %v", names, want)
	}
}

func TestPeriod(t *testing.T) {
	for d, want := range map[time.Duration]string{15 * time.Minute: "PT15M", time.Hour: "PT1H", 24 * time.Hour: "PT24H", 90 * time.Minute: "PT1H30M", 0: "PT0S"} {
		if got := period(d); got != want {
			t.Errorf("%s is %s, want %s", d, got, want)
		}
	}
}

func BenchmarkForecast(b *testing.B) {
	s, _ := server(b, nil)
	h := s.Handler()
	for b.Loop() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "http://127.0.0.1:7446/v1/forecasts/main-panel", nil))
	}
}

// TestReceiving checks that a client whose meter sends messages but has no reading yet is shown
// as receiving.
func TestReceiving(t *testing.T) {
	api, f := server(t, nil)
	api.c.Intake.Add([]readings.Sample{{Client: "main-panel", At: now, Value: 1, Kind: readings.Power}}, func(error) {})
	if got := body(t, ask(api, "GET", "/v1/clients", "")); strings.Contains(got, `"messages"`) {
		t.Errorf("a client with readings: %s", got)
	}
	f.issued.Cutoff = 0
	want := `"newest_reading":null,"receiving":{"messages":1,"since":"2026-10-25T00:02:04Z","complete":"2026-10-25T00:15:00Z"}`
	if got := body(t, ask(api, "GET", "/v1/clients", "")); !strings.Contains(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
}
