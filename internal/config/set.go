package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"loadstar/internal/textfmt"
)

// Duration is a duration that may be given in days, such as 800d.
type Duration time.Duration

// ParseDuration reads a duration of at least 0 in the syntax of [time.ParseDuration], or a
// number of days such as 7d.
func ParseDuration(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.Atoi(days)
		if err != nil || n < 1 || n > 36500 {
			return 0, fmt.Errorf("%q is not a number of days", s)
		}
		return time.Duration(n) * 24 * time.Hour, nil
	}
	d, err := time.ParseDuration(s)
	if err == nil && d < 0 {
		err = fmt.Errorf("%q is negative", s)
	}
	return d, err
}

// UnmarshalYAML reads a duration in the syntax of [ParseDuration].
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := ParseDuration(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode {
		return fmt.Errorf("%q is not a duration; write one such as 15m, 48h or 800d", n.Value)
	}
	*d = Duration(v)
	return nil
}

// MarshalYAML writes a duration in the syntax that UnmarshalYAML reads.
func (d Duration) MarshalYAML() (any, error) { return d.String(), nil }

func (d Duration) String() string {
	if v := time.Duration(d); v > 0 && v%(24*time.Hour) == 0 {
		return fmt.Sprintf("%dd", v/(24*time.Hour))
	}
	return textfmt.Duration(time.Duration(d))
}

// setting is a key with its value as a single line.
type setting struct {
	path []string
	kind reflect.Type
}

// settings collects the keys of a struct that have no keys below them, by their dotted names.
func settings(t reflect.Type, path []string, into map[string]setting) {
	for f := range t.Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if !f.IsExported() || key == "-" {
			continue
		}
		at := append(slices.Clone(path), key)
		if f.Type.Kind() == reflect.Struct {
			settings(f.Type, at, into)
		} else {
			into[strings.Join(at, ".")] = setting{at, f.Type}
		}
	}
}

// Set sets a dotted key of the struct that into points to. Strings and durations are taken
// literally. The elements of a list of strings may be separated by commas. Other values are
// YAML.
func Set(into any, key, value string) error {
	known := map[string]setting{}
	settings(reflect.TypeOf(into).Elem(), nil, known)
	s, ok := known[key]
	if !ok {
		return fmt.Errorf("%s is not known; %s", key, Suggest(key, slices.Sorted(maps.Keys(known))))
	}
	return s.set(into, value)
}

func (s setting) set(into any, value string) error {
	var text any
	switch {
	case s.kind.Kind() == reflect.String || s.kind == reflect.TypeFor[Duration]():
		text = value
	case s.kind == reflect.TypeFor[[]string]() && !strings.HasPrefix(value, "["):
		text = strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
	}
	if text != nil {
		quoted, _ := json.Marshal(text) // strings can always be encoded
		value = string(quoted)
	}
	for _, key := range slices.Backward(s.path) {
		value = fmt.Sprintf("{%s: %s}", key, value)
	}
	if err := Decode([]byte(value), into); err != nil {
		return fmt.Errorf("%s", err.(Problems)[0].Text)
	}
	return nil
}

// Environment sets keys with a single value from the environment. With the prefix
// LOADSTAR_AGENT_, the variable LOADSTAR_AGENT_SITE_ZONE sets site.zone. environ has the format
// of [os.Environ].
func Environment(into any, prefix string, environ []string) (problems Problems) {
	given := map[string]string{}
	for _, e := range environ {
		if name, value, ok := strings.Cut(e, "="); ok && strings.HasPrefix(name, prefix) {
			given[name] = value
		}
	}
	if len(given) == 0 {
		return nil
	}
	all, known := map[string]setting{}, map[string]setting{}
	settings(reflect.TypeOf(into).Elem(), nil, all)
	for _, s := range all {
		if s.kind.Kind() != reflect.Map && s.kind.Kind() != reflect.Slice {
			known[prefix+strings.ToUpper(strings.Join(s.path, "_"))] = s
		}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		s, ok := known[name]
		if !ok {
			var names []string
			for k := range known {
				names = append(names, strings.ToLower(k))
			}
			slices.Sort(names)
			problems.Add(0, "the environment sets %s, which is no key of the configuration; %s", name, Suggest(strings.ToLower(name), names))
		} else if err := s.set(into, given[name]); err != nil {
			problems.Add(0, "the environment's %s: %s", name, err)
		}
	}
	return problems
}
