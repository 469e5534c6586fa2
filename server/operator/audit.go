package operator

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/directory"
)

// auditSettles is the age of an event after which no new event can be sorted before it. It
// exceeds the longest wait of a transaction and the differences between gateways' clocks.
const auditSettles = 10 * time.Second

// ListAudit returns the newest events of the audit log, newest first. With After, it returns
// the events that follow a given event, oldest first, so that a program can follow the log
// without a gap.
func (o *people) ListAudit(ctx context.Context, r *v1.ListAuditRequest) (*v1.ListAuditResponse, error) {
	q := directory.AuditQuery{Before: r.Before, After: r.After, Actors: actors(r.Actor), Limit: page(r.Limit, 50)}
	if r.Action != "" {
		q.Actions = []string{r.Action}
	}
	switch {
	case r.Before != "" && r.After != "":
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("give either before or after, not both"))
	case r.After != "":
		now := time.Now()
		if at := eventTime(r.After); at.After(now.Add(time.Hour)) {
			// An empty response would hide all events until then.
			return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf(
				"event %s is of %s, which is in the future, because a clock was ahead; give the ID of an event before the wrong ones", r.After, at.UTC().Format(time.RFC3339)))
		}
		q.Until = now.Add(-auditSettles)
	}
	events, err := o.Ledger.Events.Audit(ctx, q)
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.ListAuditResponse{}
	for _, e := range events {
		answer.Events = append(answer.Events, &v1.Event{Id: e.ID, At: millis(e.At), Actor: e.Actor, Action: e.Action, Subject: e.Subject, Detail: e.Detail})
	}
	return answer, nil
}

// eventTime returns the time in the id of an event, or the zero time if it has none.
func eventTime(id string) time.Time {
	ms, err := strconv.ParseInt(id[:min(len(id), 16)], 16, 64)
	if err != nil || len(id) < 16 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// actors returns the names in the audit log that a filter selects. A filter without a space
// selects the user or agent of this name.
func actors(filter string) []string {
	switch {
	case filter == "":
		return nil
	case strings.Contains(filter, " "):
		return []string{filter}
	}
	var all []string
	// Before users had roles, events named an operator by its certificate.
	for _, form := range []string{"user %s via web", "user %s via certificate", "operator %s", "agent %s", "%s"} {
		all = append(all, fmt.Sprintf(form, filter))
	}
	return all
}
