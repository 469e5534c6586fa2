package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"loadstar/fed/member"
	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/directory"
	"loadstar/server/terms"
)

// A region has no keepers. Its agents enrol with the keepers of the hub, which forwards the
// enrolments and identifies results by the names of the agents. Names must therefore differ in
// all regions of a hub, so an agent's name begins with its region's name at the hub.

// Hub is a region's connection to its hub. It is safe for concurrent use.
type Hub struct {
	name    string // name of the region at the hub
	service v1.AgentServiceClient
	slots   chan struct{} // limits concurrent calls

	mu         sync.Mutex
	statements [][]byte // statements of the hub's keepers
	asked      bool     // a call for the statements is in progress
	next       time.Time
}

const (
	// hubCalls is below the hub's limit for one agent, because the relay calls too.
	hubCalls  = 2
	hubWithin = 10 * time.Second
	knowEvery = time.Minute
	// maxHubBytes is the longest answer of the hub: receipts, and the statements of a few keepers.
	maxHubBytes = 1 << 20
	// maxID is the longest name of an agent in a certificate.
	maxID = 64
)

// NewHub returns a region's connection to its hub. Name is the region's name at the hub.
func NewHub(name, address string, client *http.Client) *Hub {
	return &Hub{name: name, service: v1.NewAgentServiceClient(client, address, protocol.Client(), connect.WithReadMaxBytes(maxHubBytes)), slots: make(chan struct{}, hubCalls)}
}

// call calls the hub.
func (h *Hub) call(ctx context.Context, q *v1.EnrolRequest) (*v1.EnrolResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, hubWithin)
	defer cancel()
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return h.service.Enrol(ctx, q)
}

// known returns the newest statements of the hub's keepers.
func (h *Hub) known(ctx context.Context) [][]byte {
	h.mu.Lock()
	all, wait := h.statements, h.asked || time.Now().Before(h.next)
	h.asked = h.asked || !wait
	h.mu.Unlock()
	if wait {
		return all
	}
	a, err := h.call(ctx, &v1.EnrolRequest{})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked, h.next = false, time.Now().Add(knowEvery)
	if err == nil {
		h.statements = a.Statements
	}
	if len(h.statements) == 0 { // the hub does not respond, or does not know its keepers yet
		h.next = time.Now().Add(hubWithin)
	}
	return h.statements
}

// enrol passes an agent's enrolments to the hub and returns the answers of the keepers.
func (h *Hub) enrol(ctx context.Context, agent string, all []*v1.Enrolment) (receipts []*v1.Receipt, err error) {
	if behind(h.name, agent) {
		a, err := h.call(ctx, &v1.EnrolRequest{Agent: agent, Enrolments: all})
		return a.GetReceipts(), err
	}
	for _, e := range all {
		receipts = append(receipts, &v1.Receipt{Keeper: e.GetKeeper(), Refused: "rule member: " + notBehind})
	}
	return receipts, nil
}

// notBehind is the reason why an agent cannot train in private runs if it joined before its
// region joined the hub under its present name.
const notBehind = "the name of this agent does not begin with that of its region at the hub, so it has to be revoked and join again"

// nameIn returns the name of a region's new agent.
func (h *Hub) nameIn(id string) string {
	if name := h.name + nameDot + id; len(name) <= maxID {
		return name
	}
	return id // regions of regions of regions cannot train private plans
}

const nameDot = "."

// behind reports whether an agent is behind a region, by its name.
func behind(region, agent string) bool {
	return validName(agent) && strings.HasPrefix(agent, region+nameDot)
}

// known returns the statements of the keepers with which agents may enrol.
func (g *Gateway) known(ctx context.Context) [][]byte {
	if g.Hub != nil {
		leaveGate(ctx)
		return g.Hub.known(ctx)
	}
	return g.Keepers.Known()
}

// Enrol forwards the enrolments of an agent behind a region to the keepers.
func (g *Gateway) Enrol(ctx context.Context, r *v1.EnrolRequest) (*v1.EnrolResponse, error) {
	caller, err := g.callers.known(ctx)
	if err != nil {
		return nil, err
	}
	giveUp(ctx) // a keeper's answer can take long
	a := &v1.EnrolResponse{Statements: g.known(ctx)}
	if r.Agent == "" {
		return a, nil
	}
	if !behind(caller.ID, r.Agent) {
		return nil, g.refuse.invalid("member", "rule member: %.128q is not the name of an agent behind %s", r.Agent, caller.ID)
	}
	var valid []*v1.Enrolment
	for _, e := range r.Enrolments[:min(len(r.Enrolments), maxEnrolments+1)] { // enrol refuses more
		if why := g.notForRegion(&caller, e); why != "" {
			a.Receipts = append(a.Receipts, &v1.Receipt{Keeper: e.GetKeeper(), Refused: "rule member: " + why})
		} else {
			valid = append(valid, e)
		}
	}
	receipts, err := g.enrol(ctx, r.Agent, valid)
	a.Receipts = append(a.Receipts, receipts...)
	return a, err
}

// notForRegion returns the reason for which an enrolment that a caller forwards is refused, or "".
func (g *Gateway) notForRegion(caller *directory.Caller, e *v1.Enrolment) string {
	switch {
	case caller.Limited:
		return fmt.Sprintf("%s is not a region, because the token with which it joined limits its clients", caller.ID)
	case g.Keepers.Uninvited(e.GetKeeper()): // the caller could invent members without limit
		return "behind a region, members need invitations, and this keeper has the setting 'members: server'"
	}
	return ""
}

// checkMembers checks the members of a region's sum. It returns the rule that they break and a
// description of the fault, or empty strings.
func (x *results) checkMembers(agent string, r *v1.Result, t *terms.Terms) (rule, wrong string) {
	if x.hub != nil && t.Private() && !behind(x.hub.name, agent) {
		return "member", notBehind // the hub would refuse the whole sum of the region
	}
	if len(r.Members) == 0 {
		return "", ""
	}
	if r.Form != v1.Form_FORM_MASKED || len(r.Nonce) > 0 || r.Part != 0 {
		return "members", "a result with members must be masked, without a nonce and a part of its own"
	}
	if t.Checks() && len(r.Members) > 1 {
		return "check", "a keeper checks each result of this plan, so a region must not add them up"
	}
	clients := int64(0)
	for i, m := range r.Members {
		if err := member.CheckResult(m); err != nil {
			return "members", err.Error()
		}
		if !behind(agent, m.Agent) {
			return "member", fmt.Sprintf("%s is not behind the region %s", m.Agent, agent)
		}
		if i > 0 {
			last := r.Members[i-1]
			switch order := strings.Compare(last.Agent, m.Agent); {
			case order == 0 && last.Part == m.Part:
				return "twice", fmt.Sprintf("%s, part %d, is in the sum twice", m.Agent, m.Part)
			case order > 0 || order == 0 && last.Part > m.Part:
				return "members", "the members are not in the order of agent and part"
			}
		}
		clients += m.Clients
	}
	if clients != int64(len(r.Shares)) {
		return "members", fmt.Sprintf("the members have %d clients, and the sum has %d", clients, len(r.Shares))
	}
	return "", ""
}

// addsTo reports whether two results may share a transaction.
func (a *arrived) addsTo(b *arrived) bool {
	return a.run == b.run && a.round == b.round && !a.alone && !b.alone
}
