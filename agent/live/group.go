package live

import (
	"fmt"
	"math"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"loadstar/forecast/calibrate"
	"loadstar/forecast/issue"
	"loadstar/internal/stateformat"
	"loadstar/series"
)

// group is several clients that are forecast as one. Its point forecast is the sum of the
// members' point forecasts. Quantiles cannot be added up, so a tracker learns the interval
// from the errors of the sum.
type group struct {
	name    string
	members []string
	tracker *calibrate.Tracker
	// next is the start of the first step that the tracker has not seen.
	next     int64
	sequence uint64
	scores   *history
}

var groupFormat = stateformat.Format{Name: "a group's state", Magic: "LSLVGRUP", Version: 1}

func (s *Service) openGroup(name string, members []string) (*group, error) {
	g := &group{name: name, members: slices.Clone(members)}
	slices.Sort(g.members) // floating-point sums depend on the order
	var err error
	if g.tracker, err = s.newTracker(); err != nil {
		return nil, err
	}
	return g, s.db.View(func(tx *bolt.Tx) error {
		b, err := get(tx, scoresBucket, []byte(name), scoreFormat)
		if err != nil {
			return err
		}
		if g.scores, _, err = decodeScores(b); err != nil {
			return err
		}
		if b, err = get(tx, statesBucket, stateKey(name, asGroup), groupFormat); b == nil || err != nil {
			return err
		}
		var (
			state []byte
			had   []string
		)
		err = groupFormat.Read(b, func(x *stateformat.Reader) {
			g.next, g.sequence = x.Int(), uint64(x.Int())
			had = make([]string, x.Count(8))
			for i := range had {
				had[i] = x.String()
			}
			state = x.Bytes()
		})
		if err != nil {
			return err
		}
		if !slices.Equal(had, g.members) || g.tracker.UnmarshalBinary(state) != nil {
			s.c.Log.Info("a group has changed, so its interval is learned anew", "group", name)
			g.next = 0
			g.tracker, err = s.newTracker()
		}
		return err
	})
}

func (s *Service) newTracker() (*calibrate.Tracker, error) {
	return calibrate.New(calibrate.Config{
		Levels: s.c.Levels, Point: s.point, Horizon: 1, Targets: s.c.H, StepsPerDay: int(24 * time.Hour / s.c.Site.Interval),
	})
}

func (g *group) put(tx *bolt.Tx) error {
	state, err := g.tracker.AppendBinary(nil)
	if err != nil {
		return fmt.Errorf("group %s: %w", g.name, err)
	}
	var w stateformat.Writer
	w.Int(g.next)
	w.Int(int64(g.sequence))
	w.Int(int64(len(g.members)))
	for _, m := range g.members {
		w.String(m)
	}
	w.Bytes(state)
	return put(tx, statesBucket, stateKey(g.name, asGroup), groupFormat, w.State())
}

// observe shows the tracker the sums of the members' loads before the cutoff.
func (g *group) observe(meters []series.Meter, at []int, step, cutoff int64) {
	start := meters[at[0]].Start
	for t := max(g.next, start); t < cutoff; t += step {
		sum := 0.0
		for _, i := range at {
			m := meters[i]
			k := (t - m.Start) / step
			if k < 0 || k >= int64(len(m.Load)) {
				sum = math.NaN()
				break
			}
			sum += float64(m.Load[k])
		}
		g.tracker.Observe(int(t/step), sum)
	}
	g.next = max(g.next, cutoff)
}

// issueGroup adds up the forecasts of a group's members. All meters have the same span.
func (s *Service) issueGroup(g *group, meters []series.Meter, issued []*Issued, now time.Time, cutoff int64) (*Issued, *recorded, error) {
	var at []int
	for i, name := range s.names {
		if slices.Contains(g.members, name) {
			at = append(at, i)
		}
	}
	if len(at) != len(g.members) {
		return nil, nil, fmt.Errorf("%d of %d members are clients", len(at), len(g.members))
	}
	if g.next > cutoff+2*s.seconds() { // the clock was wrong
		g.next = 0
		var err error
		if g.tracker, err = s.newTracker(); err != nil {
			return nil, nil, err
		}
	}
	g.observe(meters, at, s.seconds(), cutoff)
	x := &Issued{Forecast: issue.Forecast{Client: g.name, Cutoff: cutoff, Levels: s.c.Levels, Weight: math.NaN()}, Issued: now.Unix()}
	width := len(s.c.Levels)
	rows := make([]float64, s.c.H*width)
	none := make([]float64, s.c.H) // there is no reference to blend with
	for k := range s.c.H {
		sum := 0.0
		row := issue.Row{Time: cutoff + int64(k)*s.seconds(), Source: issue.Model, Quality: issue.OK}
		for _, i := range at {
			r := issued[i].Rows[k]
			if len(r.Values) == 0 {
				sum = math.NaN()
			} else {
				sum += r.Values[s.point]
			}
			worsen(&row, r)
		}
		for l := range width {
			rows[k*width+l] = sum
		}
		none[k] = math.NaN()
		x.Rows = append(x.Rows, row)
	}
	due := cutoff%(int64(g.tracker.Every())*s.seconds()) == 0
	missing := slices.ContainsFunc(rows, math.IsNaN)
	if last := int(cutoff/s.seconds()) - 1; due && !missing {
		g.tracker.Issue(last, rows, none)
	} else if !missing {
		g.tracker.Correct(last, rows, none)
	}
	for k := range x.Rows {
		if v := rows[k*width:][:width]; !slices.ContainsFunc(v, math.IsNaN) {
			x.Rows[k].Values = slices.Clone(v)
		} else {
			x.Rows[k].Source, x.Rows[k].Quality = issue.None, issue.Missing
		}
	}
	g.sequence++
	x.Sequence = g.sequence
	if !due {
		return x, nil, nil
	}
	r := &recorded{Cutoff: cutoff, Levels: width, Values: values(&x.Forecast)}
	for _, row := range x.Rows {
		r.Sources = append(r.Sources, byte(max(slices.Index(sources, row.Source), 0)))
	}
	return x, r, nil
}

// worsen gives a group's row the source of its worst member.
func worsen(row *issue.Row, member issue.Row) {
	order := []issue.Source{issue.Model, issue.Generic, issue.Week, issue.Day, issue.Last, issue.None}
	if slices.Index(order, member.Source) > slices.Index(order, row.Source) {
		row.Source, row.Reason = member.Source, member.Reason
	}
	if member.Quality != issue.OK {
		row.Quality = issue.Estimated
	}
}
