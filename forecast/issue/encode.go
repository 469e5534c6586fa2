package issue

import (
	"errors"
	"fmt"
	"slices"

	"loadstar/forecast/calibrate"
	"loadstar/internal/stateformat"
)

var stateFormat = stateformat.Format{Name: "state of a client's forecasts", Magic: "LODISSUE", Version: 1}

// ErrOtherConfig means that an encoded state belongs to forecasts with another step, with
// other levels or with another fallback. The state can be made anew with a replay.
var ErrOtherConfig = errors.New("the state belongs to other forecasts")

// maxStep limits the steps in a stored state, so that computing with them cannot overflow.
const maxStep = 1 << 30

// AppendBinary appends the encoded state to b.
func (s *State) AppendBinary(b []byte) ([]byte, error) {
	var w stateformat.Writer
	w.Int(s.seconds)
	w.Int(int64(s.fallback.c.Targets))
	w.Float64s(s.c.Levels)
	w.String(string(s.c.Fallback))
	w.Int(int64(s.next))
	w.Int(s.phase)
	w.Bool(s.hasRead)
	w.Bool(s.fedIn)
	for _, t := range []*track{s.fallback, s.own, s.generic} {
		w.Bool(t != nil)
		if t == nil {
			continue
		}
		for _, n := range []int{t.c.Horizon, t.c.Targets, t.first, t.newest} {
			w.Int(int64(n))
		}
		tracker, err := t.AppendBinary(nil)
		if err != nil {
			return nil, err
		}
		w.Bytes(tracker)
	}
	return append(b, stateFormat.Wrap(w.State())...), nil
}

// UnmarshalBinary replaces the state by an encoded one. If that belongs to another
// configuration, the error is ErrOtherConfig. After an error, the state is as it was.
func (s *State) UnmarshalBinary(b []byte) error {
	fresh, err := Decode(s.c, b)
	if err != nil {
		return err
	}
	fresh.work, s.work = s.work, work{}
	*s = *fresh
	return nil
}

// Decode returns an encoded state. If it belongs to another configuration, the error is
// ErrOtherConfig. The state does not keep b.
func Decode(c Config, b []byte) (*State, error) {
	_, b, err := stateFormat.Unwrap(b)
	if err != nil {
		return nil, err
	}
	s, err := newState(c)
	if err != nil {
		return nil, err
	}
	var wrong error
	err = stateFormat.Read(b, func(r *stateformat.Reader) { wrong = s.read(r) })
	if wrong != nil {
		return nil, wrong // it is the reason why fields are left
	}
	return s, err
}

// read reads the fields of a state into a new one, which has no tracks.
func (s *State) read(r *stateformat.Reader) error {
	seconds, targets := r.Int(), r.Int()
	levels, fallback := r.Float64s(), r.String()
	if seconds != s.seconds || targets != int64(s.tracked()) || !slices.Equal(levels, s.c.Levels) || fallback != string(s.c.Fallback) {
		return fmt.Errorf("%w: steps of %d s and levels %v with fallback %s, want %d s and %v with %s", ErrOtherConfig, seconds, levels, fallback, s.seconds, s.c.Levels, string(s.c.Fallback))
	}
	s.next, s.phase = int(r.Int()), r.Int()
	s.hasRead, s.fedIn = r.Bool(), r.Bool()
	valid := s.next >= 0 && s.next < maxStep && s.phase >= 0 && s.phase < s.seconds
	for i, to := range []**track{&s.fallback, &s.own, &s.generic} {
		if !r.Bool() {
			valid = valid && i > 0
			continue
		}
		first, n := r.Int(), r.Int()
		oldest, newest := r.Int(), r.Int()
		tracker := r.View()
		if first < 1 || n < 1 || first > int64(maxDays*s.perDay) || n > int64(maxDays*s.perDay) ||
			oldest < -1 || newest < oldest || newest >= int64(s.next) || (oldest < 0) != (newest < 0) {
			valid = false
		}
		if !valid || i == 0 && (first != 1 || n != targets) {
			return stateFormat.Damaged("a step or a count in it is impossible")
		}
		c := s.trackConfig(int(first), int(n), i > 0)
		t, err := calibrate.Decode(c, tracker)
		if err != nil {
			return err
		}
		*to = &track{Tracker: t, c: c, first: int(oldest), newest: int(newest)}
	}
	if !valid {
		return stateFormat.Damaged("a step or a count in it is impossible")
	}
	return nil
}
