// Package operator serves the operators' API, which the command line uses.
package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"loadstar/fed"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/access"
	"loadstar/server/directory"
	"loadstar/server/ledger"
	"loadstar/server/pki"
)

// Config holds the dependencies and settings of the operators' API.
type Config struct {
	Ledger *ledger.Ledger
	// Access creates logins. Authority signs the certificates of users, and its pin is in join
	// tokens.
	Access    *access.Gate
	Authority *pki.Authority
	// Page is the address of the dashboard; empty if there is none.
	Page string
	// Agents is the address for agents. Apart means that operators have another one.
	Agents string
	Apart  bool
	// Hub is the address of the hub if this is a region's server, and otherwise empty.
	Hub string
	// Version is that of the server's program.
	Version string
	// Quiet returns after what time without a call an agent counts as quiet in a fleet
	// of the given size.
	Quiet func(agents int64) time.Duration
	// Contact returns when an agent last called this process, and after which time the next
	// call is due. It may be nil.
	Contact func(agent string) (at time.Time, next time.Duration, ok bool)
	// Refused returns the clients that agents announced and may not have, by agent. It may be nil.
	Refused func() map[string][]string
	// Keepers returns an error if the server does not have the named keepers. It may be nil.
	Keepers func(names []string) error
	// Wake notifies the coordinator of a change in a run.
	Wake func(run string)
	// Revoked is called with the name of a revoked agent before the operator's call
	// returns.
	Revoked func(agent string)
	// Explain describes a plan for a number of clients. It may be nil.
	Explain func(p *fed.Plan, clients int) (string, error)
	// Closing is closed when the server shuts down. Calls of WatchRun then end.
	Closing <-chan struct{}
	Log     *slog.Logger
}

// Operator implements the operators' API. It is safe for concurrent use.
type Operator struct {
	Config
	watching chan struct{}
	// explaining admits one explanation at a time, because each measures the processor.
	explaining chan struct{}
	counts     cached[directory.FleetCounts]
	silents    cached[map[string]bool]
	heads      heads
}

var _ v1.OperatorServiceHandler = (*Operator)(nil)

const (
	maxPage     = 1000
	maxWatchers = 64
	watchEvery  = 500 * time.Millisecond
	// checkEvery is how often a stream checks that its caller still has access.
	checkEvery = 2 * time.Second
	maxPlan    = 1 << 20
)

// New returns an Operator.
func New(c Config) *Operator {
	return &Operator{Config: c, watching: make(chan struct{}, maxWatchers), explaining: make(chan struct{}, 1)}
}

// Handler returns the handler of the operators' API. The context of each request must carry
// the caller; see package access.
func (o *Operator) Handler() http.Handler {
	_, service := v1.NewOperatorServiceHandler(o, connect.WithReadMaxBytes(2*maxPlan))
	errorWriter := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Check the caller before reading anything that it sends.
		if err := access.Allow(r.Context(), r.URL.Path); err != nil {
			_ = errorWriter.Write(w, r, err) // a failed write means that the caller has gone
			return
		}
		service.ServeHTTP(w, r)
	})
}

// actor returns the caller as text for the audit log. Handler has checked that there is one.
func actor(ctx context.Context) string {
	c, _ := access.From(ctx)
	return c.String()
}

// wireError converts a ledger error to an error with a status code for the caller.
func (o *Operator) wireError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ledger.ErrNotFound):
		return connect.NewError(connect.CodeNotFound, err)
	case errors.Is(err, ledger.ErrRefused):
		return connect.NewError(connect.CodeFailedPrecondition, err)
	case errors.Is(err, context.Canceled):
		return err
	}
	o.Log.Warn("cannot serve an operator", "error", err)
	return connect.NewError(connect.CodeUnavailable, err)
}

func page(limit int32, usual int) int {
	if limit <= 0 {
		return usual
	}
	return min(int(limit), maxPage)
}

// ListClients returns a page of clients.
func (o *Operator) ListClients(ctx context.Context, r *v1.ListClientsRequest) (*v1.ListClientsResponse, error) {
	limit := page(r.Limit, 100)
	all, err := o.Ledger.Directory.Clients(ctx, directory.ClientQuery{After: r.After, Prefix: r.Name, Agent: r.Agent, Limit: limit + 1})
	if err != nil {
		return nil, o.wireError(err)
	}
	counts, err := o.fleet(ctx)
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.ListClientsResponse{Total: counts.Clients, Agents: counts.Agents}
	if len(all) > limit {
		all = all[:limit]
		answer.Next = all[limit-1].Name
	}
	for _, c := range all {
		answer.Clients = append(answer.Clients, clientOf(c))
	}
	return answer, o.wireError(o.complete(ctx, answer.Clients))
}

// Revoke refuses an agent or a client permanently.
func (o *Operator) Revoke(ctx context.Context, r *v1.RevokeRequest) (*v1.RevokeResponse, error) {
	var err error
	switch now := time.Now(); {
	case r.Agent != "" && r.Client == "":
		err = o.Ledger.Directory.RevokeAgent(ctx, r.Agent, actor(ctx), now)
		// Call Revoked even after an error, because the transaction may have committed
		// before the connection to the database was lost.
		o.Revoked(r.Agent)
	case r.Client != "" && r.Agent == "":
		err = o.Ledger.Directory.RevokeClient(ctx, r.Client, actor(ctx), now)
	default:
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("name either a client or an agent"))
	}
	if err != nil {
		return nil, o.wireError(err)
	}
	return &v1.RevokeResponse{}, nil
}

// StopRun ends a run at its current version.
func (o *Operator) StopRun(ctx context.Context, r *v1.StopRunRequest) (*v1.StopRunResponse, error) {
	if err := o.Ledger.StopRun(ctx, r.Run, actor(ctx), time.Now()); err != nil {
		return nil, o.wireError(err)
	}
	return &v1.StopRunResponse{}, nil
}

// ListRuns returns the newest runs, newest first.
func (o *Operator) ListRuns(ctx context.Context, r *v1.ListRunsRequest) (*v1.ListRunsResponse, error) {
	runs, err := o.Ledger.Runs(ctx, page(r.Limit, 20))
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.ListRunsResponse{}
	for _, x := range runs {
		answer.Runs = append(answer.Runs, o.run(ctx, x))
	}
	return answer, nil
}

// GetRun returns a run with its newest rounds.
func (o *Operator) GetRun(ctx context.Context, r *v1.GetRunRequest) (*v1.GetRunResponse, error) {
	run, err := o.Ledger.Run(ctx, r.Run)
	if err != nil {
		return nil, o.wireError(err)
	}
	rounds, err := o.Ledger.Rounds(ctx, r.Run, 0, page(r.Rounds, 10))
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.GetRunResponse{Run: o.run(ctx, run), Plan: run.Plan}
	if answer.Waiting, err = o.waiting(ctx, run, rounds); err != nil {
		return nil, o.wireError(err)
	}
	n, err := o.Ledger.NewClients(ctx, r.Run)
	if err != nil {
		return nil, o.wireError(err)
	}
	if n.HeldOut > 0 {
		answer.NewClients = &v1.NewClients{HeldOut: n.HeldOut, Answered: n.Answered, Scored: n.Evaluation.Clients}
		if n.Evaluation.Clients > 0 {
			answer.NewClients.RelativeMae = n.Evaluation.Mean()
		}
	}
	for _, x := range rounds {
		answer.Rounds = append(answer.Rounds, roundOf(x))
	}
	return answer, nil
}

// WatchRun sends a message for every round that closes, until the run ends.
func (o *Operator) WatchRun(ctx context.Context, r *v1.WatchRunRequest, s *connect.ServerStream[v1.WatchRunResponse]) error {
	select {
	case o.watching <- struct{}{}:
		defer func() { <-o.watching }()
	default:
		return connect.NewError(connect.CodeResourceExhausted, errors.New("too many calls watch runs; try again later"))
	}
	run, err := o.Ledger.Run(ctx, r.Run)
	if err != nil {
		return o.wireError(err)
	}
	if err := s.Send(&v1.WatchRunResponse{Run: o.run(ctx, run)}); err != nil {
		return err
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	next, checked := run.Round, time.Now()
	said := ""
	for {
		if run, err = o.Ledger.Run(ctx, r.Run); err != nil {
			return o.wireError(err)
		}
		rounds, err := o.Ledger.Rounds(ctx, r.Run, next, maxPage)
		if err != nil {
			return o.wireError(err)
		}
		for i := len(rounds) - 1; i >= 0; i-- {
			if x := rounds[i]; x.State == ledger.RoundMerged || x.State == ledger.RoundAbandoned {
				if err := s.Send(&v1.WatchRunResponse{Run: o.run(ctx, run), Round: roundOf(x)}); err != nil {
					return err
				}
				next = x.Round + 1
			}
		}
		recent, err := o.Ledger.Rounds(ctx, r.Run, 0, usualRounds)
		if err != nil {
			return o.wireError(err)
		}
		switch w, err := o.waiting(ctx, run, recent); {
		case err != nil:
			return o.wireError(err)
		case w != nil && w.Silent > 0 && w.Text != said:
			said = w.Text
			if err := s.Send(&v1.WatchRunResponse{Run: o.run(ctx, run), Waiting: w}); err != nil {
				return err
			}
		}
		if run.State.Ended() {
			return s.Send(&v1.WatchRunResponse{Run: o.run(ctx, run)})
		}
		if time.Since(checked) >= checkEvery {
			if err := still(ctx); err != nil {
				return err
			}
			checked = time.Now()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-o.Closing:
			return connect.NewError(connect.CodeUnavailable, errors.New("the server is stopping; watch again later"))
		case <-tick.C:
		}
	}
}

// still returns an error if the caller of a stream has lost its access.
func still(ctx context.Context) error {
	c, ok := access.From(ctx)
	if !ok {
		return access.Allow(ctx, v1.OperatorServiceWatchRunProcedure)
	}
	c, err := c.Again(ctx)
	if err != nil {
		return err
	}
	return access.Allow(access.With(ctx, c), v1.OperatorServiceWatchRunProcedure)
}

// auditSettles is after which time no event appears before one that was already listed:
// longer than a transaction waits, and clocks of gateways differ.
const auditSettles = 10 * time.Second

// ListAudit returns the newest events of the audit log, newest first. With After it returns
// the events behind one, oldest first, so that a program can follow the log without a gap.
func (o *Operator) ListAudit(ctx context.Context, r *v1.ListAuditRequest) (*v1.ListAuditResponse, error) {
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
			// An empty answer would hide all events until then.
			return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf(
				"event %s is of %s, which is in the future: a clock was ahead; give the id of an event before the wrong ones", r.After, at.UTC().Format(time.RFC3339)))
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

func (o *Operator) run(ctx context.Context, r ledger.Run) *v1.Run {
	x := &v1.Run{
		Id: r.ID, Name: r.Name, State: string(r.State), Reason: r.Reason, Created: millis(r.Created), Started: millis(r.Started),
		Finished: millis(r.Finished), Clients: r.Fleet, Round: r.Round, Version: r.Version, LeftOut: r.LeftOut, Wanted: r.Wanted,
	}
	if n := o.refusedClients(); r.State == ledger.Waiting && n > 0 {
		x.Reason = strings.TrimPrefix(x.Reason+fmt.Sprintf(", %d refused (loadstar fleet list shows which)", n), ", ")
	}
	if why, waits := strings.CutPrefix(r.Reason, "waits: "); waits && r.State == ledger.Running {
		x.Waits = why
	}
	h := o.heads.of(r.Plan)
	x.Algorithm, x.Rounds, x.Partition, x.SharedWeights, x.PersonalWeights, x.Generated = h.algorithm, h.rounds, h.partition, h.shared, h.personal, r.Generated
	if h.warning != "" && !r.State.Ended() {
		x.Warnings = []string{h.warning}
	}
	if v, err := o.Ledger.Version(ctx, r.ID, r.Version); err == nil {
		x.Weights = v.Weights
	}
	return x
}

// leastMean is the smallest number of clients whose mean training loss is shown. Losses of few
// clients tell more about their readings than people need.
const leastMean = 10

func roundOf(r ledger.Round) *v1.Round {
	x := &v1.Round{
		Round: r.Round, Version: r.Version, State: r.State, Opened: millis(r.Opened), Closed: millis(r.Closed),
		Asked: r.Asked, Counted: r.Counted, Late: r.Late, Lost: r.Lost, Bytes: r.Bytes, Evaluated: r.Evaluation.Clients,
	}
	if r.Counted >= leastMean {
		x.Loss = r.Loss
	}
	if x.Evaluated > 0 {
		x.RelativeMae = r.Evaluation.Mean()
	}
	return x
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
