package aggregate

import (
	"fmt"
	"reflect"
	"testing"

	"loadstar/internal/testkit"
)

func TestStateFormats(t *testing.T) {
	for name, s := range map[string]scaffoldState{
		"scaffold":       {C: []float64{0.25, -3, 1e-300}},
		"scaffold-fresh": {},
	} {
		testkit.CheckGolden(t, name, scaffoldFormat, s.encode(), func(b []byte) error {
			var got scaffoldState
			err := got.decode(b)
			if err == nil && !reflect.DeepEqual(got.C, s.C) {
				err = fmt.Errorf("%v, want %v", got, s)
			}
			return err
		})
	}
	s := perClientState{Clients: []string{"house 1", "house 2"}, V: [][]float64{{1, 2}, {0.5, 0}}}
	testkit.CheckGolden(t, "perclient", perClientFormat, s.encode(), func(b []byte) error {
		var got perClientState
		err := got.decode(b)
		if err == nil && !reflect.DeepEqual(got, s) {
			err = fmt.Errorf("%v, want %v", got, s)
		}
		return err
	})
}
