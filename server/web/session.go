package web

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"loadstar/internal/connlimit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/access"
)

// The cookies of a session, and of an attempt to sign in with a provider.
const (
	sessionCookie = "loadstar_session"
	oidcCookie    = "loadstar_oidc"
)

// secure reports whether browsers reach the page only over HTTPS.
func (w *Web) secure() bool { return w.CertFile != "" || w.BehindProxy }

// cookieName returns the name under which this server stores a cookie. The name contains the
// port, because browsers send cookies to all ports of a host, and two servers on one machine
// would overwrite each other's cookies. Behind a proxy, the browser knows only the proxy, and
// several gateways may share a session, so the name has no port. A browser accepts a cookie
// whose name begins with __Host- only from the host itself, over HTTPS, so a page on a sibling
// subdomain cannot replace it.
func (w *Web) cookieName(name string) string {
	if w.loopback && !w.BehindProxy {
		_, port, _ := net.SplitHostPort(w.listener.Addr().String()) // a listener's address has a port
		name += "_" + port
	}
	if w.secure() {
		name = "__Host-" + name
	}
	return name
}

const (
	loginBytes = 4 << 10
	callBytes  = 2 << 20
	callFor    = 30 * time.Second
)

// information is the data that the page needs before a user has signed in.
type information struct {
	SignedIn bool     `json:"signed_in"`
	Methods  []string `json:"methods"`
	Notice   string   `json:"notice"`
	Links    []Link   `json:"links"`
	ReadOnly bool     `json:"read_only"`
}

func (w *Web) info(rw http.ResponseWriter, r *http.Request) {
	x := information{Methods: []string{"login"}, Notice: w.Notice, Links: w.Links, ReadOnly: w.ReadOnly}
	if w.OIDC != nil {
		x.Methods = append(x.Methods, "oidc")
	}
	if x.Links == nil {
		x.Links = []Link{}
	}
	_, _, err := w.session(r)
	if err != nil && !denied(err) {
		w.fail(rw, err)
		return
	}
	x.SignedIn = err == nil
	answer(rw, http.StatusOK, x)
}

func (w *Web) login(rw http.ResponseWriter, r *http.Request) {
	if !w.maySignIn(r) {
		rw.Header().Set("Retry-After", "1")
		refuse(rw, http.StatusTooManyRequests, "resource_exhausted", "too many attempts to sign in from this address; try again")
		return
	}
	var in struct {
		Code string `json:"code"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(rw, r.Body, loginBytes)).Decode(&in); err != nil || in.Code == "" {
		refuse(rw, http.StatusBadRequest, "invalid_argument", `want {"code":"…"} with the code of a login link`)
		return
	}
	cookie, expires, err := w.Access.Login(r.Context(), in.Code, time.Now())
	if err != nil {
		w.fail(rw, err)
		return
	}
	w.signIn(rw, cookie, expires)
	answer(rw, http.StatusOK, struct{}{})
}

// signIn gives a browser the cookie of a session.
func (w *Web) signIn(rw http.ResponseWriter, cookie string, expires time.Time) {
	http.SetCookie(rw, &http.Cookie{
		Name: w.cookieName(sessionCookie), Value: cookie, Path: "/", Expires: expires,
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: w.secure(),
	})
}

func (w *Web) logout(rw http.ResponseWriter, r *http.Request) {
	if c, err := r.Cookie(w.cookieName(sessionCookie)); err == nil {
		if err := w.Access.Logout(r.Context(), c.Value); err != nil && !denied(err) {
			w.fail(rw, err)
			return
		}
		w.hub.end(c.Value)
	}
	w.signIn(rw, "", time.Unix(1, 0))
	answer(rw, http.StatusOK, struct{}{})
}

// session returns the caller and the cookie of a request.
func (w *Web) session(r *http.Request) (access.Caller, string, error) {
	c, err := r.Cookie(w.cookieName(sessionCookie))
	if err != nil {
		return access.Caller{}, "", connect.NewError(connect.CodeUnauthenticated, errSignIn)
	}
	caller, err := w.check(r.Context(), c.Value)
	if err == nil {
		w.limits.Know(r, connlimit.Caller{Kind: connlimit.User, Name: caller.Name})
	}
	return caller, c.Value, err
}

// check returns the caller whose session has the given cookie.
func (w *Web) check(ctx context.Context, cookie string) (access.Caller, error) {
	select {
	case w.checking <- struct{}{}:
		defer func() { <-w.checking }()
	case <-ctx.Done():
		return access.Caller{}, ctx.Err()
	}
	caller, err := w.Access.Session(ctx, cookie, time.Now())
	if w.ReadOnly {
		caller.Role = access.Viewer
	}
	return caller, err
}

var errSignIn = errors.New("sign in first: 'loadstar user login' prints a link")

func denied(err error) bool {
	code := connect.CodeOf(err)
	return err != nil && (code == connect.CodeUnauthenticated || code == connect.CodePermissionDenied)
}

// fail responds with an error from looking up a session.
func (w *Web) fail(rw http.ResponseWriter, err error) {
	if denied(err) {
		message := err.Error()
		if c := (*connect.Error)(nil); errors.As(err, &c) {
			message = c.Message() // without the code
		}
		refuse(rw, http.StatusUnauthorized, "unauthenticated", message)
		return
	}
	w.Log.Warn("cannot serve a browser", "error", err)
	rw.Header().Set("Retry-After", "5")
	refuse(rw, http.StatusServiceUnavailable, "unavailable", "the server cannot answer now; try again")
}

// call forwards a call of the operators' API with the session's user as its caller.
func (w *Web) call(rw http.ResponseWriter, r *http.Request) {
	caller, _, err := w.session(r)
	if err != nil {
		w.fail(rw, err)
		return
	}
	// Allow only unary calls, because a stream would outlive its session. A stream has another content type.
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); strings.TrimSpace(kind) != "application/json" {
		refuse(rw, http.StatusUnsupportedMediaType, "invalid_argument", "want a body of type application/json")
		return
	}
	select {
	case w.calling <- struct{}{}:
		defer func() { <-w.calling }()
	case <-r.Context().Done():
		return
	}
	ctx, cancel := context.WithTimeout(access.With(r.Context(), caller), callFor)
	defer cancel()
	r = r.Clone(ctx)
	r.URL.Path = "/" + v1.OperatorServiceName + "/" + r.PathValue("method")
	r.Body = http.MaxBytesReader(rw, r.Body, callBytes)
	// The caller is in the context, so the API does not need the cookie.
	r.Header.Del("Cookie")
	w.API.Handler().ServeHTTP(rw, r)
}
