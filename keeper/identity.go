package keeper

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	"loadstar/fed/member"
	"loadstar/internal/mtls"
	v1 "loadstar/proto/loadstar/v1"
)

const identityFile = "identity.pem"

// Create makes a folder with a new identity. It does not replace an existing identity.
func Create(dir string) (member.Pin, error) {
	path := filepath.Join(dir, identityFile)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return member.Pin{}, errors.Join(err, fmt.Errorf("%s already has a keeper", dir))
	}
	if err := mtls.MakeDir(dir); err != nil {
		return member.Pin{}, err
	}
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return member.Pin{}, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return member.Pin{}, err
	}
	return member.PinOf(public), mtls.WritePrivate(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func readIdentity(dir string) (ed25519.PrivateKey, error) {
	path := filepath.Join(dir, identityFile)
	text, err := mtls.ReadPrivate(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s has no keeper: create one with 'loadstar keeper init'", dir)
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s is not a PEM file", path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	private, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s has another kind of key, want Ed25519", path)
	}
	return private, nil
}

// A statement is valid for 90 days. The keeper replaces it, with a new sealing key, 30 days
// before it expires.
const (
	statementSeconds = 90 * 86400
	renewSeconds     = 30 * 86400
)

func (k *Keeper) signed() *v1.SignedStatement {
	s := new(v1.SignedStatement)
	_ = proto.Unmarshal(k.meta.Statement, s) // was decoded successfully before it was stored
	return s
}

func (s *store) readStatement() (err error) {
	s.current = nil
	if len(s.meta.Statement) == 0 {
		return nil
	}
	if s.current, err = member.ReadStatement(s.meta.Statement); err == nil && member.PinOf(s.current.Identity) != s.pin {
		err = errors.New("the folder has the statement of another keeper")
	}
	return err
}

// begin records a start. The epoch is derived from the clock, so that a keeper that is created
// again does not begin at a lower epoch. It increases with each start, so that a server notices
// a copied folder.
func (k *Keeper) begin() error {
	return k.update("start", func(c *change) error {
		c.meta.Epoch = max(c.meta.Epoch+1, k.options.Now().UnixMilli())
		return c.log("start", "epoch %d", c.meta.Epoch)
	})
}

// renew makes a new statement unless the current one is still suitable. The number stays the
// same as long as the rules do not change and the keeper has its keys, because masks of open
// rounds depend on the number. If the keeper has lost its keys, the number changes, so all
// masks change.
func (k *Keeper) renew() error {
	now, number := k.options.seconds(), max(k.current.GetNumber()+1, k.options.Now().UnixMilli())
	if s := k.current; s != nil {
		id := member.SealingID(s.SealingKey)
		row, known := k.ring.sealing[id]
		if known && proto.Equal(s.Rules, k.options.Rules) {
			if now < s.NotAfter-renewSeconds && (row.Used == 0 || row.Used >= k.options.today()) {
				return nil
			}
			number = s.Number
		}
		if known { // erases the old sealing key when today's keys are erased
			if err := k.ring.useSealing(id, k.options.today()); err != nil {
				return err
			}
		}
	}
	private, public, err := member.NewSealingKey()
	if err != nil {
		return err
	}
	next := &v1.KeeperStatement{
		Identity: k.identity.Public().(ed25519.PublicKey), Fleet: k.options.Fleet, SealingKey: public, Number: number, NotAfter: now + statementSeconds, Rules: k.options.Rules,
	}
	data, err := member.SignStatement(next, k.identity)
	if err != nil {
		return err
	}
	if err := k.ring.addSealing(sealingRow{ID: member.SealingID(public), Key: private}); err != nil {
		return err
	}
	err = k.update("statement", func(c *change) error {
		c.meta.Statement = data
		r := next.Rules
		return c.log("statement", "number %d: least %d, quorum %d thousandths, cells of %d, age %d s, invited %t", next.Number, r.Least, r.Quorum, r.Cell, r.Age, r.Invited)
	})
	if err == nil {
		k.current = next
	}
	return err
}
