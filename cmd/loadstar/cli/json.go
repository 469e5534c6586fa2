package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// PrintLine writes v as JSON on one line. API messages are written with their zero fields, so
// programs need not handle missing fields.
func PrintLine(w io.Writer, v any) error {
	return json.NewEncoder(w).Encode(withZeros(v))
}

// PrintJSON writes v as indented JSON.
func PrintJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(withZeros(v))
}

// withZeros replaces messages with values that encode all fields. v is a message, or a slice or
// a map of messages.
func withZeros(v any) any {
	if m, ok := v.(proto.Message); ok {
		if reflect.ValueOf(m).IsNil() {
			return nil
		}
		return message{m.ProtoReflect()}
	}
	r := reflect.ValueOf(v)
	switch r.Kind() {
	case reflect.Slice:
		if !r.Type().Elem().Implements(reflect.TypeFor[proto.Message]()) {
			return v
		}
		all := make([]any, r.Len())
		for i := range all {
			all[i] = withZeros(r.Index(i).Interface())
		}
		return all
	case reflect.Map:
		m, ok := v.(map[string]any)
		if !ok {
			return v
		}
		all := map[string]any{}
		for key, x := range m {
			all[key] = withZeros(x)
		}
		return all
	}
	return v
}

// message encodes a message as JSON, with its fields in the order of their definition.
// Optional fields that are absent are omitted.
type message struct{ protoreflect.Message }

// MarshalJSON implements json.Marshaler.
func (m message) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.HasPresence() && !m.Has(f) {
			continue
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Quote(string(f.Name())) + ":")
		text, err := json.Marshal(field(f, m.Get(f)))
		if err != nil {
			return nil, err
		}
		b.Write(text)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func field(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch {
	case f.IsMap():
		all := map[string]any{}
		v.Map().Range(func(k protoreflect.MapKey, x protoreflect.Value) bool {
			all[k.String()] = single(f.MapValue(), x)
			return true
		})
		return all
	case f.IsList():
		all := make([]any, v.List().Len())
		for i := range all {
			all[i] = single(f, v.List().Get(i))
		}
		return all
	}
	return single(f, v)
}

func single(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return message{v.Message()}
	case protoreflect.EnumKind:
		return int32(v.Enum())
	}
	return v.Interface()
}
