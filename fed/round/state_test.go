package round

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"loadstar/fed/recipe"
	"loadstar/internal/stateformat"
	"loadstar/internal/testkit"
)

func TestServerFormats(t *testing.T) {
	for name, s := range map[string]serverState{
		"server": {Version: 3, Shared: []float32{1, -2.5, 0.125}, Aggregator: []byte("aggregator"), Optimizer: []byte("optimizer")},
		"plain":  {Shared: []float32{1}},
	} {
		testkit.CheckGolden(t, name, serverFormat, s.encode(), func(b []byte) error {
			var got serverState
			err := got.decode(b)
			if err == nil && !reflect.DeepEqual(got, s) {
				err = fmt.Errorf("%v, want %v", got, s)
			}
			return err
		})
	}
}

// A saved machine is text without a header, so it has separate golden files.
func TestMachineFormats(t *testing.T) {
	m := NewMachine(recipe.Synchronous{Cohort: 4}, 1, 9)
	asked := m.Ask(2)
	m.Return(asked[0])
	m.Lose(asked[1])
	text, err := m.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	if want := bytes.TrimSpace(testkit.Golden(t, "machine", machineFormat)); !bytes.Equal(text, want) {
		t.Errorf("the encoding changed: raise machineFormat, keep reading the old ones, and add a golden file\n got %s\nwant %s", text, want)
	}
	for format := uint32(1); format <= machineFormat; format++ {
		got := NewMachine(recipe.Synchronous{Cohort: 4}, 1, 9)
		if err := got.UnmarshalJSON(testkit.Golden(t, "machine", format)); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("format %d: %+v, %v; want %+v", format, got, err, m)
		}
	}
	err = m.UnmarshalJSON([]byte(`{"format":3,"state":"of another type"}`))
	if !errors.Is(err, stateformat.ErrNewer) || !strings.Contains(err.Error(), "(format 3, this one reads up to 1): upgrade") {
		t.Errorf("format 3: %v", err)
	}
	if err := m.UnmarshalJSON([]byte(`{"state":{}}`)); !errors.Is(err, stateformat.ErrDamaged) {
		t.Errorf("no format: %v", err)
	}
}

// FuzzServerState decodes arbitrary bytes, with and without a valid header. Decoding must
// not panic, and an accepted state must be the same after it is encoded and decoded again.
func FuzzServerState(f *testing.F) {
	f.Add(testkit.Golden(f, "server", 1), false)
	_, state, _ := serverFormat.Unwrap(testkit.Golden(f, "server", 1))
	f.Add(state, true)
	f.Fuzz(func(t *testing.T, b []byte, wrap bool) {
		if wrap {
			b = serverFormat.Wrap(b)
		}
		var s, again serverState
		if s.decode(b) != nil {
			return
		}
		if err := again.decode(s.encode()); err != nil || !bytes.Equal(s.encode(), again.encode()) {
			t.Fatalf("%v is encoded and decoded as %v, %v", s, again, err)
		}
	})
}
