package mqtt

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"loadstar/agent/readings"
)

// Message is a message that arrived at a topic.
type Message struct {
	Topic   string
	Payload []byte
	// Arrived is the time of arrival, or zero if the clock is wrong.
	Arrived time.Time
	// Retained means that the broker sent a stored message on subscription. Late means
	// that the message was published before the connection or is a repetition. In both cases,
	// the value is older than its arrival.
	Retained, Late bool
}

// Outcome is the result of handling a message.
type Outcome string

const (
	Taken        Outcome = "taken"         // the message led to samples
	NoValue      Outcome = "no-value"      // the message lacks the field of the value
	Unavailable  Outcome = "unavailable"   // the value is not known at the moment
	Undated      Outcome = "undated"       // the message has no time, and its arrival is not the value's time
	Malformed    Outcome = "malformed"     // the message is not in the expected format
	TooLarge     Outcome = "too-large"     // the message is larger than any message of a meter
	UnknownTopic Outcome = "unknown-topic" // no client has that topic
	Clock        Outcome = "clock"         // the message has no time, and the clock is wrong
)

// Decoder turns messages into samples.
type Decoder struct {
	mu      sync.Mutex // guards the sources' state
	sources map[string][]*source
}

// NewDecoder checks the sources. Several clients may share a topic.
func NewDecoder(sources []Source) (*Decoder, error) {
	d := &Decoder{sources: map[string][]*source{}}
	if len(sources) > maxSources {
		return nil, errors.New("there are more than 1024 sources; use several agents")
	}
	var problems []error
	for i := range sources {
		s, err := sources[i].compile()
		if err != nil {
			problems = append(problems, err)
			continue
		}
		d.sources[sources[i].Topic] = append(d.sources[sources[i].Topic], s)
	}
	return d, errors.Join(problems...)
}

// Decode returns a message's samples, at most one for each client of its topic. If there is no
// sample, the outcome states the reason.
func (d *Decoder) Decode(m Message) ([]readings.Sample, Outcome) {
	sources := d.sources[m.Topic]
	switch {
	case len(sources) == 0:
		return nil, UnknownTopic
	case len(m.Payload) > maxPayload:
		return nil, TooLarge
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var doc any
	parsed := false
	var samples []readings.Sample
	first := Outcome("") // the outcome of the first source without a sample
	for _, s := range sources {
		if !s.bare && !parsed {
			var ok bool
			if doc, ok = parse(m.Payload); !ok {
				return nil, Malformed
			}
			parsed = true
		}
		sample, outcome := s.decode(m, doc)
		if outcome == Taken {
			samples = append(samples, sample)
		} else if first == "" {
			first = outcome
		}
	}
	if len(samples) > 0 {
		return samples, Taken
	}
	return nil, first
}

func (s *source) decode(m Message, doc any) (sample readings.Sample, outcome Outcome) {
	var f field
	var value float64
	if s.bare {
		f = s.fields[0]
		if len(m.Payload) > 64 {
			return sample, Malformed
		}
		value, outcome = number(string(bytes.TrimSpace(m.Payload)))
	} else {
		f, value, outcome = s.find(doc)
	}
	if outcome != Taken {
		return sample, outcome
	}
	value *= f.scale
	if math.Abs(value) > 1e12 {
		return sample, Malformed
	}
	sample = readings.Sample{Client: s.client, Value: value, Kind: f.kind}
	if f.kind == readings.Power && m.Retained {
		return sample, Undated // an old value says nothing about the current power
	}
	switch at, state := s.at(doc); {
	case state == Taken:
		sample.At = at
	case state == Malformed:
		return sample, Malformed
	case m.Retained || m.Late || f.kind == readings.Interval:
		return sample, Undated
	case m.Arrived.IsZero():
		return sample, Clock
	default:
		sample.At = m.Arrived
	}
	return sample, Taken
}

// find returns the value of the first field that exists in a document.
func (s *source) find(doc any) (field, float64, Outcome) {
	if _, ok := doc.(map[string]any); !ok && len(s.fields[0].path) > 0 {
		if _, ok := doc.([]any); !ok {
			return field{}, 0, Malformed
		}
	}
	doc = lookup(doc, s.inside)
	for i, f := range s.fields {
		x := lookup(doc, f.path)
		if x == nil {
			continue // absent or null does not mean zero
		}
		if f.kind != readings.Counter && s.counter && i > 0 {
			return f, 0, NoValue
		}
		v, outcome := s.value(f, x)
		if outcome == Taken && f.kind == readings.Counter {
			s.counter = true
		}
		return f, v, outcome
	}
	return field{}, 0, NoValue
}

func (s *source) value(f field, x any) (float64, Outcome) {
	switch x := x.(type) {
	case float64:
		return x, Taken
	case string:
		return number(x)
	case []any:
		if !f.sum || len(x) == 0 {
			return 0, Malformed
		}
		total := 0.0
		for _, e := range x {
			v, ok := e.(float64)
			if !ok {
				return 0, Malformed
			}
			total += v
		}
		return total, Taken
	}
	return 0, Malformed
}

// at returns the time of a document, or NoValue if it has none.
func (s *source) at(doc any) (time.Time, Outcome) {
	if s.time == nil {
		return time.Time{}, NoValue
	}
	switch x := lookup(doc, s.time).(type) {
	case nil:
		return time.Time{}, NoValue
	case float64:
		return epoch(x)
	case string:
		if v, outcome := number(x); outcome == Taken {
			return epoch(v)
		}
		for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05Z07:00", "2006-01-02T15:04:05Z0700"} {
			if t, err := time.Parse(layout, x); err == nil && t.Before(earliest) {
				return time.Time{}, NoValue
			} else if err == nil {
				return t, Taken
			}
		}
		if s.naive {
			return time.Time{}, NoValue
		}
	}
	return time.Time{}, Malformed
}

// earliest is the first plausible time. A device whose clock is not set reports a time
// near 1970.
var earliest = time.Date(2015, 1, 1, 0, 0, 0, 0, time.UTC)

// epoch reads seconds, milliseconds or microseconds since 1970. Their ranges of
// plausible times do not overlap.
func epoch(v float64) (time.Time, Outcome) {
	switch {
	case !(v >= 0 && v < 1e16):
		return time.Time{}, Malformed
	case v < 1e11:
		v *= 1e6
	case v < 1e14:
		v *= 1e3
	}
	t := time.UnixMicro(int64(v)).UTC()
	if t.Before(earliest) {
		return time.Time{}, NoValue
	}
	return t, Taken
}

// number reads a decimal number, or a word that represents an unknown value.
func number(text string) (float64, Outcome) {
	switch strings.ToLower(text) {
	case "unknown", "unavailable", "none", "null", "nan", "":
		return 0, Unavailable
	}
	if strings.Trim(text, "+-.0123456789eE") != "" || len(text) > 40 {
		return 0, Malformed
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(v, 0) {
		return 0, Malformed
	}
	return v, Taken
}

// parse reads a JSON document of limited depth.
func parse(data []byte) (any, bool) {
	depth, inString := 0, false
	for i := 0; i < len(data); i++ {
		switch b := data[i]; {
		case inString && b == '\\':
			i++
		case b == '"':
			inString = !inString
		case inString:
		case b == '{' || b == '[':
			if depth++; depth > maxDepth {
				return nil, false
			}
		case b == '}' || b == ']':
			depth--
		}
	}
	var doc any
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, false
	}
	return doc, true
}

// lookup returns the value at a path, or nil.
func lookup(doc any, path []string) any {
	for _, key := range path {
		switch x := doc.(type) {
		case map[string]any:
			doc = x[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(x) {
				return nil
			}
			doc = x[i]
		default:
			return nil
		}
	}
	return doc
}
