package keepers

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/fed/member"
	v1 "loadstar/proto/loadstar/v1"
)

// read checks a response that contains a statement, and stores the statement.
func (k *keeper) read(q *v1.KeeperStateRequest, a *v1.KeeperStateResponse) (epoch int64, err error) {
	text, err := proto.Marshal(a.Statement)
	if err != nil {
		return 0, err
	}
	says, err := member.ReadStatement(text)
	if err != nil {
		return 0, err
	}
	if err := member.Valid(says, k.Identity, time.Now()); err != nil {
		return 0, err
	}
	if err := member.Verify(says.Identity, q, a); err != nil {
		return 0, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.says != nil && says.Number < k.says.Number {
		return 0, fmt.Errorf("its statement is number %d, and it had number %d before", says.Number, k.says.Number)
	}
	if string(a.Revision) != string(q.Members) {
		k.behind = map[string]int64{}
		for _, m := range a.Members {
			if region, _, ok := strings.Cut(m.GetAgent(), "."); ok && !m.Revoked {
				k.behind[region]++
			}
		}
	}
	k.statement, k.says, k.revision = text, says, a.Revision
	return a.Signature.Epoch, nil
}

// verify checks the signature of a response, and returns the epoch in it.
func (k *keeper) verify(q proto.Message, a member.Answer) (epoch int64, err error) {
	k.mu.Lock()
	identity := ed25519.PublicKey(k.says.GetIdentity())
	k.mu.Unlock()
	if identity == nil {
		return 0, errors.New("it has not sent a statement yet")
	}
	if err := member.Verify(identity, q, a); err != nil {
		return 0, err
	}
	return a.GetSignature().Epoch, nil
}
