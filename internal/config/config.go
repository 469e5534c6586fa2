// Package config reads YAML strictly. Unknown and repeated keys, wrong types and a second
// document are errors. It reports all problems at once, each with its line.
package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Problem describes one mistake in a file.
type Problem struct {
	Line int // 0 if the problem has no line in the file
	Text string
}

func (p Problem) String() string {
	if p.Line == 0 {
		return p.Text
	}
	return fmt.Sprintf("line %d: %s", p.Line, p.Text)
}

// Problems lists all mistakes in a file. Its error message has one line for each mistake.
type Problems []Problem

// Add adds a problem with a line and a formatted message.
func (p *Problems) Add(line int, format string, a ...any) {
	*p = append(*p, Problem{line, fmt.Sprintf(format, a...)})
}

// Err returns the problems as an error, sorted by line. Problems without a line come last. It
// returns nil if there are no problems.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	sorted := slices.Clone(p)
	order := func(x Problem) int {
		if x.Line == 0 {
			return math.MaxInt
		}
		return x.Line
	}
	slices.SortStableFunc(sorted, func(a, b Problem) int { return cmp.Compare(order(a), order(b)) })
	return sorted
}

func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, x := range p {
		lines[i] = x.String()
	}
	return strings.Join(lines, "\n")
}

// Decode reads one YAML document into the struct that into points to, according to its yaml
// tags. Fields whose keys are not in the document keep their values, so callers set
// defaults first. A list replaces the existing list. An empty document sets nothing. The error
// is of type [Problems]. Fields without a problem are set even if there is an error.
//
// Fields are strings, numbers, bools, structs, slices, maps with string keys,
// pointers to these, and types that implement yaml.Unmarshaler.
func Decode(data []byte, into any) error {
	root, problems := parse(data)
	if root != nil {
		d := decoder{problems: &problems}
		d.decode(root, reflect.ValueOf(into).Elem(), "")
	}
	return problems.Err()
}

// Keys returns the dotted keys that a document sets, with their line numbers. A key is
// included if its value is a scalar, a list or an empty mapping. The map is nil if the
// document is not YAML.
func Keys(data []byte) (map[string]int, error) {
	root, problems := parse(data)
	if root == nil && len(problems) > 0 {
		return nil, problems.Err()
	}
	keys := map[string]int{}
	if root != nil {
		collect(root, "", root.Line, keys)
		delete(keys, "")
	}
	return keys, problems.Err()
}

func collect(n *yaml.Node, path string, line int, keys map[string]int) {
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
		if _, ok := keys[path]; !ok {
			keys[path] = line
		}
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		collect(n.Content[i+1], dotted(path, n.Content[i].Value), n.Content[i].Line, keys)
	}
}

// parse returns the root of a document, or nil if the document is empty or not valid YAML.
func parse(data []byte) (root *yaml.Node, problems Problems) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err == nil {
		if err = dec.Decode(&second); errors.Is(err, io.EOF) {
			return doc.Content[0], nil
		} else if err == nil {
			problems.Add(second.Line, "a second document starts here; a file must have only one")
			return doc.Content[0], problems
		}
	}
	// The error has the format "yaml: line 3: did not find expected key".
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 0
	if m := syntaxLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	problems.Add(line, "%s", syntaxError(text, lineOf(data, line)))
	return nil, problems
}

// syntaxError explains why a line is not valid YAML. text is the parser's error message.
func syntaxError(text, line string) string {
	advice := "indent the keys of a section with the same number of spaces, and write key: value with a space after the colon"
	if strings.HasPrefix(strings.TrimLeft(line, " "), "\t") {
		advice = "it is indented with a tab; use spaces"
	}
	if line = strings.TrimSpace(line); line == "" || len(line) > 200 {
		return fmt.Sprintf("this is not YAML (%s): %s", text, advice)
	}
	return fmt.Sprintf("%q does not fit here (%s): %s", line, text, advice)
}

// lineOf returns a line of a file. Lines are counted from 1.
func lineOf(data []byte, line int) string {
	all := bytes.Split(data, []byte("\n"))
	if line < 1 || line > len(all) {
		return ""
	}
	return string(bytes.TrimSuffix(all[line-1], []byte("\r")))
}

var syntaxLine = regexp.MustCompile(`^line ([0-9]{1,9}): `)

type decoder struct{ problems *Problems }

func (d decoder) report(n *yaml.Node, format string, a ...any) {
	d.problems.Add(n.Line, format, a...)
}

// decode sets v to the value of the node. path is the dotted key of v.
func (d decoder) decode(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind == yaml.AliasNode {
		d.report(n, "%s is a YAML alias, which is not supported; repeat the value", name(path))
		return
	}
	if u, ok := v.Addr().Interface().(yaml.Unmarshaler); ok {
		if err := u.UnmarshalYAML(n); err != nil {
			d.report(n, "%s: %s", name(path), strings.TrimPrefix(err.Error(), fmt.Sprintf("line %d: ", n.Line)))
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		d.decode(n, v.Elem(), path)
	case reflect.Struct:
		d.decodeStruct(n, v, path)
	case reflect.Map:
		d.decodeMap(n, v, path)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.report(n, "%s must be a list such as [a, b], not %s", name(path), what(n))
			return
		}
		list := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
		for i, c := range n.Content {
			d.decode(c, list.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
		v.Set(list)
	default:
		d.decodeScalar(n, v, path)
	}
}

func (d decoder) decodeStruct(n *yaml.Node, v reflect.Value, path string) {
	fields, names := fieldsOf(v.Type())
	d.eachKey(n, path, func(key, value *yaml.Node) {
		if i, ok := fields[key.Value]; ok {
			d.decode(value, v.Field(i), dotted(path, key.Value))
			return
		}
		d.report(key, "%s is not known; %s", dotted(path, key.Value), Suggest(key.Value, names))
	})
}

func (d decoder) decodeMap(n *yaml.Node, v reflect.Value, path string) {
	if v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
	d.eachKey(n, path, func(key, value *yaml.Node) {
		elem := reflect.New(v.Type().Elem()).Elem()
		d.decode(value, elem, dotted(path, key.Value))
		v.SetMapIndex(reflect.ValueOf(key.Value).Convert(v.Type().Key()), elem)
	})
}

// eachKey calls f for every key of a mapping, and reports keys that are repeated. It treats
// a null value as an empty mapping.
func (d decoder) eachKey(n *yaml.Node, path string, f func(key, value *yaml.Node)) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.report(n, "%s must have keys, such as key: value; it is %s", name(path), what(n))
		return
	}
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			d.report(key, "%s: a key must be a single word", name(path))
			continue
		}
		if line, ok := first[key.Value]; ok {
			d.report(key, "%s is set twice; it is already set in line %d", dotted(path, key.Value), line)
			continue
		}
		first[key.Value] = key.Line
		f(key, value)
	}
}

func (d decoder) decodeScalar(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.ScalarNode {
		d.report(n, "%s must be a single value, not %s", name(path), what(n))
		return
	}
	tag, text := n.ShortTag(), n.Value
	if tag == "!!null" {
		d.report(n, "%s has no value", name(path))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		if tag != "!!bool" {
			d.report(n, "%s must be true or false, not %q", name(path), text)
			return
		}
		v.SetBool(strings.EqualFold(text, "true"))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		x, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil || tag != "!!int" {
			d.report(n, "%s must be a whole number, not %q", name(path), text)
			return
		}
		v.SetInt(x)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		x, err := strconv.ParseUint(text, 10, v.Type().Bits())
		if err != nil || tag != "!!int" {
			d.report(n, "%s must be a whole number of at least 0, not %q", name(path), text)
			return
		}
		v.SetUint(x)
	case reflect.Float32, reflect.Float64:
		x, err := strconv.ParseFloat(text, v.Type().Bits())
		if err != nil || tag != "!!float" && tag != "!!int" || math.IsNaN(x) || math.IsInf(x, 0) {
			d.report(n, "%s must be a number, not %q", name(path), text)
			return
		}
		v.SetFloat(x)
	default:
		d.report(n, "%s: nothing can be read into a %s", name(path), v.Type())
	}
}

// fieldsOf returns the field indexes of a struct by YAML key, and the keys in the order of
// the fields.
func fieldsOf(t reflect.Type) (fields map[string]int, names []string) {
	fields = map[string]int{}
	for i := range t.NumField() {
		f := t.Field(i)
		key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if !f.IsExported() || key == "-" {
			continue
		}
		if key == "" {
			key = strings.ToLower(f.Name)
		}
		fields[key] = i
		names = append(names, key)
	}
	return fields, names
}

// what describes a node's kind for an error message.
func what(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	return strconv.Quote(n.Value)
}

func name(path string) string {
	if path == "" {
		return "the file"
	}
	return path
}

func dotted(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// Suggest returns a hint for an unknown name: the most similar known name, or the list of
// known names.
func Suggest(got string, known []string) string {
	best, distance := "", math.MaxInt
	for _, k := range known {
		if d := editDistance(strings.ToLower(got), k); d < distance {
			best, distance = k, d
		}
	}
	if len(got) < 100 && distance <= max(1, len(best)/3) {
		return fmt.Sprintf("did you mean %s?", best)
	}
	return "use one of " + strings.Join(known, ", ")
}

// editDistance returns the minimum number of edits that turn a into b. An edit inserts,
// deletes or replaces a letter, or swaps two neighbouring letters.
func editDistance(a, b string) int {
	const far = 100
	if len(a) > far || len(b) > far {
		return far
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
