package operator

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/series/quality"
	"loadstar/server/directory"
	"loadstar/server/ledger"
)

const (
	// expiringWithin is the remaining lifetime below which a certificate is shown as expiring.
	// Agents normally renew long before that.
	expiringWithin = 48 * time.Hour
	// Limits on the newest runs, and on the newest rounds of each run, in which a client's
	// turns are looked up.
	turnRuns   = 3
	turnRounds = 50
)

// fleet handles calls about agents and clients.
type fleet struct {
	*Config
	numbers *numbers
	runs    *runs
}

// GetFleet summarises the fleet. For a large fleet, the numbers may be some seconds old.
func (o *fleet) GetFleet(ctx context.Context, _ *v1.GetFleetRequest) (*v1.GetFleetResponse, error) {
	c, err := o.numbers.fleet(ctx)
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.GetFleetResponse{
		Version: o.Version, Agents: c.Agents, Clients: c.Clients, Quiet: c.Quiet, Revoked: c.Revoked, Expiring: c.Expiring, Generated: c.Generated, Hub: o.Hub,
	}
	silent, err := o.numbers.silent(ctx)
	if err != nil {
		return nil, o.wireError(err)
	}
	answer.Silent = int64(len(silent))
	days, err := o.Ledger.Reports.ReportDays(ctx, "", 1)
	if err != nil {
		return nil, o.wireError(err)
	}
	if len(days) > 0 {
		answer.Serving = reportDay(days[0])
	}
	active, err := o.Ledger.Active(ctx)
	if err != nil {
		return nil, o.wireError(err)
	}
	if len(active) > 0 {
		run, err := o.Ledger.Run(ctx, active[len(active)-1].ID)
		if err != nil {
			return nil, o.wireError(err)
		}
		answer.Run = o.runs.run(ctx, run)
	}
	return answer, nil
}

// ListAgents returns a page of agents in the order of their ids.
func (o *fleet) ListAgents(ctx context.Context, r *v1.ListAgentsRequest) (*v1.ListAgentsResponse, error) {
	if r.Name != "" && r.Token != "" {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("select agents by name or by token"))
	}
	all, err := o.Ledger.Directory.AgentStates(ctx, directory.AgentQuery{After: r.After, Name: r.Name, Token: r.Token, Findings: r.Findings, Limit: page(r.Limit, 100)})
	if err != nil {
		return nil, o.wireError(err)
	}
	ids := make([]string, len(all))
	for i, a := range all {
		ids[i] = a.ID
	}
	findings, err := o.Ledger.Reports.FindingsOf(ctx, ids)
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.ListAgentsResponse{}
	for _, a := range all {
		x, err := o.agent(ctx, a)
		if err != nil {
			return nil, o.wireError(err)
		}
		x.Findings = findings[a.ID]
		answer.Agents = append(answer.Agents, x)
	}
	return answer, nil
}

func (o *fleet) agent(ctx context.Context, a directory.AgentState) (*v1.Agent, error) {
	c, err := o.numbers.fleet(ctx)
	if err != nil {
		return nil, err
	}
	silent, err := o.numbers.silent(ctx)
	if err != nil {
		return nil, err
	}
	seen, _ := o.numbers.contact(a.ID, a.Seen)
	x := &v1.Agent{
		Id: a.ID, Name: a.Name, Joined: millis(a.Joined), Seen: millis(later(seen, a.Seen)), Silent: silent[a.ID], Expires: millis(a.Expires), Revoked: !a.Revoked.IsZero(),
		Quiet: a.Revoked.IsZero() && o.Ledger.Now().Sub(a.Seen) > o.numbers.quietAfter(c.Agents), Clients: a.Clients, Version: a.Version, Generated: a.Generated,
		Token: a.Token, Protocol: a.Protocol, Copied: millis(a.Copied),
	}
	if o.Refused != nil {
		names := o.Refused()[a.ID]
		x.Refused, x.RefusedNames = int64(len(names)), names[:min(len(names), namedRefused)]
	}
	if a.Skew != nil {
		ms := a.Skew.Milliseconds()
		x.SkewMs = &ms
	}
	return x, nil
}

// namedRefused is the maximum number of an agent's refused clients that are named.
const namedRefused = 3

func clientOf(c directory.Client) *v1.Client {
	return &v1.Client{
		Name: c.Name, Agent: c.Agent, AgentName: c.AgentName, Announced: millis(c.Announced), Seen: millis(c.Seen), Revoked: c.Revoked,
		Inputs: c.Inputs, StepSeconds: int64(c.Step / time.Second), Protocol: c.Protocol,
	}
}

// complete sets the fields of clients that do not come from the ledger's table of clients.
func (o *fleet) complete(ctx context.Context, clients []*v1.Client) error {
	if err := o.addReports(ctx, clients); err != nil {
		return err
	}
	return o.addClaims(ctx, clients)
}

// addClaims adds to each client the names of other agents that announced it and were refused.
func (o *fleet) addClaims(ctx context.Context, clients []*v1.Client) error {
	if o.Refused == nil {
		return nil
	}
	refused := o.Refused()
	names := map[string]string{} // of agents
	for _, c := range clients {
		for _, id := range slices.Sorted(maps.Keys(refused)) {
			if id == c.Agent || !slices.Contains(refused[id], c.Name) {
				continue
			}
			if names[id] == "" {
				a, err := o.Ledger.Directory.AgentState(ctx, id)
				if err != nil {
					return err
				}
				names[id] = cmp.Or(a.Name, id)
			}
			c.Also = append(c.Also, names[id])
		}
	}
	return nil
}

// GetClient returns a client with its agent and its turns in the newest rounds.
func (o *fleet) GetClient(ctx context.Context, r *v1.GetClientRequest) (*v1.GetClientResponse, error) {
	c, err := o.Ledger.Directory.Client(ctx, r.Client)
	if err != nil {
		return nil, o.wireError(err)
	}
	a, err := o.Ledger.Directory.AgentState(ctx, c.Agent)
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.GetClientResponse{Client: clientOf(c)}
	if answer.Agent, err = o.agent(ctx, a); err != nil {
		return nil, o.wireError(err)
	}
	findings, err := o.Ledger.Reports.FindingsOf(ctx, []string{c.Agent})
	if err != nil {
		return nil, o.wireError(err)
	}
	answer.Agent.Findings = findings[c.Agent]
	if err := o.complete(ctx, []*v1.Client{answer.Client}); err != nil {
		return nil, o.wireError(err)
	}
	runs, err := o.Ledger.Runs(ctx, turnRuns)
	if err != nil {
		return nil, o.wireError(err)
	}
	for _, run := range runs {
		if run.State == ledger.Waiting {
			continue
		}
		var rounds []int64
		for n := run.Round; n >= max(0, run.Round-turnRounds+1); n-- {
			rounds = append(rounds, n)
		}
		turns, err := o.Ledger.Counter.TurnsOf(ctx, run.ID, c.Name, rounds)
		if err != nil {
			return nil, o.wireError(err)
		}
		limits, err := o.runs.limitsOf(ctx, run.ID)
		if err != nil {
			return nil, o.wireError(err)
		}
		slices.SortFunc(turns, func(a, b ledger.TurnRecord) int { return cmp.Compare(b.Round, a.Round) })
		for _, t := range turns {
			t.Agent = cmp.Or(t.Agent, c.Agent)
			answer.Turns = append(answer.Turns, turnOf(t, limits))
		}
	}
	return answer, nil
}

// ListFindings returns the numbers of clients that reported problems with their readings.
func (o *fleet) ListFindings(ctx context.Context, r *v1.ListFindingsRequest) (*v1.ListFindingsResponse, error) {
	if r.Days < 0 || r.Days > 90 {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("findings are stored for 90 days"))
	}
	found, err := o.Ledger.Reports.FindingsNow(ctx)
	if err != nil {
		return nil, o.wireError(err)
	}
	before, err := o.Ledger.Reports.FindingDays(ctx, page(r.Days, 7))
	if err != nil {
		return nil, o.wireError(err)
	}
	found = append(found, before...)
	days, err := o.Ledger.Reports.ReportDays(ctx, "", 1)
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.ListFindingsResponse{}
	if len(days) > 0 {
		answer.Day, answer.Reported = days[0].Day, days[0].Total
	}
	known := quality.Codes()
	for _, f := range found {
		x := &v1.Finding{Code: f.Code, Day: f.Day, Clients: f.Clients}
		if i := slices.IndexFunc(known, func(c quality.CodeInfo) bool { return string(c.Code) == f.Code }); i >= 0 {
			x.Title, x.Advice = known[i].Meaning, known[i].Advice
		}
		answer.Findings = append(answer.Findings, x)
	}
	return answer, nil
}

// ListClients returns a page of clients.
func (o *fleet) ListClients(ctx context.Context, r *v1.ListClientsRequest) (*v1.ListClientsResponse, error) {
	limit := page(r.Limit, 100)
	all, err := o.Ledger.Directory.Clients(ctx, directory.ClientQuery{After: r.After, Prefix: r.Name, Agent: r.Agent, Limit: limit + 1})
	if err != nil {
		return nil, o.wireError(err)
	}
	counts, err := o.numbers.fleet(ctx)
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
func (o *fleet) Revoke(ctx context.Context, r *v1.RevokeRequest) (*v1.RevokeResponse, error) {
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
