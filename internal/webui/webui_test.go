package webui

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// mostGzipped is the maximum total size of a page's HTML, script and style, gzipped.
const mostGzipped = 60_000

func get(t *testing.T, h http.Handler, method, path string, header ...string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func text(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func forEach(t *testing.T, f func(t *testing.T, name string, h http.Handler)) {
	for name, h := range map[string]http.Handler{"server": Server(), "agent": Agent()} {
		t.Run(name, func(t *testing.T) { f(t, name, h) })
	}
}

func TestFiles(t *testing.T) {
	forEach(t, func(t *testing.T, name string, h http.Handler) {
		sum := 0
		for path, kind := range map[string]string{
			"/": "text/html; charset=utf-8", "/ui/" + name + ".js": "text/javascript; charset=utf-8", "/ui/" + name + ".css": "text/css; charset=utf-8",
		} {
			plain, packed := get(t, h, "GET", path), get(t, h, "GET", path, "Accept-Encoding", "br, gzip;q=0.5")
			if plain.StatusCode != 200 || plain.Header.Get("Content-Type") != kind || plain.Header.Get("Content-Encoding") != "" {
				t.Errorf("%s: status %d, headers %v", path, plain.StatusCode, plain.Header)
			}
			if packed.Header.Get("Content-Encoding") != "gzip" || packed.Header.Get("Vary") != "Accept-Encoding" {
				t.Errorf("%s with gzip: headers %v", path, packed.Header)
			}
			short := text(t, packed.Body)
			sum += len(short)
			r, err := gzip.NewReader(strings.NewReader(short))
			if err != nil {
				t.Fatal(err)
			}
			if text(t, r) != text(t, plain.Body) {
				t.Errorf("%s: the gzipped form differs", path)
			}
		}
		if sum > mostGzipped {
			t.Errorf("the page has %d bytes gzipped, want at most %d", sum, mostGzipped)
		}
		t.Logf("%d bytes gzipped", sum)
	})
}

func TestHeaders(t *testing.T) {
	const want = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
	forEach(t, func(t *testing.T, name string, h http.Handler) {
		for _, path := range []string{"/", "/ui/" + name + ".js", "/nothing"} {
			header := get(t, h, "GET", path).Header
			for key, value := range map[string]string{
				"Content-Security-Policy": want, "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff", "Cross-Origin-Opener-Policy": "same-origin",
			} {
				if got := header.Get(key); got != value {
					t.Errorf("%s: %s is %q, want %q", path, key, got, value)
				}
			}
		}
	})
}

func TestETag(t *testing.T) {
	h := Server()
	seen := map[string]bool{}
	for _, path := range []string{"/", "/ui/server.js", "/ui/server.css"} {
		for _, encoding := range []string{"", "gzip"} {
			tag := get(t, h, "GET", path, "Accept-Encoding", encoding).Header.Get("ETag")
			if tag == "" || seen[tag] {
				t.Errorf("%s %s: ETag %q is missing or not its own", path, encoding, tag)
			}
			seen[tag] = true
			if r := get(t, h, "GET", path, "Accept-Encoding", encoding, "If-None-Match", tag); r.StatusCode != http.StatusNotModified {
				t.Errorf("%s %s with its own tag: status %d", path, encoding, r.StatusCode)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	forEach(t, func(t *testing.T, name string, h http.Handler) {
		other := map[string]string{"server": "agent", "agent": "server"}[name]
		for _, path := range []string{"/ui", "/ui/", "/bundle/", "/ui/" + name + ".js.gz", "/ui/" + other + ".js", "/index.html", "/ui/..", "//"} {
			if r := get(t, h, "GET", path); r.StatusCode != http.StatusNotFound {
				t.Errorf("%s: status %d, want 404", path, r.StatusCode)
			}
		}
		if r := get(t, h, "POST", "/"); r.StatusCode != http.StatusMethodNotAllowed || r.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("POST: status %d, Allow %q", r.StatusCode, r.Header.Get("Allow"))
		}
		if r := get(t, h, "HEAD", "/"); r.StatusCode != 200 || text(t, r.Body) != "" {
			t.Errorf("HEAD: status %d", r.StatusCode)
		}
	})
}

func TestAcceptsGzip(t *testing.T) {
	for header, want := range map[string]bool{
		"": false, "gzip": true, "br, GZIP": true, "gzip;q=0": false, "gzip; q=0.0": false, "gzip;q=0.1": true, "deflate": false, "xgzip": false,
	} {
		if got := acceptsGzip([]string{header}); got != want {
			t.Errorf("%q: %t, want %t", header, got, want)
		}
	}
}

// TestNothingElsewhere checks that pages do not refer to other hosts from which they would load
// content.
func TestNothingElsewhere(t *testing.T) {
	loads := regexp.MustCompile(`(?i)(?:src|href)="(?:https?:)?//|url\((?:"|')?(?:https?:)?//|@import`)
	forEach(t, func(t *testing.T, name string, h http.Handler) {
		for _, path := range []string{"/", "/ui/" + name + ".js", "/ui/" + name + ".css"} {
			if found := loads.FindString(text(t, get(t, h, "GET", path).Body)); found != "" {
				t.Errorf("%s has %q", path, found)
			}
		}
	})
}

// TestAgentOnly checks that a program that uses only the agent's page does not contain the
// server's.
func TestAgentOnly(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	program := filepath.Join(t.TempDir(), "agentonly")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./testdata/agentonly").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	built, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]bool{"agent.js.gz": true, "agent.css.gz": true, "server.js.gz": false, "server.html.gz": false} {
		content, err := os.ReadFile("bundle/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(built, content) != want {
			t.Errorf("the program contains %s: %t, want %t", file, !want, want)
		}
	}
}
