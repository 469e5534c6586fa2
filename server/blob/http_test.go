package blob

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

func TestHandler(t *testing.T) {
	b := fileBacking(t)
	s := b.open(t)
	data := random(1, 10_000)
	hash, empty, bad := put(t, s, data), put(t, s, nil), put(t, s, []byte("good"))
	b.spoil(t, bad, []byte("evil"))
	var log strings.Builder
	server := httptest.NewServer(Handler(s, slog.New(slog.NewTextHandler(&log, nil))))
	defer server.Close()
	unknown := strings.Repeat("0", 64)
	for name, c := range map[string]struct {
		method, path, header string
		status               int
		body                 string
	}{
		"whole":         {"GET", hash, "", 200, string(data)},
		"head":          {"HEAD", hash, "", 200, ""},
		"empty":         {"GET", empty, "", 200, ""},
		"a part":        {"GET", hash, "Range: bytes=100-199", 206, string(data[100:200])},
		"the rest":      {"GET", hash, "Range: bytes=9990-", 206, string(data[9990:])},
		"beyond":        {"GET", hash, "Range: bytes=10000-", 416, "*"},
		"unknown":       {"GET", unknown, "", 404, "*"},
		"unknown, head": {"HEAD", unknown, "", 404, ""},
		"short":         {"GET", hash[:63], "", 400, "*"},
		"upper case":    {"GET", strings.ToUpper(hash), "", 400, "*"},
		"a path":        {"GET", "..%2f..%2fetc%2fpasswd", "", 400, "*"},
		"below it":      {"GET", hash + "/x", "", 400, "*"},
		"none":          {"GET", "", "", 400, "*"},
		"written":       {"PUT", hash, "", 405, "*"},
		"corrupt":       {"GET", bad, "", 503, "*"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := http.NewRequest(c.method, server.URL+"/v1/blobs/"+c.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if key, value, ok := strings.Cut(c.header, ": "); ok {
				r.Header.Set(key, value)
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != c.status {
				t.Fatalf("%s, %v: %s", resp.Status, err, body)
			}
			if c.body != "*" && string(body) != c.body || strings.Contains(string(body), "evil") {
				t.Errorf("%d bytes: %.50q", len(body), body)
			}
			if name == "head" && resp.Header.Get("Content-Length") != strconv.Itoa(len(data)) {
				t.Errorf("headers %v", resp.Header)
			}
		})
	}
	if !strings.Contains(log.String(), bad) || strings.Contains(log.String(), unknown) {
		t.Errorf("logged: %s", log.String())
	}
}
