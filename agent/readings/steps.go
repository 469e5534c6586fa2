package readings

import (
	"math"
	"time"

	"loadstar/internal/stateformat"
	"loadstar/series/store"
)

// Rules for converting samples to steps.
const (
	enough    = 0.9 // share of a step that must be measured for the quality OK
	half      = 0.5 // share of a step that must be covered for the quality Estimated
	counterKW = 0.001
	// A counter that falls and stays low for this time was reset. A broker that repeats a
	// message after a newer one also makes the counter seem to fall, but only for a moment.
	resetAfter = 2 * time.Minute
	// gapLimit is the longest pause of a counter that the agent fills with the mean power.
	gapLimit = time.Hour + 5*time.Minute
	// A power sample applies for shortHold or for three usual pauses, whichever is longer, but
	// at most for longHold.
	shortHold = 5 * time.Minute
	longHold  = time.Hour
	// negligible is the largest feed-in in kW that counts as zero for a client without feed-in.
	// Sensors are not exact.
	negligible = 0.02
)

// track turns the samples of one client into steps. It is stored with the readings, so a
// crash neither loses a step nor counts it twice. Times are in Unix
// milliseconds.
type track struct {
	kind  Kind
	any   bool    // there was a sample
	since int64   // time of the last sample
	value float64 // value of the last sample
	upTo  int64   // energy is counted up to this time
	pause float64 // usual time between samples, in milliseconds
	// The first sample after a counter has fallen.
	fallen    bool
	fallAt    int64
	fallValue float64
	// The current step, with its energy in kW·ms and its measured and estimated durations
	// in ms.
	step                        int64
	energy, measured, estimated float64
	reset                       bool
}

var trackFormat = stateformat.Format{Name: "sample state", Magic: "LSSAMPLE", Version: 1}

func (k *track) encode() []byte {
	var w stateformat.Writer
	w.Int(int64(k.kind))
	w.Bool(k.any)
	w.Int(k.since)
	w.Float64(k.value)
	w.Int(k.upTo)
	w.Float64(k.pause)
	w.Bool(k.fallen)
	w.Int(k.fallAt)
	w.Float64(k.fallValue)
	w.Int(k.step)
	w.Float64(k.energy)
	w.Float64(k.measured)
	w.Float64(k.estimated)
	w.Bool(k.reset)
	return trackFormat.Wrap(w.State())
}

func decodeTrack(b []byte) (k track, err error) {
	_, state, err := trackFormat.Unwrap(b)
	if err != nil {
		return k, err
	}
	r := stateformat.NewReader(state)
	k.kind = Kind(r.Int())
	k.any = r.Bool()
	k.since = r.Int()
	k.value = r.Float64()
	k.upTo = r.Int()
	k.pause = r.Float64()
	k.fallen = r.Bool()
	k.fallAt = r.Int()
	k.fallValue = r.Float64()
	k.step = r.Int()
	k.energy = r.Float64()
	k.measured = r.Float64()
	k.estimated = r.Float64()
	k.reset = r.Bool()
	return k, r.Done()
}

// judge contains the rules that a track needs to complete steps.
type judge struct {
	interval int64 // ms
	client   string
	net      bool
	out      *[]store.Reading
}

// quality returns the quality of a measured value. The bound is checked when the value is stored.
func (j *judge) quality(kw float64, q store.Quality) (float64, store.Quality) {
	switch {
	case kw < 0 && !j.net && kw > -negligible:
		return 0, q
	case kw < 0 && !j.net:
		return kw, store.Bad
	}
	return kw, q
}

// add takes a sample and appends the steps that it completes. It reports whether the sample
// was used.
func (k *track) add(j *judge, s Sample) bool {
	at := s.At.UnixMilli()
	if k.any && s.Kind != k.kind {
		if k.kind == Counter && at-k.since < gapLimit.Milliseconds() {
			return false // a meter sends both, and its counter is exact
		}
		k.move(j, at)
		*k = track{}
	}
	if !k.any {
		*k = track{kind: s.Kind, any: true, since: at, value: s.Value, upTo: at, step: floor(at, j.interval)}
		return true
	}
	if at <= k.since {
		return false // the sample was already counted, or is too late to be counted
	}
	if k.kind == Power {
		k.hold(j, at)
		k.setPause(at)
		k.since, k.value, k.upTo = at, s.Value, max(at, k.upTo)
		return true
	}
	return k.count(j, at, s.Value)
}

// count takes a sample of a counter.
func (k *track) count(j *judge, at int64, value float64) bool {
	if value < k.value-counterKW {
		if !k.fallen || value < k.fallValue {
			k.fallen, k.fallAt, k.fallValue = true, at, value
			return true
		}
		if at-k.fallAt < resetAfter.Milliseconds() {
			return true
		}
		k.reset = true
		k.move(j, k.fallAt)
		k.reset = true
		k.since, k.value, k.upTo = k.fallAt, k.fallValue, k.fallAt
	}
	k.fallen = false
	value = max(value, k.value) // a rounded counter may decrease a little
	switch pause := at - k.since; {
	case pause*2 <= j.interval*3:
		k.spread(j, at, (value-k.value)/float64(pause)*3.6e6, &k.measured)
	case pause <= max(gapLimit.Milliseconds(), j.interval*3/2):
		k.spread(j, at, (value-k.value)/float64(pause)*3.6e6, &k.estimated)
	default:
		k.move(j, at)
	}
	k.since, k.value, k.upTo = at, value, at
	return true
}

// hold counts the last power sample up to the time to, but no longer than the sample applies.
func (k *track) hold(j *judge, to int64) {
	hold := max(float64(shortHold.Milliseconds()), min(3*k.pause, float64(longHold.Milliseconds())))
	if end := min(to, k.since+int64(hold)); end > k.upTo {
		k.spread(j, end, k.value, &k.measured)
	}
	k.move(j, to)
}

// setPause learns the usual time between samples.
func (k *track) setPause(at int64) {
	pause := min(float64(at-k.since), float64(longHold.Milliseconds()))
	if k.pause == 0 {
		k.pause = pause
	} else {
		k.pause += float64(0.1 * (pause - k.pause))
	}
}

// spread counts power up to the time to, step by step. kind selects the part of a step to which
// the power is added.
func (k *track) spread(j *judge, to int64, kw float64, kind *float64) {
	k.upTo = max(k.upTo, min(k.step, to)) // everything before the current step is complete
	for k.upTo < to {
		k.move(j, k.upTo)
		end := min(to, k.step+j.interval)
		length := float64(end - k.upTo)
		k.energy += float64(kw * length)
		*kind += length
		k.upTo = end
	}
	k.move(j, to)
}

// move advances to the step that contains a time. It completes the previous step.
func (k *track) move(j *judge, to int64) {
	step := floor(to, j.interval)
	if step <= k.step {
		return
	}
	covered := k.measured + k.estimated
	length := float64(j.interval)
	quality := store.Missing
	switch {
	case k.measured >= enough*length:
		quality = store.OK
	case covered >= enough*length, covered >= half*length && !k.reset:
		quality = store.Estimated
	}
	if quality != store.Missing {
		kw, quality := j.quality(k.energy/covered, quality)
		*j.out = append(*j.out, store.Reading{Client: j.client, Time: k.step / 1000, KW: float32(kw), Quality: quality})
	}
	k.step, k.energy, k.measured, k.estimated, k.reset = step, 0, 0, 0, false
}

// tick completes a step that has ended, if this is possible without waiting for the next
// sample. It reports whether the track changed.
func (k *track) tick(j *judge, now int64) bool {
	end := k.step + j.interval
	const late = 5000 // ms allowed for samples on their way
	if !k.any || now < end+late || k.measured+k.estimated == 0 && k.kind != Power {
		return false
	}
	switch k.kind {
	case Power:
		if k.upTo >= end || k.measured == 0 && now > k.since+longHold.Milliseconds() {
			return false // nothing to complete
		}
		k.hold(j, floor(now-late, j.interval))
		k.upTo = max(k.upTo, k.step)
		return true
	case Counter:
		if now-k.since <= max(gapLimit.Milliseconds(), j.interval*3/2) {
			return false // the next sample completes it
		}
		k.move(j, now)
		return true
	}
	return false
}

func floor(ms, interval int64) int64 {
	n := ms % interval
	if n < 0 {
		n += interval
	}
	return ms - n
}

func usable(s Sample) bool {
	return !math.IsNaN(s.Value) && math.Abs(s.Value) < 1e12 && (s.Kind != Counter || s.Value >= 0) && s.Kind <= Interval
}
