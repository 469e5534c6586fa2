package web

import (
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"
)

const (
	// messageEvery is the minimum time between messages, so that a viewer gets at most four a
	// second.
	messageEvery = 250 * time.Millisecond
	commentEvery = 15 * time.Second
	sessionEvery = 10 * time.Second
	// sendFor is the time limit for a viewer to receive messages.
	sendFor = 20 * time.Second
	retryMs = 2000
)

// events sends the states of topics as they change, until the session ends.
func (w *Web) events(rw http.ResponseWriter, r *http.Request) {
	caller, cookie, err := w.session(r)
	if err != nil {
		w.fail(rw, err)
		return
	}
	names, err := parseTopics(r.URL.Query().Get("topics"))
	if err != nil {
		refuse(rw, http.StatusBadRequest, "invalid_argument", err.Error())
		return
	}
	v, err := w.hub.join(r.Context(), caller.Name, cookie, names)
	if connect.CodeOf(err) == connect.CodeNotFound {
		refuse(rw, http.StatusNotFound, "not_found", sentenceOf(err))
		return
	}
	if err != nil {
		rw.Header().Set("Retry-After", "10")
		refuse(rw, http.StatusServiceUnavailable, "resource_exhausted", err.Error())
		return
	}
	defer w.hub.leave(v)
	h := rw.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // a proxy must not hold events back
	s := &stream{w: w, rw: rw, control: http.NewResponseController(rw)}
	// Otherwise, reading would time out, as if the request had not ended.
	_ = s.control.SetReadDeadline(time.Time{}) // if this fails, the stream ends early and the browser reconnects
	if s.send("retry: %d\n\n", retryMs) != nil {
		return
	}
	number := w.hub.resumed(r.Header.Get("Last-Event-ID"))
	checked, commented := time.Now(), time.Now()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var quietUntil time.Time // earliest time of the next message
	for {
		if now := time.Now(); !now.Before(quietUntil) {
			states := w.hub.since(v, number)
			for _, x := range states {
				if s.send("%sid: %s-%d\n\n", x.body, w.hub.epoch, x.number) != nil {
					return
				}
				number = x.number
			}
			quietUntil = now.Add(time.Duration(len(states)) * messageEvery)
		}
		changed := v.changed
		var rested <-chan time.Time
		if left := time.Until(quietUntil); left > 0 {
			changed, rested = nil, time.After(left)
		}
		select {
		case <-changed:
		case <-rested:
		case <-tick.C:
		case <-v.ended:
			return
		case <-w.hub.ctx.Done():
			return
		case <-r.Context().Done():
			return
		}
		now := time.Now()
		if now.Sub(checked) >= sessionEvery || !now.Before(caller.Expires) {
			// If the session cannot be checked, end the stream as well. The browser
			// reconnects.
			if caller, err = w.check(r.Context(), cookie); err != nil {
				return
			}
			checked = now
		}
		if now.Sub(commented) >= commentEvery {
			if s.send(":\n\n") != nil {
				return
			}
			commented = now
		}
	}
}

// stream writes to a viewer.
type stream struct {
	w       *Web
	rw      http.ResponseWriter
	control *http.ResponseController
}

// send writes and flushes a string. It fails if the viewer does not read it in time.
func (s *stream) send(format string, args ...any) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(sendFor)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(s.rw, format, args...); err != nil {
		return err
	}
	return s.control.Flush()
}
