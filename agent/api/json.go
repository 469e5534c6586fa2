package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// object is a JSON object whose members keep their order.
type object []member

type member struct {
	name  string
	value any
}

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(m.name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// number is a JSON number with the digits of a float32, or null if it is not finite.
type number float64

// MarshalJSON implements json.Marshaler.
func (n number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return []byte(n.text()), nil
}

// text is empty for a number that is not finite.
func (n number) text() string {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return ""
	}
	if math.Abs(float64(n)) < 1e-7 { // nobody needs less than a milliwatt
		return "0"
	}
	return strconv.FormatFloat(float64(n), 'f', -1, 32)
}

// text is a string, or null if it is empty.
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

// levelName names a quantile by percent, such as P10 or P2.5.
func levelName(level float64) string {
	return "P" + strconv.FormatFloat(math.Round(level*1e6)/1e4, 'f', -1, 64)
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

// send answers with JSON that must not be cached.
func send(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(value) // the client has gone
}

// answer answers with data that may be cached for some seconds, or says that the client has
// it already. The ETag is strong: a hash of the data.
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
		_, _ = w.Write(data) // the client has gone
	}
}

// answerJSON is like answer, until the next issue.
func (s *Server) answerJSON(w http.ResponseWriter, r *http.Request, value any) {
	data, err := json.Marshal(value)
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
