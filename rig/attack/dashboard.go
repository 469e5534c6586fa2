package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/oauth2-proxy/mockoidc"

	v1 "loadstar/proto/loadstar/v1"

	"loadstar/internal/testkit"
	"loadstar/rig/product"
)

// dashboards lists the attacks of the second review on the dashboard and on what its users see.
func dashboards() []Attack {
	return []Attack{
		{ID: "S7a", Name: "a stranger shuts the dashboard with 1,100 connections", Run: holdDashboard},
		{ID: "S7b", Name: "a stranger who tries codes keeps everybody from signing in", Run: blockSignIn},
		{ID: "S9", Name: "a stolen session outlives the logout", Run: outliveLogout},
		{ID: "S10", Name: "an unverified email address gives a role", Run: unverifiedEmail},
		{ID: "S11", Name: "users see which house may be empty", Run: emptyHouse},
		{ID: "SL1", Name: "names of hostile agents are formulas in CSV", Run: formulas},
		{ID: "SL2", Name: "one viewer takes all live topics", Run: takeTopics},
		{ID: "SL7", Name: "a browser falls back to HTTP", Run: plainHTTP},
	}
}

// dashboard is a server's dashboard as seen from one address of this machine.
type dashboard struct {
	*Server
	host string // address
	http *http.Client
}

func (f *Fleet) dashboard(ctx context.Context, flags ...string) (*dashboard, error) {
	host, err := testkit.FreeAddress()
	if err != nil {
		return nil, err
	}
	s, err := f.Serve(ctx, append([]string{"--web", host}, flags...)...)
	if err != nil {
		return nil, err
	}
	return &dashboard{s, host, clientFrom(honestFrom, 10*time.Second)}, nil
}

// clientFrom returns a client with a source address, which opens a connection for each request.
func clientFrom(address string, timeout time.Duration) *http.Client {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	return &http.Client{Timeout: timeout, Transport: &http.Transport{DialContext: d.DialContext, DisableKeepAlives: true}}
}

// ask makes a request and returns its status, the session that it set, and its body.
func (d *dashboard) ask(ctx context.Context, method, path, cookie, body string) (status int, session, answer string, err error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+d.host+path, strings.NewReader(body))
	if err != nil {
		return 0, "", "", err
	}
	r.Header.Set("Content-Type", "application/json")
	if cookie != "" {
		r.Header.Set("Cookie", cookie)
	}
	a, err := d.http.Do(r)
	if err != nil {
		return 0, "", "", err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	for _, c := range a.Cookies() {
		session = c.Name + "=" + c.Value
	}
	return a.StatusCode, session, string(text), err
}

func (d *dashboard) call(ctx context.Context, cookie, method, body string) (int, string, error) {
	status, _, answer, err := d.ask(ctx, http.MethodPost, "/api/loadstar.v1.OperatorService/"+method, cookie, body)
	return status, answer, err
}

// signIn adds a user if necessary, and returns a cookie of a session.
func (d *dashboard) signIn(ctx context.Context, user, role string) (string, error) {
	if _, err := d.Command(ctx, "user", "add", user, "--role", role); err != nil && !strings.Contains(err.Error(), "already") {
		return "", err
	}
	link, err := d.Command(ctx, "user", "login", user)
	if err != nil {
		return "", err
	}
	_, code, ok := strings.Cut(link, "code=")
	if !ok {
		return "", fmt.Errorf("no code in %s", link)
	}
	status, cookie, answer, err := d.ask(ctx, http.MethodPost, "/api/login", "", fmt.Sprintf(`{"code":%q}`, strings.Fields(code)[0]))
	if err != nil || status != http.StatusOK {
		return "", fmt.Errorf("sign in: %d %s: %w", status, answer, err)
	}
	return cookie, nil
}

// hold opens connections to an address and sends one request on each of them. The connections
// stay open until the attack ends.
func (f *Fleet) hold(address string, n int, request string) error {
	var all []net.Conn
	f.later(func() error {
		for _, c := range all {
			c.Close()
		}
		return nil
	})
	for range n {
		c, err := net.DialTimeout("tcp", address, 2*time.Second)
		if err != nil {
			break // no more connections are accepted
		}
		all = append(all, c)
		if _, err := io.WriteString(c, request); err != nil && len(all) == 1 {
			return err
		}
	}
	if len(all) < n/4 {
		return fmt.Errorf("only %d connections could be opened", len(all))
	}
	return nil
}

// holdDashboard succeeds if a request from another address is not answered within 10 s while a
// stranger holds connections.
func holdDashboard(ctx context.Context, f *Fleet) (Result, error) {
	d := must(f.dashboard(ctx))
	if _, _, _, err := d.ask(ctx, http.MethodGet, "/api/info", "", ""); err != nil {
		return Result{}, err
	}
	check(f.hold(d.host, 1100, "GET /api/info HTTP/1.1\r\nHost: "+d.host+"\r\n\r\n"))
	begun := time.Now()
	for i := range 5 {
		if status, _, _, err := d.ask(ctx, http.MethodGet, "/api/info", "", ""); err != nil || status != http.StatusOK {
			return succeeded("request %d: status %d, %v", i+1, status, err), nil
		}
	}
	return repelled("five requests took %d ms", time.Since(begun).Milliseconds()), nil
}

// blockSignIn succeeds if a stranger's attempts to sign in make the server refuse attempts from
// another address.
func blockSignIn(ctx context.Context, f *Fleet) (Result, error) {
	d := must(f.dashboard(ctx))
	flooding, stop := context.WithCancel(ctx)
	defer stop()
	stranger := &dashboard{d.Server, d.host, &http.Client{Timeout: 10 * time.Second}}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	full := make(chan struct{})
	once := sync.OnceFunc(func() { close(full) })
	for range 4 {
		wg.Go(func() {
			for flooding.Err() == nil {
				status, _, _, err := stranger.ask(flooding, http.MethodPost, "/api/login", "", `{"code":"x"}`)
				if err == nil && status == http.StatusTooManyRequests {
					once()
				}
			}
		})
	}
	select {
	case <-full:
	case <-time.After(20 * time.Second):
		return Result{}, errors.New("the flood does not reach the limit")
	}
	refused := 0
	const tries = 20
	for range tries {
		status, _, _, err := d.ask(ctx, http.MethodPost, "/api/login", "", `{"code":"AAAA"}`)
		check(err)
		if status == http.StatusTooManyRequests {
			refused++
		}
		check(product.Sleep(ctx, 100*time.Millisecond))
	}
	if refused > 0 {
		return succeeded("%d of %d honest attempts were refused", refused, tries), nil
	}
	if _, err := d.signIn(ctx, "anna", "viewer"); err != nil {
		return succeeded("%v", err), nil
	}
	return repelled("none of %d honest attempts was refused", tries), nil
}

// outliveLogout succeeds if a copy of a session still gives access to the dashboard after
// its user has logged out.
func outliveLogout(ctx context.Context, f *Fleet) (Result, error) {
	d := must(f.dashboard(ctx))
	stolen := must(d.signIn(ctx, "vera", "viewer"))
	status, made := must2(d.call(ctx, stolen, "CreateLogin", `{"ttlSeconds":"86400"}`))
	if _, _, _, err := d.ask(ctx, http.MethodPost, "/api/logout", stolen, ""); err != nil {
		return Result{}, err
	}
	if status, _, err := d.call(ctx, stolen, "Whoami", "{}"); err != nil || status == http.StatusOK {
		return succeeded("the session itself: %d, %v", status, err), nil
	}
	var link struct{ Code string }
	if status != http.StatusOK || json.Unmarshal([]byte(made), &link) != nil || link.Code == "" {
		return repelled("no login link: %.60s", made), nil
	}
	status, _, _, err := d.ask(ctx, http.MethodPost, "/api/login", "", fmt.Sprintf(`{"code":%q}`, link.Code))
	check(err)
	if status == http.StatusOK {
		return succeeded("a login link of the session signs in after the logout"), nil
	}
	return repelled("the link is refused with %d", status), nil
}

// unverifiedEmail succeeds if a user of a real provider becomes admin because of an admin's
// email address that the provider has not verified.
func unverifiedEmail(ctx context.Context, f *Fleet) (Result, error) {
	p := must(mockoidc.Run())
	f.later(p.Shutdown)
	secret := must(f.write("secret", p.ClientSecret))
	d, err := f.dashboard(ctx, "--set", "web.oidc.issuer="+p.Issuer(), "--set", "web.oidc.client_id="+p.ClientID, "--set", "web.oidc.client_secret_file="+secret,
		"--set", "web.oidc.claim=email", "--set", "web.oidc.roles=admin=boss@utility.example")
	check(err)
	role := func(verified bool) (string, error) {
		p.QueueUser(&mockoidc.MockUser{Subject: fmt.Sprint(verified), Email: "boss@utility.example", EmailVerified: verified, PreferredUsername: "boss"})
		jar, err := cookiejar.New(nil)
		if err != nil {
			return "", err
		}
		browser := &http.Client{Jar: jar, Timeout: 20 * time.Second}
		r, err := browser.Get("http://" + d.host + "/api/oidc/start")
		if err != nil {
			return "", err
		}
		r.Body.Close()
		at, err := url.Parse("http://" + d.host + "/")
		if err != nil {
			return "", err
		}
		var cookies []string
		for _, c := range jar.Cookies(at) {
			cookies = append(cookies, c.String())
		}
		_, answer, err := d.call(ctx, strings.Join(cookies, "; "), "Whoami", "{}")
		return answer, err
	}
	if who, err := role(true); err != nil || !strings.Contains(who, "admin") {
		return Result{}, fmt.Errorf("a verified address: %s: %w", who, err)
	}
	who := must(role(false))
	if strings.Contains(who, "admin") {
		return succeeded("%s", strings.TrimSpace(who)), nil
	}
	return repelled("%s", strings.TrimSpace(who)), nil
}

// emptyHouse succeeds if lists and pages show a viewer which client reported a finding that an
// empty house causes, or the client's exact scores.
func emptyHouse(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	a := must(s.JoinOne(ctx, "gateway"))
	must(a.Host(ctx, nil, "home-1", "home-2"))
	mae, coverage := 0.123456789, 0.987654321
	if _, err := a.Exchange(ctx, &v1.ExchangeRequest{Reports: []*v1.ClientReport{
		{Client: "home-1", Day: time.Now().Unix()/86400 - 1, Findings: []string{"flat"}, Drift: true, RelativeMae: &mae, Coverage: &coverage},
		{Client: "home-2", Day: time.Now().Unix()/86400 - 1},
	}}); err != nil {
		return Result{}, err
	}
	counts, err := s.Command(ctx, "client", "findings", "--json")
	if err != nil || !strings.Contains(counts, "flat") {
		return Result{}, fmt.Errorf("the finding is not counted: %s: %w", counts, err)
	}
	for _, args := range [][]string{{"client", "list", "--json"}, {"client", "show", "home-1", "--json"}, {"client", "list", "--finding", "flat", "--json"}} {
		text, err := s.Command(ctx, args...)
		if err != nil {
			continue // a flag that no longer exists
		}
		for _, detail := range []string{"flat", "0.123456", "0.987654", "drift"} {
			if strings.Contains(text, detail) {
				return succeeded("%s says %s of home-1", strings.Join(args, " "), detail), nil
			}
		}
	}
	return repelled("findings are counted by fleet and agent"), nil
}

// formulas succeeds if a cell of a CSV file begins like a formula.
func formulas(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	a := must(s.JoinOne(ctx, "=cmd|calc"))
	must(a.Host(ctx, nil, `=HYPERLINK("x")`, "@SUM(1)", "+1+1", "meter"))
	rows := 0
	for _, list := range []string{"client", "fleet"} {
		text := must(s.Command(ctx, list, "list", "--csv"))
		for l := range strings.Lines(text) {
			rows++
			for cell := range strings.SplitSeq(l, ",") {
				if cell = strings.Trim(cell, `" `); cell != "" && strings.ContainsAny(cell[:1], "=+@") {
					return succeeded("%s list --csv: %s", list, strings.TrimSpace(cell)), nil
				}
			}
		}
	}
	if rows < 6 {
		return Result{}, fmt.Errorf("the lists have %d rows", rows)
	}
	return repelled("no cell of %d rows is a formula", rows), nil
}

// takeTopics succeeds if an admin gets no stream of the fleet while a viewer has streams of
// invented runs.
func takeTopics(ctx context.Context, f *Fleet) (Result, error) {
	d := must(f.dashboard(ctx))
	viewer := must(d.signIn(ctx, "vera", "viewer"))
	admin := must(d.signIn(ctx, "adam", "admin"))
	stream := func(cookie, topics string) (string, error) {
		c, err := net.DialTimeout("tcp", d.host, 5*time.Second)
		if err != nil {
			return "", err
		}
		f.later(func() error { c.Close(); return nil })
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			return "", err
		}
		var q bytes.Buffer
		fmt.Fprintf(&q, "GET /api/events?topics=%s HTTP/1.1\r\nHost: %s\r\nCookie: %s\r\n\r\n", topics, d.host, cookie)
		if _, err := c.Write(q.Bytes()); err != nil {
			return "", err
		}
		line, err := bufio.NewReader(c).ReadString('\n')
		return strings.TrimSpace(line), err
	}
	if line, err := stream(admin, "fleet"); err != nil || !strings.Contains(line, "200") {
		return Result{}, fmt.Errorf("before: %s: %w", line, err)
	}
	var last string
	for i := range 24 {
		var topics []string
		for k := range min(8, 1+7*max(0, 9-i)) { // at the end, single streams take the remaining places
			topics = append(topics, fmt.Sprintf("run:none%d-%d", i, k))
		}
		last = must(stream(viewer, strings.Join(topics, ",")))
	}
	line := must(stream(admin, "runs"))
	if !strings.Contains(line, "200") {
		return succeeded("the admin gets %s", line), nil
	}
	return repelled("the viewer gets %s, the admin %s", last, line), nil
}

// plainHTTP succeeds if a page that is requested through an HTTPS proxy does not tell browsers
// to use only HTTPS.
func plainHTTP(ctx context.Context, f *Fleet) (Result, error) {
	d := must(f.dashboard(ctx, "--set", "web.behind_proxy=true"))
	r := must(http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.host+"/", nil))
	r.Host = "loadstar.example.org"
	a := must(d.http.Do(r))
	a.Body.Close()
	if text := a.Header.Get("Strict-Transport-Security"); text != "" {
		return repelled("%s", text), nil
	}
	return succeeded("no Strict-Transport-Security in %s", a.Status), nil
}
