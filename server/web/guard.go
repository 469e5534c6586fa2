package web

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"loadstar/internal/connlimit"
	"loadstar/internal/webui"
	"loadstar/server/access"
)

// guard sets the security headers of every response. On a loopback address, it refuses other
// host names. Otherwise a foreign site could point its own name at this address, and read the
// dashboard as a page of the same origin (DNS rebinding).
func (w *Web) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		webui.Protect(rw.Header())
		if w.secure() && !isLoopback(hostOf(r.Host)) { // the header would also apply to other servers on the reader's machine
			rw.Header().Set("Strict-Transport-Security", "max-age=31536000")
		}
		if w.loopback && !w.BehindProxy && !isLoopback(hostOf(r.Host)) {
			refuse(rw, http.StatusMisdirectedRequest, "permission_denied", "this dashboard is only for this machine; open "+w.address("127.0.0.1"))
			return
		}
		next.ServeHTTP(rw, r)
	})
}

// hostOf returns the host without its port.
func hostOf(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.Trim(hostport, "[]")
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

func noStore(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Cache-Control", "no-store")
		next.ServeHTTP(rw, r)
	})
}

// refuse answers with an error in the format of the operators' API.
func refuse(rw http.ResponseWriter, status int, code, message string) {
	answer(rw, status, map[string]string{"code": code, "message": message})
}

func answer(rw http.ResponseWriter, status int, body any) {
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(status)
	_ = json.NewEncoder(rw).Encode(body) // a failed write means that the caller has disconnected
}

// addressOf returns the address to which limits apply. A proxy appends its caller's address to
// X-Forwarded-For. The caller may have forged the earlier addresses in the list.
func (w *Web) addressOf(r *http.Request) string {
	if all := r.Header.Values("X-Forwarded-For"); w.BehindProxy && len(all) > 0 {
		last := all[len(all)-1]
		return connlimit.AddressOf(net.JoinHostPort(strings.TrimSpace(last[strings.LastIndexByte(last, ',')+1:]), "0"))
	}
	return connlimit.AddressOf(r.RemoteAddr)
}

// maySignIn reports whether the sender of a request may try to sign in once more.
func (w *Web) maySignIn(r *http.Request) bool {
	from := w.addressOf(r)
	if w.logins.Allow(from) {
		return true
	}
	w.Limited.Limited(access.LimitedSignIns, connlimit.Caller{Kind: connlimit.Address, Name: from})
	return false
}

// certificate reads its files again when they have changed, so that a renewed certificate needs
// no restart.
type certificate struct {
	certFile, keyFile string

	mu      sync.Mutex
	current *tls.Certificate
	changed time.Time // modification time of the certificate's file
	checked time.Time
}

const certificateEvery = 30 * time.Second

func newCertificate(certFile, keyFile string) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile}
	if err := c.read(); err != nil {
		return nil, fmt.Errorf("reading the dashboard's certificate: %w", err)
	}
	return c, nil
}

// read reads the files if the certificate has changed. The caller holds the lock.
func (c *certificate) read() error {
	c.checked = time.Now()
	info, err := os.Stat(c.certFile)
	if err != nil || info.ModTime().Equal(c.changed) {
		return err
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return err
	}
	c.current, c.changed = &pair, info.ModTime()
	return nil
}

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.checked) > certificateEvery {
		// During a replacement the certificate may briefly not match its key. Keep the
		// old one and try again.
		_ = c.read()
	}
	return c.current, nil
}
