package live

import (
	"time"

	"loadstar/forecast/issue"
	"loadstar/internal/stateformat"
)

// watch notices when a client's model becomes worse compared with last week's load.
type watch struct {
	fed    int64 // newest day that was judged
	raised int64 // when the present alarm was raised, or 0
}

// reset begins anew, with a new model.
func (w *watch) reset(now int64) { *w = watch{fed: now / day} }

// alarm reports whether there is an alarm.
func (w *watch) alarm() bool { return w.raised != 0 }

func (w *watch) encode(x *stateformat.Writer) {
	x.Int(w.fed)
	x.Int(w.raised)
}

func (w *watch) decode(x *stateformat.Reader) {
	w.fed, w.raised = x.Int(), x.Int()
}

// observeDrift shows the watch the days that have ended, and checks the readings of a client
// once a day and after an alarm.
func (s *Service) observeDrift(m *member, now time.Time, cutoff int64) error { return nil }

// wantsRefit reports whether a client's head should be fitted again: after an alarm that bad
// readings do not explain.
func (m *member) wantsRefit(now int64) bool {
	return m.watch.alarm() && m.champion.model != nil && len(m.blocking()) == 0 && now-m.rec.Refit >= refitRest
}

// blocking returns the findings that forbid learning from the readings.
func (m *member) blocking() []Finding { return m.findings }

// shares returns the share of rows by source in the newest forecasts.
func (m *member) shares() map[string]float64 {
	t := m.scores.total(0, 1<<40, -1)
	if t.Rows == 0 {
		return nil
	}
	fallback := float64(t.Fallback) / float64(t.Rows)
	return map[string]float64{string(issue.Model): 1 - fallback, string(issue.Week): fallback}
}
