package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/pki"
)

// errExpired is the reason why a call of an agent with an expired certificate is refused.
var errExpired = errors.New("the certificate of this agent has expired")

// grace lets an agent whose certificate expired only recently renew it, and returns to other
// callers with an expired certificate an error that describes what to do. The certificate still
// proves that the agent has the key, and the ledger still knows whether the agent is revoked.
func (g *Gateway) grace(next http.Handler) http.Handler {
	errorWriter := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, known := pki.CallerFrom(r.Context())
		_, valid := pki.From(r.Context())
		if valid || !known || caller.Role != pki.Agent || r.URL.Path == v1.AgentServiceJoinProcedure {
			next.ServeHTTP(w, r)
			return
		}
		now, ended := time.Now(), caller.Leaf.NotAfter
		var err error
		switch when := ended.UTC().Format(time.RFC3339); {
		case !now.After(ended):
			err = errors.New("the certificate of this agent is not valid yet, because the server's clock is behind")
		case now.Sub(ended) > g.Grace:
			err = fmt.Errorf("%w on %s, more than %v ago; join again with a new token; the agent keeps its clients", errExpired, when, g.Grace)
		case r.URL.Path != v1.AgentServiceRenewProcedure:
			err = fmt.Errorf("%w on %s; renew it, which is possible for %v", errExpired, when, g.Grace)
		default:
			g.Log.Info("an agent renews a certificate that has expired", "agent", caller.ID, "expired", when)
			next.ServeHTTP(w, r.WithContext(pki.With(r.Context(), caller.Identity)))
			return
		}
		g.metrics.refused.WithLabelValues("expired").Inc()
		_ = errorWriter.Write(w, r, connect.NewError(connect.CodeUnauthenticated, err)) // a failed write means that the caller has disconnected
	})
}
