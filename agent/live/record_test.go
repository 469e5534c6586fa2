package live

import (
	"fmt"
	"reflect"
	"testing"

	"loadstar/agent/release"
	"loadstar/forecast/issue"
	"loadstar/internal/stateformat"
	"loadstar/internal/testkit"
)

// TestFormats checks that later versions can read the files of this version.
func TestFormats(t *testing.T) {
	m := modelRecord{ID: "x", Name: "day@7", Run: "r", Version: 3, Role: release.Personal, Received: 5, Plan: []byte("plan"), Shared: []float32{1, 2}}
	h := head{Model: "x", Client: "a", Made: 9, Origin: fitted, Weights: []float32{1, 2, 3}, Scaling: []byte{4}, State: []byte{5}}
	r := recorded{Cutoff: 3600, Head: 2, Levels: 2, Values: []float32{1, 2, 3, 4}, Means: []float32{1.5, 3.5}, Sources: []byte{1, 3}, Bare: []float32{1.5}, Shadow: []float32{1, 2, 3, 4}}
	x := Issued{
		Forecast: issue.Forecast{
			Client: "a", Cutoff: 3600, Levels: []float64{0.1, 0.5}, Model: "day@7", Weight: 0.5,
			Rows: []issue.Row{{Time: 3600, Values: []float64{1, 2}, Mean: 2.5, Source: issue.Model, Quality: issue.OK, Reason: issue.InputFilled}},
			Days: []issue.DayEnergy{{Start: 0, End: 86400, Mean: 24, P10: 20, P90: 30}}, Peak: issue.Peak{Time: 7200, P10: 3, P50: 4, P90: 6},
		},
		Issued: 3700, Release: ModelRef{Release: "day@7", Run: "r", Version: 3, Head: 9, Stale: true}, Sequence: 4,
	}
	for _, c := range []struct {
		name   string
		f      stateformat.Format
		state  []byte
		want   any
		decode func([]byte) (any, error)
	}{
		{"model", modelFormat, m.encode(), m, func(b []byte) (any, error) { var v modelRecord; err := v.decode(b); return v, err }},
		{"head", headFormat, h.encode(), h, func(b []byte) (any, error) { var v head; err := v.decode(b); return v, err }},
		{"recorded", issuedFormat, r.encode(), r, func(b []byte) (any, error) { var v recorded; err := v.decode(b); return v, err }},
		{"newest", newestFormat, encodeIssued(&x), &x, func(b []byte) (any, error) { return decodeIssued(b) }},
	} {
		testkit.CheckGolden(t, c.name, c.f, c.f.Wrap(c.state), func(b []byte) error {
			_, state, err := c.f.Unwrap(b)
			if err != nil {
				return err
			}
			got, err := c.decode(state)
			if err == nil && !reflect.DeepEqual(got, c.want) {
				err = fmt.Errorf("%+v, want %+v", got, c.want)
			}
			return err
		})
	}
}
