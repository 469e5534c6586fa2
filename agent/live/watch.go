package live

import (
	"cmp"
	"slices"
	"time"

	"loadstar/forecast/calibrate"
	"loadstar/forecast/issue"
	"loadstar/internal/stateformat"
)

// alarmFor is how long an alarm is shown, unless the client gets another model.
const alarmFor = 14 * day

// watch detects when a client's model becomes worse compared with last week's load.
type watch struct {
	detector calibrate.Detector
	judged   int64 // newest day that was judged
	raised   int64 // time of the newest alarm, or 0
	seen     int64 // time of the newest judgement
	since    int64 // day on which the model was staged
}

// coverageDays is the number of days for which a model must have been in use before its
// coverage is judged. At most the last 28 days are considered.
const coverageDays = 14

// anew returns the watch of a new model for the same readings. Store it together with the
// choice of the model. Otherwise an agent that was killed in between would judge the new model
// with the old watch.
func (w *watch) anew(now int64) *watch {
	return &watch{judged: now / day, seen: w.seen, since: now / day}
}

// alarm reports whether an alarm is active.
func (w *watch) alarm() bool { return w.raised != 0 && w.seen-w.raised < alarmFor }

func (w *watch) encode(x *stateformat.Writer) {
	state, _ := w.detector.AppendBinary(nil) // never fails
	x.Bytes(state)
	x.Int(w.judged)
	x.Int(w.raised)
	x.Int(w.seen)
	x.Int(w.since)
}

func (w *watch) decode(x *stateformat.Reader) {
	state := x.Bytes()
	w.judged, w.raised, w.seen, w.since = x.Int(), x.Int(), x.Int(), x.Int()
	if err := w.detector.UnmarshalBinary(state); err != nil {
		w.detector = calibrate.Detector{} // the new detector learns again what is usual
	}
}

// observeDrift passes completed days to the watch, and checks a client's readings after
// each of them.
func (ch *chooser) observeDrift(m *member, now time.Time, snap *snapshot) error {
	w := m.watch
	today := snap.cutoff / day
	// Findings date from the start of the day, so a restart does not change them.
	if !m.checked || w.seen/day != today {
		var err error
		if m.findings, err = ch.findings(snap.load, m.name, today*day); err != nil {
			return err
		}
		m.checked = true
	}
	yesterday := today - 1
	w.seen = now.Unix()
	w.judged = cmp.Or(w.judged, yesterday)
	if w.judged >= yesterday {
		return nil
	}
	var raised calibrate.Alarm
	for ; w.judged < yesterday; w.judged++ {
		t := m.scores.total(w.judged+1, w.judged+1, -1)
		if t.BareN == 0 {
			continue
		}
		n := float64(t.BareN)
		if a := w.detector.Add(t.Bare/n, t.BareWeek/n); a != "" {
			raised = a
		}
	}
	from := max(yesterday-27, w.since+1)
	if t := m.scores.total(from, yesterday, -1); raised == "" && t.N > 0 && m.champion.model != nil && yesterday-from+1 >= coverageDays {
		nominal := ch.c.Levels[len(ch.c.Levels)-1] - ch.c.Levels[0]
		// Issues overlap, so each load is the target of several issues.
		targets := min(t.N, int((yesterday-from+1)*day/ch.seconds()))
		raised = calibrate.CheckCoverage(float64(t.Hits)/float64(t.N), nominal, targets)
	}
	if raised == "" {
		return nil
	}
	if !w.alarm() {
		ch.view.countAlarm(m.name)
		ch.c.Log.Warn("a client's model has become worse", "client", m.name, "alarm", string(raised), "findings", codes(m.findings))
	}
	w.raised = now.Unix()
	return nil
}

// recheck restores the findings of the newest judgement after a start.
func (ch *chooser) recheck(m *member) {
	if m.watch.seen == 0 {
		return // nothing was judged yet
	}
	m.checked = true
	var err error
	if m.findings, err = ch.findings(ch.stored, m.name, m.watch.seen/day*day); err != nil {
		ch.c.Log.Error("cannot check readings", "client", m.name, "error", err)
	}
}

// wantsRefit reports whether a client's head should be fitted again, because of an alarm that
// bad readings do not explain.
func (m *member) wantsRefit(now int64) bool {
	return m.watch.alarm() && m.champion.model != nil && len(m.findings) == 0 && now-m.rec.Refit >= refitRest && !m.rec.Pinned
}

// codes returns the codes of findings, without repetitions.
func codes(f []Finding) []string {
	var out []string
	for _, x := range f {
		if !slices.Contains(out, x.Code) {
			out = append(out, x.Code)
		}
	}
	return out
}

// shares returns the share of rows by source in the last 28 days of scores.
func (m *member) shares() map[string]float64 {
	t := m.scores.total(0, 1<<40, -1)
	if t.Rows == 0 {
		return nil
	}
	fallback := float64(t.Fallback) / float64(t.Rows)
	return map[string]float64{string(issue.Model): 1 - fallback, string(issue.Week): fallback}
}
