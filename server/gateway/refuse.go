package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"connectrpc.com/connect"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/pki"
)

// refuser responds to calls that the gateway cannot or does not serve, and counts and logs the
// reasons.
type refuser struct {
	log     *slog.Logger
	metrics *metrics
}

// unavailable returns an error that makes an agent retry, because the ledger or another
// service has failed. The details go to the log, not to the agent.
func (r *refuser) unavailable(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		log := r.log
		if who, ok := pki.From(ctx); ok {
			log = log.With("agent", who.ID)
		}
		if call, ok := connect.CallInfoForHandlerContext(ctx); ok {
			log = log.With("procedure", call.Spec().Procedure)
		}
		log.Warn("cannot serve an agent", "error", err)
	}
	return connect.NewError(connect.CodeUnavailable, errors.New("the server cannot answer now; try again"))
}

// invalid refuses a malformed request, which our agents never send.
func (r *refuser) invalid(reason, format string, args ...any) error {
	r.metrics.refused.WithLabelValues(reason).Inc()
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}

// reject rejects a result.
func (r *refuser) reject(kind, reason string) *v1.Received {
	r.metrics.refused.WithLabelValues(kind).Inc()
	return &v1.Received{Outcome: v1.Outcome_OUTCOME_REJECTED, Reason: reason}
}
