package serveropt

import (
	"fmt"
	"reflect"
	"testing"

	"loadstar/internal/testkit"
)

func TestStateFormats(t *testing.T) {
	for name, s := range map[string]state{
		"momentum": {Kind: momentumKind, M: []float64{0.5, -1.25, 1e-300}},
		"adaptive": {Kind: adaptiveKind, M: []float64{0.5, -1.25}, V: []float64{1e-6, 3}},
		"fresh":    {Kind: adaptiveKind},
	} {
		testkit.CheckGolden(t, name, stateFormat, encode(s), func(b []byte) error {
			got, err := decode(b, s.Kind, 0)
			if err == nil && !reflect.DeepEqual(got, s) {
				err = fmt.Errorf("%v, want %v", got, s)
			}
			return err
		})
	}
}
