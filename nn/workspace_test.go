package nn

import (
	"fmt"
	"reflect"
	"testing"

	"loadstar/nn/kernel"
)

// TestWorkspaceBytes checks that WorkspaceBytes counts every float that a workspace
// allocates, because agents use it to reject plans that need too much memory.
func TestWorkspaceBytes(t *testing.T) {
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	for _, blocks := range [][]Block{
		{LSTM{Name: "lstm", Hidden: 5, Layers: 3}, Linear{Name: "a", Out: 17}, PReLU{Name: "b"}, Linear{Name: "c", Out: 2}},
		{LSTM{Name: "lstm", Hidden: 6, Last: true}, Linear{Name: "a", Out: 3}},
		{Linear{Name: "a", Out: 40}, PReLU{Name: "b"}},
		{PReLU{Name: "a"}, Linear{Name: "b", Out: 1}},
		{
			Linear{Name: "a", Out: 12},
			PReLU{Name: "b"},
			Linear{Name: "c", Out: 12},
			Add{Name: "d", From: []string{"c", "input", "b"}},
			Linear{Name: "e", Out: 20, From: []string{"d", "input"}},
			Linear{Name: "f", Out: 20, From: []string{"input", "b", "d"}},
			Add{Name: "g", From: []string{"f", "e"}},
		},
	} {
		n, err := Build(4, 3, blocks...)
		if err != nil {
			t.Fatal(err)
		}
		for _, batch := range []int{0, 1, 16, 17, 100} {
			ws := n.NewWorkspace(k, batch)
			want := 4 * int64(cap(ws.x)+cap(ws.dout))
			for _, tape := range ws.tapes {
				want += 4 * floats(reflect.ValueOf(tape).Elem())
			}
			seen := map[*float32]bool{&ws.dout[0]: true} // nodes may share the memory of their gradients
			for _, v := range ws.nodes {
				want += 4 * int64(cap(v.xt))
				if v.d != nil && !seen[&v.d[0]] {
					seen[&v.d[0]] = true
					want += 4 * int64(cap(v.d))
				}
			}
			if got := n.WorkspaceBytes(batch); got != want {
				t.Errorf("%s, batch of %d: %d bytes, want %d", fmt.Sprint(blocks), batch, got, want)
			}
		}
	}
}

// floats counts the float32 values in all slices of a struct.
func floats(v reflect.Value) (n int64) {
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Slice {
			n += int64(f.Cap())
		}
	}
	return n
}
