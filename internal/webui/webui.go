// Package webui contains the built pages of servers and agents from web/dashboard.
package webui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"io"
	"net/http"
	"path"
	"strings"
	"time"
)

// Each page is embedded separately, so that the linker omits the page that a program does not
// use. The agent's binary must stay small. The files are gzipped.
var (
	//go:embed bundle/server.*.gz
	serverFiles embed.FS
	//go:embed bundle/agent.*.gz
	agentFiles embed.FS
)

// Server serves the page of a server: the paths / and /ui/….
func Server() http.Handler { return newPages(serverFiles, "server") }

// Agent serves the page of an agent: the paths / and /ui/….
func Agent() http.Handler { return newPages(agentFiles, "agent") }

// policy allows a page to load content from, and send requests to, only its own origin.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// pages are the files of one page by path.
type pages map[string]file

type file struct {
	kind          string // content type
	plain, packed []byte
	tag           string
}

var kinds = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
}

// newPages reads the files of the page with the given name. It panics if the built files do not
// match the program, which tests would detect.
func newPages(from embed.FS, name string) pages {
	all := pages{}
	for ext, kind := range kinds {
		f := file{kind: kind}
		var err error
		if f.packed, err = from.ReadFile("bundle/" + name + ext + ".gz"); err != nil {
			panic(err)
		}
		r, err := gzip.NewReader(bytes.NewReader(f.packed))
		if err != nil {
			panic(err)
		}
		if f.plain, err = io.ReadAll(r); err != nil {
			panic(err)
		}
		sum := sha256.Sum256(f.plain)
		f.tag = base64.RawURLEncoding.EncodeToString(sum[:12])
		at := "/ui/" + name + ext
		if ext == ".html" {
			at = "/"
		}
		all[at] = f
	}
	return all
}

// Protect sets the headers that prevent a browser from loading foreign content into a response,
// and from showing the response inside a foreign page. The handlers of the pages set these
// headers themselves.
func Protect(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
}

func (p pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	Protect(h)
	f, ok := p[r.URL.Path]
	switch {
	case !ok:
		http.Error(w, "there is no such page", http.StatusNotFound)
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "pages can only be read", http.StatusMethodNotAllowed)
		return
	}
	h.Set("Content-Type", f.kind)
	h.Set("Cache-Control", "no-cache") // revalidate each time; the response is usually 304
	h.Set("Vary", "Accept-Encoding")
	body, tag := f.plain, f.tag
	if acceptsGzip(r.Header.Values("Accept-Encoding")) {
		h.Set("Content-Encoding", "gzip")
		body, tag = f.packed, f.tag+"-gzip"
	}
	h.Set("ETag", `"`+tag+`"`)
	http.ServeContent(w, r, path.Base(r.URL.Path), time.Time{}, bytes.NewReader(body))
}

// acceptsGzip reports whether the values of Accept-Encoding include gzip with a quality other
// than zero.
func acceptsGzip(values []string) bool {
	for _, v := range strings.Split(strings.Join(values, ","), ",") {
		coding, quality, _ := strings.Cut(strings.ToLower(v), ";")
		if strings.TrimSpace(coding) == "gzip" {
			q := strings.TrimLeft(strings.TrimPrefix(strings.TrimSpace(quality), "q="), "0.")
			return strings.TrimSpace(quality) == "" || q != ""
		}
	}
	return false
}
