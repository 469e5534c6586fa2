package command

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"loadstar/agent/config"
	"loadstar/agent/live"
	"loadstar/agent/readings"
	"loadstar/forecast/issue"
)

// TestCallStranger checks that another program at the agent's address can neither control the
// terminal nor redirect the token.
func TestCallStranger(t *testing.T) {
	token := ""
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { token = r.Header.Get("Authorization") }))
	defer other.Close()
	t.Setenv("HTTP_PROXY", other.URL)
	stranger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		case "/fail":
			http.Error(w, "\x1b[2Jno", http.StatusConflict)
		default:
			_, _ = w.Write([]byte("day\x1b]0;x\x07\u009b1m \u202eä\n")) // the test notices missing output
		}
	}))
	defer stranger.Close()
	c := &config.Config{}
	c.HTTP.Listen = strings.TrimPrefix(stranger.URL, "http://")
	c.HTTP.TokenFile = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(c.HTTP.TokenFile, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/", "/redirect", "/fail"} {
		var out bytes.Buffer
		_, err := call(t.Context(), c, "GET", path, &out)
		text := out.String()
		if err != nil {
			text += err.Error()
		}
		if strings.ContainsAny(text, "\x1b\x07\u009b\u202e") || path == "/" && !strings.Contains(text, "ä\n") {
			t.Errorf("%s prints %q", path, text)
		}
	}
	if token != "" {
		t.Error("the token was sent elsewhere")
	}
}

func TestDescribe(t *testing.T) {
	week := live.ClientStatus{Forecast: &live.Issued{}, Source: issue.Week, Reason: issue.Refused, Days: 90}
	waiting := week
	waiting.Reason, waiting.Next = issue.NoRelease, "day@1"
	own := live.ClientStatus{Forecast: &live.Issued{Release: live.ModelRef{Release: "day@1", Head: 1.7e9}}, Source: issue.Model}
	for _, x := range []struct {
		c             live.ClientStatus
		refused, want string
	}{
		{week, "", "LAST WEEK: refused"},
		{week, "day@1", "LAST WEEK: refused day@1, which would be worse"},
		{waiting, "", "LAST WEEK: no-release; the next forecast is from day@1"},
		{own, "day@2", "model day@1 (personal layers of 2023-11-14); refused day@2, which would be worse"},
	} {
		if got := describeModel(x.c, x.refused); got != x.want {
			t.Errorf("%q, want %q", got, x.want)
		}
	}
	now := time.Date(2026, 11, 16, 3, 50, 0, 0, time.UTC)
	receiving := readings.Receiving{Messages: 331, Complete: now.Add(10 * time.Minute)}
	if got := describeReceiving(receiving, live.Site{Zone: time.UTC}, now); got != "receiving (331 messages), first step complete at 04:00" {
		t.Error(got)
	}
	for hours, want := range map[int]string{-1: "02:50", -21: "2026-11-15 06:50", 20: "2026-11-16 23:50"} {
		if got := clockTime(now.Add(time.Duration(hours)*time.Hour).Unix(), live.Site{Zone: time.UTC}, now); got != want {
			t.Errorf("%d hours from now: %s, want %s", hours, got, want)
		}
	}
}

func TestWriteWeather(t *testing.T) {
	client := func(name string, reason issue.Reason, members ...string) live.ClientStatus {
		return live.ClientStatus{Name: name, Reason: reason, Members: members}
	}
	var b bytes.Buffer
	if err := writeWeather(&b, []live.ClientStatus{client("a", ""), client("b", issue.Gap)}); err != nil || b.Len() > 0 {
		t.Errorf("%q, %v", b.String(), err)
	}
	clients := []live.ClientStatus{client("a", issue.WeatherPersisted), client("g", issue.WeatherPersisted, "a", "b"), client("b", issue.WeatherMissing), client("c", issue.WeatherPersisted)}
	if err := writeWeather(&b, clients); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "no weather for b: The model was trained with weather, and there is none") ||
		!strings.HasPrefix(lines[1], "no weather for a, c: ") || !strings.Contains(lines[1], "about 32 % higher") {
		t.Errorf("%q", lines)
	}
}
