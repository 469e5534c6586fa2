package bus

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// result is what a message carries one or more of: for each, its id and its data, as
// fields of a protobuf message that repeats them.
type result struct {
	id   string
	data []byte
}

const (
	idField, dataField protowire.Number = 1, 2
	// frame is about what a result takes in a message beside its data.
	frame = maxID + 16
)

// pack puts a group into one message. That of one result has its id, so that the same
// result is filtered when it comes again alone.
func pack(group []*offer) (id string, message []byte) {
	size := 0
	for _, o := range group {
		size += len(o.id) + len(o.data) + 16
	}
	message = make([]byte, 0, size)
	ids := sha256.New()
	for _, o := range group {
		message = protowire.AppendTag(message, idField, protowire.BytesType)
		message = protowire.AppendString(message, o.id)
		message = protowire.AppendTag(message, dataField, protowire.BytesType)
		message = protowire.AppendBytes(message, o.data)
		ids.Write([]byte(o.id + "\n")) // which is in no id
	}
	if len(group) == 1 {
		return group[0].id, message
	}
	return "group/" + hex.EncodeToString(ids.Sum(nil)), message
}

var errForeign = errors.New("bus: not a message of results")

// unpack returns the results of a message, whose data stay in it.
func unpack(message []byte) (all []result, err error) {
	for len(message) > 0 {
		var r result
		for _, field := range []protowire.Number{idField, dataField} {
			number, kind, n := protowire.ConsumeTag(message)
			if n < 0 || number != field || kind != protowire.BytesType {
				return nil, errForeign
			}
			value, m := protowire.ConsumeBytes(message[n:])
			if m < 0 {
				return nil, errForeign
			}
			message = message[n+m:]
			if field == idField {
				r.id = string(value)
			} else {
				r.data = value[:len(value):len(value)] // the next result is behind it
			}
		}
		all = append(all, r)
	}
	return all, nil
}
