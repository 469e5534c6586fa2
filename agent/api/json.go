package api

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"loadstar/forecast/issue"
)

// object is a JSON object whose members keep their order.
type object []member

type member struct {
	name  string
	value any
}

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) { return appendJSON(nil, o) }

// appendJSON appends a value as JSON. Package json would check and copy a forecast's columns at
// every level of a response. On a small gateway, these copies take most of a request's time.
func appendJSON(b []byte, value any) ([]byte, error) {
	switch v := value.(type) {
	case object:
		b = append(b, '{')
		for i, m := range v {
			if i > 0 {
				b = append(b, ',')
			}
			var err error
			if b, err = appendJSON(b, m.name); err != nil {
				return nil, err
			}
			if b, err = appendJSON(append(b, ':'), m.value); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	case []number:
		return appendList(b, v, func(b []byte, n number) []byte { return n.appendTo(b) }), nil
	case []plain:
		return appendList(b, v, func(b []byte, t plain) []byte { return t.appendTo(b) }), nil
	case number:
		return v.appendTo(b), nil
	}
	data, err := json.Marshal(value)
	return append(b, data...), err
}

func appendList[T any](b []byte, list []T, add func([]byte, T) []byte) []byte {
	b = append(b, '[')
	for i, x := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = add(b, x)
	}
	return append(b, ']')
}

// plain is a string that needs no escaping in JSON, or null if it is empty.
type plain string

func (t plain) appendTo(b []byte) []byte {
	if t == "" {
		return append(b, "null"...)
	}
	return append(append(append(b, '"'), t...), '"')
}

// number is a JSON number with the digits of a float32, or null if it is not finite.
type number float64

// MarshalJSON implements json.Marshaler.
func (n number) MarshalJSON() ([]byte, error) { return n.appendTo(nil), nil }

func (n number) appendTo(b []byte) []byte {
	before := len(b)
	if b = issue.AppendNumber(b, float64(n)); len(b) == before {
		b = append(b, "null"...)
	}
	return b
}

// text is a JSON string, or null if it is empty.
type text string

// MarshalJSON implements json.Marshaler.
func (t text) MarshalJSON() ([]byte, error) {
	if t == "" {
		return []byte("null"), nil
	}
	return json.Marshal(string(t))
}

// instant is a time in UTC, or null if it is 0.
type instant int64

// MarshalJSON implements json.Marshaler.
func (t instant) MarshalJSON() ([]byte, error) {
	if t == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(time.Unix(int64(t), 0).UTC().Format(time.RFC3339))
}

// period writes a length of time as ISO 8601, such as PT15M.
func period(d time.Duration) string {
	text := "PT"
	if h := d / time.Hour; h > 0 {
		text += fmt.Sprintf("%dH", h)
	}
	if m := d % time.Hour / time.Minute; m > 0 {
		text += fmt.Sprintf("%dM", m)
	}
	if s := d % time.Minute / time.Second; s > 0 || text == "PT" {
		text += fmt.Sprintf("%dS", s)
	}
	return text
}

// send responds with JSON that must not be cached.
func send(w http.ResponseWriter, value any) { sendCode(w, http.StatusOK, value) }

func sendCode(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value) // the client has disconnected
}

// answer sends data that may be cached for the given number of seconds, or status 304 if the
// client already has it. The ETag is a hash of the data.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, kind string, data []byte, seconds int) {
	sum := sha256.Sum256(append([]byte(kind), data...))
	tag := `"` + base64.RawURLEncoding.EncodeToString(sum[:15]) + `"`
	h := w.Header()
	h.Set("ETag", tag)
	h.Set("Cache-Control", fmt.Sprintf("private, max-age=%d", max(seconds, 0)))
	h.Set("Vary", "Authorization")
	for part := range strings.SplitSeq(r.Header.Get("If-None-Match"), ",") {
		if part = strings.TrimPrefix(strings.TrimSpace(part), "W/"); part == tag || part == "*" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(len(data)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(data) // the client has disconnected
	}
}

// answerJSON is like answer, for JSON that may be cached until the next issue.
func (s *Server) answerJSON(w http.ResponseWriter, r *http.Request, value object) {
	data, err := appendJSON(make([]byte, 0, 16<<10), value)
	if err != nil {
		s.fail(w, err)
		return
	}
	s.answer(w, r, "application/json", append(data, '\n'), s.untilNext())
}

// untilNext returns the seconds until the next issue, at most an hour.
func (s *Server) untilNext() int {
	next := s.c.Service.NextIssue()
	if next.IsZero() {
		return 0
	}
	return int(min(max(next.Sub(s.c.Now()), 0), time.Hour) / time.Second)
}
