package gateway

import (
	"bytes"
	"errors"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "loadstar/proto/loadstar/v1"
)

// An empty field of a message takes two bytes on the wire, but fifty times as much memory when
// it is decoded. The codecs therefore count the fields, here called parts, before they decode a
// message.

var errParts = errors.New("the message has more parts than an agent ever sends")

// heavyParts is the number of parts above which decoding a message is heavy. Check-ins and
// announcements for thousands of clients exceed it. Updates have few parts.
const heavyParts = 4096

// codecs returns connect's usual codecs with a limit on the parts of a message. Decoding a
// message with many parts waits for a free slot in heavy.
func codecs(parts int, heavy chan struct{}) []connect.HandlerOption {
	return []connect.HandlerOption{
		connect.WithCodec(binaryCodec{parts, heavy}),
		connect.WithCodec(textCodec{"json", parts, heavy}), connect.WithCodec(textCodec{"json; charset=utf-8", parts, heavy}),
	}
}

// limited calls decode when heavy has a free slot, or at once if a message has few parts.
func limited(heavy chan struct{}, parts int, decode func() error) error {
	if parts > heavyParts {
		heavy <- struct{}{}
		defer func() { <-heavy }()
	}
	return decode()
}

type binaryCodec struct {
	parts int
	heavy chan struct{}
}

func (binaryCodec) Name() string { return "proto" }

func (binaryCodec) Marshal(m any) ([]byte, error) { return proto.Marshal(m.(proto.Message)) }

func (binaryCodec) MarshalAppend(b []byte, m any) ([]byte, error) {
	return proto.MarshalOptions{}.MarshalAppend(b, m.(proto.Message))
}

func (c binaryCodec) Unmarshal(b []byte, m any) error {
	into := m.(proto.Message)
	left := c.parts
	if !within(b, into.ProtoReflect().Descriptor(), &left) {
		return errParts
	}
	return limited(c.heavy, c.parts-left, func() error {
		if q, ok := into.(*v1.ExchangeRequest); ok && len(b) > smallBody && unmarshalChunk(b, q) {
			return nil
		}
		return proto.Unmarshal(b, into)
	})
}

// chunks contains buffers of chunks that were released, because most of the memory that a gateway
// allocates is for chunks.
var chunks sync.Pool // of *[]byte

// freeChunk releases the memory of a result's chunk. Nothing may refer to it any more.
func freeChunk(r *v1.Result) {
	if cap(r.Chunk) > 0 {
		b := r.Chunk[:0]
		chunks.Put(&b)
	}
	r.Chunk = nil
}

// unmarshalChunk decodes a request with one result that has one chunk. It reads the chunk into a
// buffer that was released, and returns false without a decision about any other request.
func unmarshalChunk(b []byte, q *v1.ExchangeRequest) bool {
	before, result, after, ok := cut(b, resultField)
	if !ok {
		return false
	}
	first, chunk, rest, ok := cut(result, chunkField)
	if !ok {
		return false
	}
	small := make([]byte, 0, 512)
	small = append(append(small, before...), after...)
	small = protowire.AppendTag(small, resultField, protowire.BytesType)
	small = protowire.AppendVarint(small, uint64(len(first)+len(rest)))
	small = append(append(small, first...), rest...)
	if proto.Unmarshal(small, q) != nil {
		return false
	}
	numbers, ok := chunks.Get().(*[]byte)
	if !ok || cap(*numbers) < len(chunk) || cap(*numbers) > 2*len(chunk) { // a caller holds no more memory than it has sent
		numbers = new([]byte)
	}
	q.Result.Chunk = append((*numbers)[:0], chunk...)
	return true
}

// The numbers of the fields in a request.
const resultField, chunkField = 8, 9

// cut returns the value of a field of bytes, and the fields before and after it. Ok is false if the
// field does not occur exactly once.
func cut(b []byte, field protowire.Number) (before, value, after []byte, ok bool) {
	for rest := b; len(rest) > 0; {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return nil, nil, nil, false
		}
		size := protowire.ConsumeFieldValue(number, kind, rest[n:])
		if size < 0 || number == field && (ok || kind != protowire.BytesType) {
			return nil, nil, nil, false
		}
		if number == field {
			ok = true
			value, _ = protowire.ConsumeBytes(rest[n:]) // the field was checked above
			before, after = b[:len(b)-len(rest)], rest[n+size:]
		}
		rest = rest[n+size:]
	}
	return before, value, after, ok
}

// within reports whether a message has at most the given number of parts. It returns true
// for malformed messages, because the decoder refuses them.
func within(b []byte, of protoreflect.MessageDescriptor, left *int) bool {
	for len(b) > 0 {
		if *left--; *left < 0 {
			return false
		}
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return true
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return true
		}
		if field := of.Fields().ByNumber(number); field != nil && field.Message() != nil && kind == protowire.BytesType {
			inner, _ := protowire.ConsumeBytes(b)
			if !within(inner, field.Message(), left) {
				return false
			}
		}
		b = b[n:]
	}
	return true
}

type textCodec struct {
	name  string
	parts int
	heavy chan struct{}
}

func (c textCodec) Name() string { return c.name }

func (textCodec) Marshal(m any) ([]byte, error) { return protojson.Marshal(m.(proto.Message)) }

func (c textCodec) Unmarshal(b []byte, m any) error {
	parts := bytes.Count(b, []byte(",")) + bytes.Count(b, []byte("{")) + bytes.Count(b, []byte("["))
	if parts > c.parts {
		return errParts
	}
	return limited(c.heavy, parts, func() error {
		return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, m.(proto.Message))
	})
}
