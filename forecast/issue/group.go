package issue

import (
	"math"
	"slices"

	"loadstar/series"
)

// Group is the state of the forecasts for a sum of clients. The mean of each row is the sum of
// the members' means. P50 is set to the same value, because the distribution of a sum of many
// members is nearly symmetric. The other quantiles of a sum are not sums of quantiles, so they
// are learned from the errors of the sum's forecasts. A group is not safe for concurrent use.
type Group struct{ s *State }

// NewGroup returns the state of a group for which no forecast has been made. The fallback of
// the configuration has no effect.
func NewGroup(c Config) (*Group, error) {
	s, err := newState(c)
	if err != nil {
		return nil, err
	}
	s.group = true
	return &Group{s}, s.addTracks()
}

// Next returns the same as [State.Next].
func (g *Group) Next() int64 { return g.s.Next() }

// AppendBinary appends the encoded state to b.
func (g *Group) AppendBinary(b []byte) ([]byte, error) { return g.s.AppendBinary(b) }

// UnmarshalBinary replaces the state in the same way as [State.UnmarshalBinary].
func (g *Group) UnmarshalBinary(b []byte) error { return g.s.UnmarshalBinary(b) }

// Sum returns the sum of meters, which must have the same span. A step that is missing in one
// meter is missing in the sum.
func Sum(id string, meters []series.Meter) series.Meter {
	sum := series.Meter{ID: id, Start: meters[0].Start, Load: make([]float32, len(meters[0].Load))}
	for i := range sum.Load {
		total := 0.0
		for _, m := range meters {
			if i >= len(m.Load) {
				total = math.NaN()
				break
			}
			total += float64(m.Load[i])
		}
		sum.Load[i] = float32(total)
	}
	return sum
}

// Issue makes the forecast of the group at a cutoff, given the sum of the members' readings and
// the members' forecasts at that cutoff, in any order. It also reports whether the issue is
// recorded. In all other respects, it works like [State.Issue].
func (g *Group) Issue(m series.Meter, members []Forecast, cutoff int64) (f Forecast, recorded bool) {
	s := g.s
	late := s.begin(m, cutoff)
	// Floating-point sums depend on the order of the members.
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b Forecast) int {
		if a.Client < b.Client {
			return -1
		}
		return 1
	})
	f = Forecast{Client: m.ID, Cutoff: cutoff, Levels: slices.Clone(s.c.Levels), Weight: math.NaN()}
	width, h := len(s.levels), s.c.H
	values := make([]float64, h*width)
	rows := make([]Row, h)
	missing := false
	for i := range rows {
		row := &rows[i]
		*row = Row{Time: cutoff + int64(i)*s.seconds, Values: make([]float64, len(s.pick)), Source: Model, Quality: OK}
		for _, x := range members {
			r := x.Rows[i]
			row.Mean += r.Mean
			row.worsen(r)
		}
		missing = missing || math.IsNaN(row.Mean)
		for k := range width {
			values[i*width+k] = row.Mean
		}
	}
	if !late && !missing {
		s.correct(s.fallback, values, s.unknown(h))
	}
	for i := range rows {
		row, from := &rows[i], values[i*width:][:width]
		mean := row.Mean
		if late || !s.fallback.ripe(s.work.last) {
			s.young(from, 7)
		}
		s.fill(row, from)
		if row.Mean = mean; math.IsNaN(mean) {
			row.Source, row.Quality = None, Missing
		}
	}
	s.complete(&f, rows, late)
	return f, s.recorded()
}

// worsen gives a group's row the source of the worst member so far.
func (r *Row) worsen(member Row) {
	if slices.Index(Ladder, member.Source) > slices.Index(Ladder, r.Source) {
		r.Source, r.Reason = member.Source, member.Reason
	}
	if member.Quality != OK {
		r.Quality = Estimated
	}
}
