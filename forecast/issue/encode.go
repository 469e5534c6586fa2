package issue

import (
	"errors"
	"fmt"
	"slices"

	"loadstar/forecast/calibrate"
	"loadstar/internal/stateformat"
)

var stateFormat = stateformat.Format{Name: "state of a client's forecasts", Magic: "LODISSUE", Version: 1}

// ErrOtherConfig means that an encoded state belongs to forecasts with a different step, different
// levels, a different fallback or another number of tracked steps, or that only one of the two
// states is of a sum. A replay can create a new state.
var ErrOtherConfig = errors.New("the state belongs to other forecasts")

// maxStep limits the steps in a stored state, so that computations with them cannot overflow.
const maxStep = 1 << 30

// AppendBinary appends the encoded state to b.
func (s *State) AppendBinary(b []byte) ([]byte, error) {
	var w stateformat.Writer
	w.Int(s.seconds)
	w.Int(int64(s.fallback.c.Targets))
	w.Float64s(s.c.Levels)
	w.String(string(s.c.Fallback))
	w.Bool(s.group)
	w.Int(int64(s.next))
	w.Int(s.phase)
	w.Bool(s.hasRead)
	w.Bool(s.fedIn)
	for _, t := range []*track{s.fallback, s.own, s.generic} {
		w.Bool(t != nil)
		if t == nil {
			continue
		}
		w.Int(int64(t.c.Horizon))
		w.Int(int64(t.c.Targets))
		if err := t.write(&w); err != nil {
			return nil, err
		}
	}
	for _, t := range append(s.byDay[:len(s.byDay):len(s.byDay)], s.peaks) {
		if err := t.write(&w); err != nil {
			return nil, err
		}
	}
	return append(b, stateFormat.Wrap(w.State())...), nil
}

func (t *track) write(w *stateformat.Writer) error {
	w.Int(int64(t.first))
	w.Int(int64(t.newest))
	tracker, err := t.AppendBinary(nil)
	w.Bytes(tracker)
	return err
}

// readTrack reads a track whose steps are before next.
func readTrack(r *stateformat.Reader, c calibrate.Config, next int) (*track, error) {
	oldest, newest := r.Int(), r.Int()
	tracker := r.View()
	if oldest < -1 || newest < oldest || newest >= int64(next) || (oldest < 0) != (newest < 0) {
		return nil, stateFormat.Damaged("a step or a count in it is impossible")
	}
	t, err := calibrate.Decode(c, tracker)
	if err != nil {
		return nil, err
	}
	return &track{Tracker: t, c: c, first: int(oldest), newest: int(newest)}, nil
}

// UnmarshalBinary replaces the state with an encoded one. If the encoded state belongs to a
// different configuration, the error is ErrOtherConfig. After an error, the state is unchanged.
func (s *State) UnmarshalBinary(b []byte) error {
	fresh, err := decode(s.c, s.group, b)
	if err != nil {
		return err
	}
	fresh.work, s.work = s.work, work{}
	*s = *fresh
	return nil
}

// Decode returns the decoded state. If the state belongs to a different configuration, the
// error is ErrOtherConfig. The state does not retain b.
func Decode(c Config, b []byte) (*State, error) { return decode(c, false, b) }

func decode(c Config, group bool, b []byte) (*State, error) {
	_, b, err := stateFormat.Unwrap(b)
	if err != nil {
		return nil, err
	}
	s, err := newState(c)
	if err != nil {
		return nil, err
	}
	s.group = group
	var wrong error
	err = stateFormat.Read(b, func(r *stateformat.Reader) { wrong = s.read(r) })
	if wrong != nil {
		return nil, wrong // this error is the reason why fields remain
	}
	return s, err
}

// read reads the fields of a state into a new state, which has no tracks.
func (s *State) read(r *stateformat.Reader) error {
	seconds, targets := r.Int(), r.Int()
	levels, fallback, group := r.Float64s(), r.String(), r.Bool()
	if seconds != s.seconds || group != s.group || targets != int64(s.tracked()) || !slices.Equal(levels, s.c.Levels) || fallback != string(s.c.Fallback) {
		return fmt.Errorf("%w: steps of %d s and levels %v with fallback %s, want %d s and %v with %s", ErrOtherConfig, seconds, levels, fallback, s.seconds, s.c.Levels, string(s.c.Fallback))
	}
	s.next, s.phase = int(r.Int()), r.Int()
	s.hasRead, s.fedIn = r.Bool(), r.Bool()
	if s.next < 0 || s.next >= maxStep || s.phase < 0 || s.phase >= s.seconds {
		return stateFormat.Damaged("a step or a count in it is impossible")
	}
	for i, to := range []**track{&s.fallback, &s.own, &s.generic} {
		has := r.Bool()
		if !has && i > 0 {
			continue
		}
		first, n := r.Int(), r.Int()
		if !has || first < 1 || n < 1 || first > int64(maxDays*s.perDay) || n > int64(maxDays*s.perDay) || i == 0 && (first != 1 || n != targets) {
			return stateFormat.Damaged("a step or a count in it is impossible")
		}
		t, err := readTrack(r, s.trackConfig(int(first), int(n), i > 0), s.next)
		if err != nil {
			return err
		}
		*to = t
	}
	for range s.perDay / s.fallback.Every() {
		t, err := readTrack(r, s.energyConfig(), s.next/s.perDay+2)
		if err != nil {
			return err
		}
		s.byDay = append(s.byDay, t)
	}
	t, err := readTrack(r, s.peakConfig(), s.next)
	s.peaks = t
	return err
}
