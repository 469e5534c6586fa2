package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/fed/round"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/keepers"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// maxEnrolments is the maximum number of enrolments in a request. An agent has one enrolment
// for each of its keepers.
const maxEnrolments = 4

// enrol passes an agent's enrolments to their keepers and returns the receipts. If a keeper
// does not respond, its receipt is missing, and the agent repeats the enrolment.
func (g *Gateway) enrol(ctx context.Context, agent string, all []*v1.Enrolment) (receipts []*v1.Receipt, err error) {
	if len(all) > maxEnrolments {
		return nil, g.refuse.invalid("enrolment", "a request may have %d enrolments, this one has %d", maxEnrolments, len(all))
	}
	for _, e := range all {
		if n := len(e.GetSealed()); n > keepers.SealedBytes || len(e.GetKeeper()) != sha256.Size {
			return nil, g.refuse.invalid("enrolment", "an enrolment has %d bytes, at most %d are allowed, or does not name its keeper", n, keepers.SealedBytes)
		}
	}
	if g.Hub != nil && len(all) > 0 {
		leaveGate(ctx)
		if receipts, err = g.Hub.enrol(ctx, agent, all); err != nil {
			g.Log.Warn("cannot forward an enrolment to the hub; the agent repeats it", "agent", agent, "error", err)
		}
		return receipts, nil
	}
	for _, e := range all {
		if r := g.Keepers.Enrol(ctx, agent, e); r != nil {
			receipts = append(receipts, r)
		}
	}
	return receipts, nil
}

// checkMasked checks that a result is masked if and only if its plan is private, and that the
// fields of a masked result are valid. It returns a description of the fault, or an empty
// string.
func (x *results) checkMasked(r *v1.Result, t *terms.Terms) string {
	masked := r.Form == v1.Form_FORM_MASKED
	switch {
	case t.Private() && !masked:
		return "the plan is private, and the result is not masked"
	case !masked:
		return ""
	case !t.Private():
		return "the result is masked, but the plan is not private"
	case r.Size != t.MaskedBytes():
		return fmt.Sprintf("the masked result has %d bytes, want %d for this plan", r.Size, t.MaskedBytes())
	case len(r.Members) > 0: // checkMembers checks members
	case len(r.Nonce) != len(mask.Nonce{}):
		return fmt.Sprintf("the nonce has %d bytes, want %d", len(r.Nonce), len(mask.Nonce{}))
	case r.Part < 0 || r.Part >= member.MaxParts: // not x.clients, which can be lower at the hub of a region
		return fmt.Sprintf("the result is number %d of its agent in the round, want 0 to %d", r.Part, member.MaxParts-1)
	}
	if r.Evaluation != nil {
		return "a masked result must not have an evaluation beside its numbers"
	}
	return ""
}

// masksOf returns the masks in a result. A region's sum has several.
func masksOf(agent string, r *v1.Result) (all []ledger.Mask) {
	if len(r.Members) == 0 {
		return []ledger.Mask{{Agent: agent, Part: r.Part, Clients: int64(len(r.Shares)), Nonce: hex.EncodeToString(r.Nonce)}}
	}
	for _, m := range r.Members {
		all = append(all, ledger.Mask{Agent: m.Agent, Part: m.Part, Clients: m.Clients, Nonce: hex.EncodeToString(m.Nonce)})
	}
	return all
}

// masked returns the sum of the counted results of a private plan.
func (f *folder) masked(counted []int) (p ledger.Partial, err error) {
	sum := make([]uint64, f.terms.MaskedLen())
	for _, i := range counted {
		r := f.all[i].result
		p.Version = int64(r.Version) // a round of a private plan has one version
		if err := round.AddVector(sum, r.Numbers); err != nil {
			return p, err
		}
	}
	p.Numbers = round.AppendVector(make([]byte, 0, 8*len(sum)), sum)
	return p, nil
}

// samePart rejects a result whose part number is that of another counted result.
func (x *results) samePart(ctx context.Context, agent string, r *v1.Result) (*v1.Received, error) {
	if r.Form != v1.Form_FORM_MASKED {
		return nil, nil
	}
	used, err := x.ledger.Used(ctx, r.Run, r.Round, masksOf(agent, r))
	if err != nil || used == nil {
		return nil, err
	}
	return x.refuse.reject("part", fmt.Sprintf("rule part: another result of agent %s is number %d of the round", used.Agent, used.Part)), nil
}
