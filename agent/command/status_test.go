package command

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"loadstar/agent/config"
)

// A program that listens in place of the agent can neither control the terminal nor send
// the token elsewhere.
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
			_, _ = w.Write([]byte("day\x1b]0;x\x07\u009b1m \u202eä\n")) // the test sees what is missing
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
