package live

import (
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"loadstar/forecast/issue"
	"loadstar/internal/stateformat"
	"loadstar/series"
)

// group is a set of clients that is forecast as one.
type group struct {
	name     string
	members  []string
	state    *issue.Group
	sequence uint64
	scores   *history
}

var groupFormat = stateformat.Format{Name: "a group's state", Magic: "LSLVGRUP", Version: 1}

func (ro *roster) openGroup(name string, members []string) (*group, error) {
	g := &group{name: name, members: slices.Clone(members)}
	slices.Sort(g.members)
	var err error
	if g.state, err = ro.newGroup(); err != nil {
		return nil, err
	}
	return g, ro.db.View(func(tx *bolt.Tx) error {
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
			g.sequence = uint64(x.Int())
			had = make([]string, x.Count(8))
			for i := range had {
				had[i] = x.String()
			}
			state = x.Bytes()
		})
		if err != nil {
			return err
		}
		if !slices.Equal(had, g.members) || g.state.UnmarshalBinary(state) != nil {
			ro.c.Log.Info("a group has changed, so its interval is learned again", "group", name)
			g.state, err = ro.newGroup()
		}
		return err
	})
}

func (g *group) put(tx *bolt.Tx) error {
	state, err := g.state.AppendBinary(nil)
	if err != nil {
		return fmt.Errorf("group %s: %w", g.name, err)
	}
	var w stateformat.Writer
	w.Int(int64(g.sequence))
	w.Int(int64(len(g.members)))
	for _, m := range g.members {
		w.String(m)
	}
	w.Bytes(state)
	return put(tx, statesBucket, stateKey(g.name, asGroup), groupFormat, w.State())
}

// issueGroup adds up the forecasts of a group's members. All meters have the same span.
func (is *issuer) issueGroup(g *group, snap *snapshot, issued []*Issued, now time.Time) (*Issued, *recorded, error) {
	cutoff := snap.cutoff
	var (
		meters    []series.Meter
		forecasts []issue.Forecast
	)
	for i, name := range is.names {
		if slices.Contains(g.members, name) {
			meters, forecasts = append(meters, snap.meters[name]), append(forecasts, issued[i].Forecast)
		}
	}
	if len(meters) != len(g.members) {
		return nil, nil, fmt.Errorf("%d of %d members are clients", len(meters), len(g.members))
	}
	if g.state.Next() > cutoff+2*is.seconds() { // the clock was wrong
		var err error
		if g.state, err = is.newGroup(); err != nil {
			return nil, nil, err
		}
	}
	f, recorded := g.state.Issue(issue.Sum(g.name, meters), forecasts, cutoff)
	x := &Issued{Forecast: f, Issued: now.Unix()}
	g.sequence++
	x.Sequence = g.sequence
	if !recorded {
		return x, nil, nil
	}
	return x, record(&x.Forecast), nil
}
