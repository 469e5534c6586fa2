package bus

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// result is the id and the data of one published result. On the wire, a message is in
// protobuf format, with an id field and a data field for each of its results.
type result struct {
	id   string
	data []byte
}

const (
	idField, dataField protowire.Number = 1, 2
	// frame is the approximate overhead of one result in a message, in bytes.
	frame = maxID + 16
)

// pack encodes a group as one message. A message with one result has that result's id, so
// that the stream discards a repeated result.
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
		ids.Write([]byte(o.id + "\n")) // ids contain no newline
	}
	if len(group) == 1 {
		return group[0].id, message
	}
	return "group/" + hex.EncodeToString(ids.Sum(nil)), message
}

var errForeign = errors.New("bus: the message does not hold results")

// unpack returns the results in a message. Their data are slices of the message.
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
				r.data = value[:len(value):len(value)] // an append must not overwrite the next result
			}
		}
		all = append(all, r)
	}
	return all, nil
}
