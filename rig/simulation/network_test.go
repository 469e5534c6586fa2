package simulation

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/gateway"
	"loadstar/server/pki"
)

// link is the network between one part and the gateways of a site.
type link struct {
	to       *site
	p        *part
	identity string // of the caller in its certificate
}

var _ http.RoundTripper = (*link)(nil)

// door is a running gateway.
type door struct {
	*part
	gateway *gateway.Gateway
	handler http.Handler
}

func (l *link) RoundTrip(q *http.Request) (*http.Response, error) {
	var body []byte
	if q.Body != nil {
		var err error
		body, err = io.ReadAll(q.Body)
		if err != nil {
			return nil, err
		}
		q.Body.Close()
	}
	path := q.URL.Path[strings.LastIndex(q.URL.Path, "/")+1:]
	if path == "Exchange" && l.to.w.impatient {
		body = withoutWaiting(body)
	}
	told := body
	if l.to.w.private != nil {
		if path == "Exchange" {
			l.to.w.checkMasked(l.identity, body)
		}
		told = withoutDraws(path, body)
	}
	sum := sha256.Sum256(append(told, q.Header.Get("Range")...))
	name := fmt.Sprintf("%.12s %x", path, sum[:3])
	v, err := l.p.wait(q.Context(), "request "+name, nil)
	if err != nil {
		return nil, err
	}
	d := l.to.open(l.p.s, name)
	if v == refuse || d == nil || l.away() {
		return nil, errAway
	}
	if v == repeat { // an earlier attempt, which arrives as well
		if _, err := l.serve(d, q, body, name+" again"); err != nil {
			return nil, err
		}
	}
	began, restores := time.Now(), l.to.restores()
	r, err := l.serve(d, q, body, name)
	if err != nil {
		return nil, err
	}
	if v, err := l.p.wait(q.Context(), "response "+name, nil); err != nil {
		return nil, err
	} else if v == refuse || l.away() {
		return nil, io.ErrUnexpectedEOF
	}
	l.checkRevoked(path, began, r)
	if restores == l.to.restores() { // a restored server does not know the answers of the lost one
		l.hear(path, body, r)
	}
	answer := r.Result()
	answer.Request = q
	return answer, nil
}

// withoutWaiting changes a call so that the gateway must respond at once.
func withoutWaiting(body []byte) []byte {
	var m v1.ExchangeRequest
	if proto.Unmarshal(body, &m) != nil {
		return body
	}
	m.WaitMs = 0
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&m)
	if err != nil {
		return body
	}
	return b
}

// away reports whether the caller is cut off.
func (l *link) away() bool {
	l.p.s.mu.Lock()
	defer l.p.s.mu.Unlock()
	return time.Now().Before(l.p.cut)
}

// open returns one of the running gateways, or nil.
func (at *site) open(s *schedule, name string) *door {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*door
	for _, d := range at.doors {
		if !d.dead && d.ctx.Err() == nil {
			all = append(all, d)
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *door) int { return strings.Compare(a.name, b.name) })
	return all[s.stream("door", name, time.Since(s.start)).IntN(len(all))]
}

// serve makes a gateway serve a call. If the caller gives up, the call's context ends.
func (l *link) serve(d *door, q *http.Request, body []byte, name string) (*httptest.ResponseRecorder, error) {
	ctx, cancel := context.WithCancel(context.WithValue(pki.With(d.ctx, pki.Identity{Role: pki.Agent, ID: l.identity}), callKey{}, l.identity+" "+name))
	defer context.AfterFunc(q.Context(), cancel)()
	r := httptest.NewRequestWithContext(ctx, q.Method, q.URL.String(), bytes.NewReader(body))
	r.Header = q.Header.Clone()
	answer, done := httptest.NewRecorder(), make(chan struct{})
	s, cut := l.p.s, make(chan struct{})
	s.mu.Lock()
	if d.dead || d.ctx.Err() != nil {
		s.mu.Unlock()
		cancel()
		return nil, errAway
	}
	d.wg.Add(1) // under the lock, because kill waits for the group
	key := fmt.Sprint(l.identity, " ", name, " ", d.name)
	l.to.w.served[key] = sync.OnceFunc(func() { close(cut) })
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(l.to.w.served, key)
	}()
	go func() {
		defer d.wg.Done()
		defer cancel()
		d.handler.ServeHTTP(answer, r)
		close(done)
	}()
	select {
	case <-done:
	case <-cut:
		cancel()
		return nil, io.ErrUnexpectedEOF
	case <-q.Context().Done():
		return nil, q.Context().Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.dead {
		return nil, io.ErrUnexpectedEOF
	}
	return answer, nil
}

// revokedWithin is how long a gateway may still serve an agent after its revocation.
const revokedWithin = 2 * time.Second

// checkRevoked checks that revoked agents are not served.
func (l *link) checkRevoked(path string, began time.Time, answer *httptest.ResponseRecorder) {
	h := l.to.w.host(l.identity)
	if h == nil || h.revoked.IsZero() || answer.Code != http.StatusOK {
		return
	}
	if after := began.Sub(h.revoked); after > revokedWithin {
		l.to.w.violate("%s is served %v after its revocation: %s", l.identity, after, path)
	}
}

// hear records the verdicts that an agent receives.
func (l *link) hear(path string, body []byte, answer *httptest.ResponseRecorder) {
	if answer.Code != http.StatusOK || answer.Header().Get("Content-Encoding") != "" {
		return
	}
	if path != "Exchange" {
		return
	}
	var q v1.ExchangeRequest
	var r v1.ExchangeResponse
	if proto.Unmarshal(body, &q) != nil || proto.Unmarshal(answer.Body.Bytes(), &r) != nil {
		return
	}
	for _, t := range r.Tasks {
		l.to.given(t.Round, t.Clients)
	}
	for _, v := range r.Verdicts {
		l.to.heard(v.Outcome, v.Round, v.Clients)
	}
	if h := l.to.w.host(l.identity); h != nil {
		l.p.s.mu.Lock()
		h.busy = len(q.Training)+len(q.Pushed)+len(r.Tasks) > 0 || q.Result != nil
		l.p.s.mu.Unlock()
	}
	if q.Result == nil || r.GetReceived().GetOutcome() == v1.Outcome_OUTCOME_CLOSED {
		return // the turn of one client is closed, and the agent will ask which one
	}
	var clients []string
	for _, s := range q.Result.Shares {
		clients = append(clients, s.Client)
	}
	l.to.heard(r.GetReceived().GetOutcome(), q.Result.Round, clients)
}
