package member

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"google.golang.org/protobuf/proto"

	v1 "loadstar/proto/loadstar/v1"
)

// Answer is a keeper's response, with the keeper's signature.
type Answer interface {
	proto.Message
	GetSignature() *v1.KeeperSignature
}

// digest returns the SHA-256 of a message. These messages contain no maps, so their encoding is
// deterministic.
func digest(m proto.Message) [32]byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return [32]byte{} // a name that is not UTF-8 cannot be encoded, so no signature is valid
	}
	return sha256.Sum256(b)
}

func statement(epoch int64, request, answer proto.Message) []byte {
	q, a := digest(request), digest(answer)
	return signed("answer", binary.LittleEndian.AppendUint64(nil, uint64(epoch)), q[:], a[:])
}

// Sign returns the signature for an answer, which must not have one yet.
func Sign(key ed25519.PrivateKey, epoch int64, request, answer proto.Message) *v1.KeeperSignature {
	return &v1.KeeperSignature{Epoch: epoch, Signature: ed25519.Sign(key, statement(epoch, request, answer))}
}

// Verify checks that the keeper signed this answer to this request.
func Verify(identity ed25519.PublicKey, request proto.Message, answer Answer) error {
	s := answer.GetSignature()
	bare := proto.CloneOf(answer)
	f := bare.ProtoReflect().Descriptor().Fields().ByName("signature")
	bare.ProtoReflect().Clear(f)
	if len(identity) != ed25519.PublicKeySize || s == nil || !ed25519.Verify(identity, statement(s.Epoch, request, bare), s.Signature) {
		return errors.New("the keeper's signature of its answer is wrong")
	}
	return nil
}
