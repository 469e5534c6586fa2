package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

type even int

func (e *even) UnmarshalYAML(n *yaml.Node) error {
	var v int
	if err := n.Decode(&v); err != nil || v%2 != 0 {
		return fmt.Errorf("line %d: %q is not even", n.Line, n.Value)
	}
	*e = even(v)
	return nil
}

type sample struct {
	Name   string            `yaml:"name"`
	Seed   uint64            `yaml:"seed"`
	On     bool              `yaml:"on_or_off"`
	Client inner             `yaml:"client"`
	Extra  *inner            `yaml:"extra,omitempty"`
	List   []float64         `yaml:"list,flow"`
	Map    map[string]string `yaml:"map"`
	Even   even              `yaml:"even"`
	Plain  int8
	Secret int `yaml:"-"`
}

type inner struct {
	Rate  float64 `yaml:"lr"`
	Steps int     `yaml:"steps"`
}

func TestDecode(t *testing.T) {
	got := sample{Name: "old", Seed: 1, Client: inner{Rate: 0.5, Steps: 3}, List: []float64{9, 9, 9}}
	err := Decode([]byte(`
# a comment
name: 12
on_or_off: true
client: {lr: 1e-8}
extra:
  steps: -4
list: [1, 0.5]
map: {b: "2", a: 1}
even: 6
plain: 7
`), &got)
	if err != nil {
		t.Fatal(err)
	}
	want := sample{
		Name: "12", Seed: 1, On: true, Client: inner{Rate: 1e-8, Steps: 3}, Extra: &inner{Steps: -4},
		List: []float64{1, 0.5}, Map: map[string]string{"a": "1", "b": "2"}, Even: 6, Plain: 7,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	for _, empty := range []string{"", "# nothing\n", "---\n", "client:\n"} {
		if err := Decode([]byte(empty), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %+v", empty, err, got)
		}
	}
}

func TestRejected(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"nmae: x", "line 1: nmae is not known; did you mean name?"},
		{"client:\n  lrr: 1", "line 2: client.lrr is not known; did you mean lr?"},
		{"client:\n  horizon: 1", "line 2: client.horizon is not known; use one of lr, steps"},
		{"secret: 1", "line 1: secret is not known; use one of name, seed, on_or_off, client, extra, list, map, even, plain"},
		{"name: a\nname: b", "line 2: name is set twice; it is already set in line 1"},
		{"map: {a: b, a: c}", "line 1: map.a is set twice; it is already set in line 1"},
		{"seed: -1", `line 1: seed must be a whole number of at least 0, not "-1"`},
		{"client: {steps: 1.5}", `line 1: client.steps must be a whole number, not "1.5"`},
		{"client: {steps: 1e3}", `line 1: client.steps must be a whole number, not "1e3"`},
		{"client: {steps: \"4\"}", `line 1: client.steps must be a whole number, not "4"`},
		{"client: {steps: 0x10}", `line 1: client.steps must be a whole number, not "0x10"`},
		{"plain: 200", `line 1: plain must be a whole number, not "200"`},
		{"client: {lr: fast}", `line 1: client.lr must be a number, not "fast"`},
		{"client: {lr: .nan}", `line 1: client.lr must be a number, not ".nan"`},
		{"client: {lr: 1e999}", `line 1: client.lr must be a number, not "1e999"`},
		{"on_or_off: yes", `line 1: on_or_off must be true or false, not "yes"`},
		{"name:", "line 1: name has no value"},
		{"name: [a]", "line 1: name must be a single value, not a list"},
		{"client: 3", `line 1: client must have keys, such as key: value; it is "3"`},
		{"list: 3", `line 1: list must be a list such as [a, b], not "3"`},
		{"list: [1,\n b]", `line 2: list[1] must be a number, not "b"`},
		{"even: 3", `line 1: even: "3" is not even`},
		{"- name", "line 1: the file must have keys, such as key: value; it is a list"},
		{"name: a\n---\nname: b", "line 2: a second document starts here; a file must have only one"},
		{"name: a\n...\njunk", `line 2: "..." does not fit here (did not find expected <document start>): indent the keys of a section with the same number of spaces, and write key: value with a space after the colon`},
		{"name:\n\ta: b", `line 2: "a: b" does not fit here (found character that cannot start any token): it is indented with a tab; use spaces`},
		{"name: &x a\nmap: {a: *x}", "line 2: map.a is a YAML alias, which is not supported; repeat the value"},
		{"client:\n  <<: {lr: 1}", "line 2: client.<< is not known; use one of lr, steps"},
		{"? [a]\n: b", "line 1: the file: a key must be a single word"},
		{"nmae: x\nclient: {steps: a}\nseed: b\n", "line 1: nmae is not known; did you mean name?\n" +
			"line 2: client.steps must be a whole number, not \"a\"\nline 3: seed must be a whole number of at least 0, not \"b\""},
	} {
		err := Decode([]byte(c.text), &sample{})
		if err == nil || err.Error() != c.want {
			t.Errorf("%q\n got %v\nwant %s", c.text, err, c.want)
		}
		if p := (Problems{}); !errors.As(err, &p) {
			t.Errorf("%q: %T", c.text, err)
		}
	}
	if err := Decode([]byte("name: [a\n"), &sample{}); err == nil || !strings.HasPrefix(err.Error(), "line ") {
		t.Errorf("broken YAML: %v", err)
	}
	// Valid keys are set even if there is an error.
	var got sample
	if err := Decode([]byte("nmae: x\nseed: 7"), &got); err == nil || got.Seed != 7 {
		t.Errorf("%v, %+v", err, got)
	}
}

func TestKeys(t *testing.T) {
	keys, err := Keys([]byte("name: a\nclient:\n  lr: 1\n  deep: {x: 1}\nlist: [1, 2]\nempty: {}\n"))
	want := map[string]int{"name": 1, "client.lr": 3, "client.deep.x": 4, "list": 5, "empty": 6}
	if err != nil || !maps.Equal(keys, want) {
		t.Errorf("%v %v", keys, err)
	}
	for _, none := range []string{"", "text", "[1]"} {
		if keys, err := Keys([]byte(none)); err != nil || len(keys) != 0 {
			t.Errorf("%q: %v %v", none, keys, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{"name: a\nclient: {lr: 1}", "a: &x [*x]", "<<: {name: 1}", "list: [1, .inf]", "---\n...\n---", "even: 2", "\xff", "extra: ~"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var a sample
		err := Decode(data, &a)
		if err != nil {
			if p := (Problems{}); !errors.As(err, &p) || len(p) == 0 || err.Error() == "" {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		// An accepted document sets only known keys, and reading it again gives the same
		// result.
		keys, err := Keys(data)
		if err != nil {
			t.Fatal(err)
		}
		_, known := fieldsOf(reflect.TypeFor[sample]())
		for k := range keys {
			if first, _, _ := strings.Cut(k, "."); !slices.Contains(known, first) {
				t.Fatalf("accepted %q", k)
			}
		}
		var b sample
		if err := Decode(data, &b); err != nil || !reflect.DeepEqual(a, b) {
			t.Fatalf("%v: %+v, then %+v", err, a, b)
		}
	})
}
