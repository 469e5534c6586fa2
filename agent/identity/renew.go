package identity

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"loadstar/internal/mtls"
	loadstarv1 "loadstar/proto/loadstar/v1"
)

// RenewIfDue gets a new key and certificate when less than a third of the old certificate's
// lifetime is left, and reports whether it did. The old key and certificate stay in use
// until the new ones are on disk. If a renewal fails, the old ones remain valid; call
// RenewIfDue again later.
func (i *Identity) RenewIfDue(ctx context.Context, now time.Time) (bool, error) {
	if !mtls.Due(i.current.Load().Leaf, now) {
		return false, nil
	}
	i.renewing.Lock()
	defer i.renewing.Unlock()
	had := i.current.Load()
	if !mtls.Due(had.Leaf, now) { // a concurrent call has already renewed it
		return false, nil
	}
	if now.After(had.Leaf.NotAfter) {
		return false, fmt.Errorf("this agent's certificate: %w; if the clock is right, join again with a new token", wrongTime(had.Leaf, now))
	}
	key, csr, err := newKey()
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := loadstarv1.NewAgentServiceClient(i.client, i.server, connect.WithReadMaxBytes(maxAnswer)).Renew(ctx, &loadstarv1.RenewRequest{Csr: csr})
	if err != nil {
		return false, explain("renewing the certificate at", i.server, err, "ask the server's operator whether this agent was revoked; to return, it has to join again with a new token")
	}
	c := mtls.Credentials{Key: key, Root: had.Root}
	if c.Leaf, err = certificate(answer.GetCertificates(), &c, now); err == nil && !sameNames(c, had.Credentials) {
		err = errors.New("the certificate belongs to another agent")
	}
	if err != nil {
		return false, fmt.Errorf("renewing the certificate: invalid response of %s: %w", i.server, err)
	}
	if err := i.store(c); err != nil {
		return false, fmt.Errorf("storing the renewed certificate: %w", err)
	}
	i.put(c)
	return true, nil
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
