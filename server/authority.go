package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"loadstar/server/directory"
	"loadstar/server/ledger"
	"loadstar/server/pki"
)

const (
	// authorityEvery is the interval at which a server checks whether an operator has
	// rotated its certificate authority.
	authorityEvery = 2 * time.Second
	// issuerWarning is the remaining lifetime of an issuer below which the server logs a warning
	// when it starts.
	issuerWarning = 180 * 24 * time.Hour
)

// openAuthority opens the certificate authority. It creates one only for a new ledger, because
// agents that have joined trust the existing authority, and all gateways need the same one.
func (s *server) openAuthority(ctx context.Context) (err error) {
	dir := filepath.Join(s.Dir, pkiDir)
	s.authority, err = pki.OpenExisting(dir, s.Keys)
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.newLedger(ctx, dir); err != nil {
			return err
		}
		if s.authority, err = pki.Open(dir, s.Keys); err != nil {
			return err
		}
		s.Log.Warn("created a root key, which the server does not need; move it to a safe place offline, because 'loadstar pki rotate' needs it in a few years", "file", s.authority.RootKeyHere())
	} else if err != nil {
		return err
	}
	for _, i := range s.authority.Issuers() {
		if left := time.Until(i.Expires); i.Signs && left < issuerWarning {
			s.Log.Warn("the issuer of certificates expires soon: run loadstar pki rotate", "issuer", i.Name, "expires", i.Expires)
		}
	}
	return nil
}

// newLedger returns an error if the ledger contains agents that have joined, or users'
// certificates, because another gateway, or this gateway with another folder, has issued their
// certificates.
func (s *server) newLedger(ctx context.Context, dir string) error {
	n, err := s.ledger.Directory.Agents(ctx)
	if err != nil {
		return err
	}
	has := fmt.Sprintf("agents have joined that trust another authority (%d)", n)
	if n == 0 {
		c, err := s.ledger.Users.UserCertificates(ctx, 1, time.Now())
		if err != nil {
			return err
		}
		if len(c) == 0 {
			return nil
		}
		has = fmt.Sprintf("the ledger has certificates of another authority, the newest of user %s", c[0].User)
	}
	return fmt.Errorf("%s has no certificate authority, but %s: copy the folder from another gateway, without the root's key, or restore it from a backup; to let all agents join again, create one with: loadstar pki init --dir %s", dir, has, s.Dir)
}

// watchAuthority follows rotations of the certificate authority.
func (s *server) watchAuthority(ctx context.Context) error {
	return s.authority.Watch(ctx, authorityEvery, s.Log, func() {
		if err := s.writeOperator(ctx); err != nil && ctx.Err() == nil {
			s.Log.Error("cannot renew the operator's certificate in the server's folder", "error", err)
		}
	})
}

// writeOperator writes the certificate of the user local to the server's folder, unless it
// exists. It records the certificate in the ledger, which lists all accepted certificates. It
// also records a certificate that an older server wrote without recording it.
func (s *server) writeOperator(ctx context.Context) error {
	c, err := s.authority.WriteOperator(filepath.Join(s.Dir, "operator"), operatorLife, func(serial string) (bool, error) {
		c, _, err := s.ledger.Users.CertificateOf(ctx, serial)
		if errors.Is(err, ledger.ErrNotFound) {
			return false, nil
		}
		return !c.Revoked.IsZero(), err
	})
	if err != nil {
		return err
	}
	now := time.Now()
	return s.ledger.Users.RecordLocal(ctx, directory.Certificate{Serial: pki.Serial(c), User: directory.LocalUser, Issued: now, Expires: c.NotAfter}, now)
}
