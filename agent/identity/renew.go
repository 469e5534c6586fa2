package identity

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"loadstar/internal/mtls"
	"loadstar/internal/protocol"
	loadstarv1 "loadstar/proto/loadstar/v1"
)

const (
	// retryFirst and retryMost bound the time between two attempts to renew.
	retryFirst = time.Second
	retryMost  = time.Hour
	// renewHeader is on a response if the server's issuer has changed.
	renewHeader = "Loadstar-Renew"
)

// RenewIfDue gets a new key and certificate when less than a third of the old certificate's
// lifetime is left, or when the server has asked for a renewal, and reports whether it renewed
// them. It also renews an expired certificate, which a server accepts for some time. The old
// key and certificate stay in use until the new ones are on disk. If a renewal fails, the old
// ones remain. RenewIfDue may be called again at any time, and waits longer after each failure.
//
// After a rotation of the issuer, the agent therefore renews at its next contact with the
// server. Only an agent that has just followed another rotation waits for a third of its
// certificate's lifetime, at most an hour.
func (i *Identity) RenewIfDue(ctx context.Context, now time.Time) (bool, error) {
	if !i.due(now) {
		return false, nil
	}
	i.renewing.Lock()
	defer i.renewing.Unlock()
	asked := i.stale.Load()
	waits := now.Before(i.after) && i.after.Sub(now) <= retryMost && !(asked && i.unasked)
	if !i.due(now) || waits { // a concurrent call may have renewed it
		return false, nil
	}
	err := i.renew(ctx, now)
	i.unasked = err == nil && !asked
	if err != nil {
		i.after = now.Add(i.retry.Next())
		return false, err
	}
	i.retry.Reset()
	// A server that asks again at once means that several servers have different issuers. A
	// short-lived certificate would always be due, because its validity begins before its issue.
	i.after = now.Add(min(retryMost, i.Expires().Sub(now)/3))
	i.stale.Store(false)
	return true, nil
}

func (i *Identity) due(now time.Time) bool {
	return i.stale.Load() || mtls.Due(i.current.Load().Leaf, now)
}

func (i *Identity) renew(ctx context.Context, now time.Time) error {
	had := i.current.Load()
	if now.Before(had.Leaf.NotBefore) {
		return fmt.Errorf("this agent's certificate: %w", wrongTime(had.Leaf, now))
	}
	key, csr, err := newKey()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := loadstarv1.NewAgentServiceClient(i.client, i.server, connect.WithReadMaxBytes(maxAnswer), protocol.Client()).Renew(ctx, &loadstarv1.RenewRequest{Csr: csr})
	if err != nil {
		refused := "ask the server's operator whether this agent was revoked; to return, it has to join again with a new token"
		if now.After(had.Leaf.NotAfter) {
			refused = fmt.Sprintf("%v; if the clock is right, join again with a new token: the agent keeps its clients", wrongTime(had.Leaf, now))
		}
		return explain("renewing the certificate at", i.server, err, refused)
	}
	c := mtls.Credentials{Key: key, Root: had.Root, More: had.More}
	if err = c.Trust(answer.GetRoots()); err == nil {
		if c.Leaf, err = certificate(answer.GetCertificates(), &c, now); err == nil && !sameNames(c, had.Credentials) {
			err = errors.New("the certificate belongs to another agent")
		}
	}
	if err != nil {
		return fmt.Errorf("renewing the certificate: invalid response of %s: %w", i.server, err)
	}
	if err := i.store(c); err != nil {
		return fmt.Errorf("storing the renewed certificate: %w", err)
	}
	i.put(c)
	return nil
}

// sameNames reports whether two certificates are for the same agent.
func sameNames(a, b mtls.Credentials) bool {
	if len(a.Leaf.URIs) != len(b.Leaf.URIs) {
		return false
	}
	for n, u := range a.Leaf.URIs {
		if u.String() != b.Leaf.URIs[n].String() {
			return false
		}
	}
	return true
}
