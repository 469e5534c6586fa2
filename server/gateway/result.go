package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"

	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/keepers"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// results receives results, and checks them before they are counted.
type results struct {
	ledger  *ledger.Counter
	terms   *terms.Cache
	history *history
	keepers *keepers.Set
	mirror  *mirror
	uploads *uploads
	counter *counter
	checked *apart // the counters of results that keepers check
	refuse  *refuser
	decline func(ctx context.Context, agent string, declines []*v1.Decline) error
	clients int  // maximum of an agent
	region  bool // the hub decides which results count
	hub     *Hub // of a region; otherwise nil
}

// take receives a result or a chunk of one, and counts it. The outcome PART means that more
// chunks are needed. ACCEPTED means that this is a region and the hub decides later. Any other
// outcome is final.
func (x *results) take(ctx context.Context, agent string, r *v1.Result) (*v1.Received, error) {
	t, err := x.terms.Of(ctx, r.Run)
	if errors.Is(err, ledger.ErrNotFound) {
		return x.refuse.reject("run", "no such run"), nil
	} else if err != nil {
		return nil, x.refuse.unavailable(ctx, err)
	}
	if reason := x.checkShape(r, t); reason != "" {
		return x.refuse.reject("shape", reason), nil
	}
	if rule, reason := x.checkMembers(agent, r, t); rule != "" {
		return x.refuse.reject("members", "rule "+rule+": "+reason), nil
	}
	if !x.mirror.hasLeases(agent, r) {
		over, err := x.withoutNumbers(ctx, agent, r)
		if err != nil {
			x.counter.failed(err)
			return nil, x.refuse.unavailable(ctx, err)
		}
		if over != nil {
			return over, nil
		}
	}
	if away := x.away(t); away != nil && len(r.Chunk) == 0 {
		return away, nil
	}
	numbers, done, next, err := x.uploads.add(agent, r, time.Now())
	if err != nil {
		x.refuse.metrics.refused.WithLabelValues("uploads").Inc()
		return nil, connect.NewError(connect.CodeResourceExhausted, err)
	}
	if numbers == nil {
		return &v1.Received{Outcome: v1.Outcome_OUTCOME_PART, NextOffset: next}, nil
	}
	defer done()
	if protocol.Checksum(numbers) != r.Checksum {
		return x.refuse.reject("checksum", "the numbers do not match their checksum"), nil
	}
	result := terms.Of(r, numbers)
	result.Limits, err = t.Limits(r.Version, func() ([]byte, error) {
		v, err := x.history.version(ctx, r.Run, r.Version)
		return v.Limits, err
	})
	if errors.Is(err, ledger.ErrNotFound) { // the turn has ended since its lease was read
		return x.ended(ctx, agent, r)
	} else if err != nil {
		return nil, x.refuse.unavailable(ctx, err)
	}
	if err := t.Prepare(result); err != nil {
		return x.refuse.reject("numbers", err.Error()), nil
	}
	e := terms.Plausible(r.Evaluation, len(r.Shares))
	a := &arrived{
		run: r.Run, round: r.Round, agent: agent, terms: t, result: result, bytes: len(numbers),
		evaluation: ledger.Evaluation{Clients: e.GetClients(), RelativeMAE: e.GetRelativeMae()},
	}
	switch {
	case t.Private():
		a.masks, a.alone = masksOf(agent, r), x.region && t.Checks()
		if a.check, err = x.toCheck(ctx, t, r, numbers); err != nil {
			return x.waits(ctx, t, err)
		}
	case t.Folds():
		result.Numbers = nil // the prepared result contains them
		freeChunk(r)         // its memory is not needed while the result waits
	}
	r.Chunk = nil
	leaveGate(ctx)
	// If the database does not respond, the agent gets a clear answer and keeps its result.
	// Without this limit, the agent would give up first and would not know the reason.
	within, cancel := context.WithTimeout(ctx, countWithin)
	defer cancel()
	counter := x.counter
	if a.check != nil {
		counter = x.checked.of(a.check.keepers)
	}
	counted, err := counter.count(within, a)
	if refused := (*notAccepted)(nil); errors.As(err, &refused) {
		return x.refusedByKeeper(ctx, agent, r, refused)
	}
	if err != nil {
		return x.waits(ctx, t, err)
	}
	x.refuse.metrics.bytes.Add(float64(a.bytes))
	if !counted { // the answer to an earlier attempt was lost, or the round has closed meanwhile
		return x.ended(ctx, agent, r)
	}
	if arrival, ok := ctx.Value(arrivalKey{}).(time.Time); ok {
		x.refuse.metrics.count.Observe(time.Since(arrival).Seconds())
	}
	if x.region {
		return &v1.Received{Outcome: v1.Outcome_OUTCOME_ACCEPTED}, nil
	}
	return &v1.Received{Outcome: v1.Outcome_OUTCOME_COUNTED}, nil
}

// waits answers a result that could not be counted because of err.
func (x *results) waits(ctx context.Context, t *terms.Terms, err error) (*v1.Received, error) {
	if away := x.away(t); away != nil {
		return away, nil
	}
	return nil, x.refuse.unavailable(ctx, err)
}

// away returns the answer to a result that cannot be checked now because a keeper does not answer.
// Otherwise it returns nil. If the answer were an error, an agent would wait longer each time,
// for up to five minutes. It now returns when the server asks it to, and first sends the result
// without numbers.
func (x *results) away(t *terms.Terms) *v1.Received {
	if !t.Checks() {
		return nil
	}
	var away *keepers.Away
	if _, err := x.keepers.Statements(t.Plan.Privacy.Keepers); !errors.As(err, &away) {
		return nil
	}
	return &v1.Received{Outcome: v1.Outcome_OUTCOME_UNKNOWN, Reason: fmt.Sprintf("keeper %s does not answer the server", away.Name)}
}

// countWithin is the maximum time for which a result waits to be counted. It is shorter
// than an agent's timeout, and longer than most failovers of a database.
const countWithin = 20 * time.Second

// ended returns the outcome of a result whose turns are no longer open.
func (x *results) ended(ctx context.Context, agent string, r *v1.Result) (*v1.Received, error) {
	over, err := x.withoutNumbers(ctx, agent, r)
	if err == nil && over == nil {
		if over, err = x.samePart(ctx, agent, r); over != nil {
			return over, nil
		}
	}
	if err == nil && over == nil {
		err = errors.New("a result with a lease was not counted; its agent tries again")
	}
	if err != nil {
		return nil, x.refuse.unavailable(ctx, err)
	}
	return over, nil
}

// checkShape checks everything about a result except its numbers. It returns a description
// of the fault, or an empty string.
func (x *results) checkShape(r *v1.Result, t *terms.Terms) string {
	if wrong := x.checkMasked(r, t); wrong != "" {
		return wrong
	}
	size := int64(t.Rules.UpdateBytes(t.Shared))
	switch {
	case r.Form == v1.Form_FORM_UPDATE && len(r.Shares) != 1:
		return fmt.Sprintf("the update has %d clients, want 1", len(r.Shares))
	case r.Form == v1.Form_FORM_UPDATE && r.Size != size:
		return fmt.Sprintf("the update has %d bytes, want %d for the shared layers of this plan", r.Size, size)
	case r.Form == v1.Form_FORM_SUM && !t.Folds():
		return "the result is a sum, but this plan needs each update"
	case r.Form == v1.Form_FORM_SUM && r.Size != t.SumBytes():
		return fmt.Sprintf("the sum has %d bytes, want %d for this plan", r.Size, t.SumBytes())
	case r.Form != v1.Form_FORM_UPDATE && r.Form != v1.Form_FORM_SUM && r.Form != v1.Form_FORM_MASKED:
		return "the form of the result is unknown"
	case len(r.Shares) == 0 || len(r.Shares) > x.clients:
		return fmt.Sprintf("the result has %d clients, want 1 to %d", len(r.Shares), x.clients)
	case len(r.Chunk) > chunkBytes || r.Offset < 0 || r.Offset > r.Size || int64(len(r.Chunk)) > r.Size-r.Offset:
		return "the chunk does not fit into the result, or the hash is not a SHA-256"
	case slices.ContainsFunc(r.Shares, func(s *v1.Share) bool { return !validName(s.GetClient()) }):
		return "a client's name is not valid"
	}
	return ""
}

// refusedByKeeper returns the response to a result that a keeper does not accept, and ends its
// turn.
func (x *results) refusedByKeeper(ctx context.Context, agent string, r *v1.Result, why error) (*v1.Received, error) {
	// A keeper also refuses results of a round that was closed and released in the meantime. Such
	// results are late, but not faulty.
	late, err := x.withoutNumbers(ctx, agent, r)
	if err != nil {
		return nil, x.refuse.unavailable(ctx, err)
	}
	if late != nil {
		return late, nil
	}
	// End the turn in any case. The round must not wait for it, and another attempt would reveal
	// another bit of the random vectors to the agent.
	if err := x.decline(ctx, agent, []*v1.Decline{{Turns: turnsOf(r), Reason: "a keeper refused its result"}}); err != nil {
		return nil, err
	}
	return x.refuse.reject("check", why.Error()), nil
}

// turnsOf returns the turns of a result.
func turnsOf(r *v1.Result) *v1.Turns {
	turns := &v1.Turns{Run: r.Run, Round: r.Round}
	for _, s := range r.Shares {
		turns.Clients = append(turns.Clients, s.Client)
	}
	return turns
}

// withoutNumbers returns the outcome of a result whose numbers are not needed, because its
// turns are counted or closed, or belong to another agent. Otherwise it returns nil. It queries
// the ledger, because the mirror can be outdated.
func (x *results) withoutNumbers(ctx context.Context, agent string, r *v1.Result) (*v1.Received, error) {
	clients := make([]string, len(r.Shares))
	for i, s := range r.Shares {
		clients[i] = s.Client
	}
	x.mirror.forget(agent) // the mirror was wrong about this result
	where, err := x.ledger.Standings(ctx, agent, r.Run, r.Round, clients)
	if err != nil {
		return nil, err
	}
	counted := 0
	for _, c := range clients {
		switch w := where[c]; {
		case w.State == ledger.Counted:
			counted++
		case w.State == ledger.Held:
			return &v1.Received{Outcome: v1.Outcome_OUTCOME_ACCEPTED}, nil
		case w.State == ledger.Asked && w.Version != r.Version:
			return x.refuse.reject("version", fmt.Sprintf("client %s was asked to train from version %d, not %d", c, w.Version, r.Version)), nil
		case w.State != ledger.Asked:
			// The response is the same for a late result and for a result of another agent's
			// client, so it reveals nothing about other agents' clients.
			x.refuse.metrics.refused.WithLabelValues("closed").Inc()
			return &v1.Received{Outcome: v1.Outcome_OUTCOME_CLOSED}, nil
		}
	}
	switch counted {
	case 0:
		return nil, nil
	case len(clients):
		return &v1.Received{Outcome: v1.Outcome_OUTCOME_COUNTED}, nil
	}
	return x.refuse.reject("overlap", "some clients of this sum have already been counted"), nil
}
