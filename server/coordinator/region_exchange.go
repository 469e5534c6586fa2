package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/fed/round"
	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/blob"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// send pushes one sending to the hub and stores the hub's verdict if the response contains
// one.
func (r *relay) send(ctx context.Context, run string, s *ledger.Sending) error {
	t, err := r.Terms.Of(ctx, run)
	if err != nil {
		return err
	}
	if err := r.Ledger.Relay.Parts(ctx, run, s); err != nil {
		return err
	}
	q := &v1.Result{Run: run, Round: s.Round, Version: s.Version, Form: v1.Form_FORM_SUM}
	for _, x := range s.Shares {
		q.Shares = append(q.Shares, &v1.Share{Client: x.Client, Examples: x.Examples, Steps: x.Steps, TrainLoss: x.TrainLoss, Loss: s.Loss, Norm: x.Norm, ControlNorm: x.ControlNorm})
	}
	if e := s.Evaluation; e.Clients > 0 {
		q.Evaluation = &v1.Evaluation{Clients: e.Clients, RelativeMae: e.RelativeMAE}
	}
	numbers, err := numbersOf(t, s)
	if err != nil {
		return err
	}
	switch {
	case s.Single:
		q.Form = v1.Form_FORM_UPDATE
	case t.Private():
		q.Form = v1.Form_FORM_MASKED
		if q.Members, err = maskedResults(run, s.Masks); err != nil {
			return err
		}
	}
	_, waits := r.waits[run]
	answer, err := protocol.SendResult(ctx, r.hub, r.named, q, numbers, chunk, waits)
	if err != nil {
		return err
	}
	if answer.Outcome == v1.Outcome_OUTCOME_UNKNOWN {
		return fmt.Errorf("%w: %s", errNotNow, answer.Reason)
	}
	r.sent[run+s.ID] = true
	if answer.Outcome == v1.Outcome_OUTCOME_CLOSED {
		return nil // the next check-in returns the clients whose turns are closed
	}
	return r.verdict(ctx, run, s, answer.Outcome, nil, answer.Reason)
}

// errNotNow means that the hub cannot count a result now, for example because a keeper of its run
// does not answer.
var errNotNow = errors.New("the hub cannot count it now")

// numbersOf returns the sum of the parts of a sending, as the hub expects it.
func numbersOf(t *terms.Terms, s *ledger.Sending) ([]byte, error) {
	if s.Single {
		if len(s.Parts) != 1 {
			return nil, fmt.Errorf("sending %s has %d parts, want 1", s.ID, len(s.Parts))
		}
		return s.Parts[0], nil
	}
	if t.Private() {
		sum := make([]uint64, t.MaskedLen())
		for _, p := range s.Parts {
			if err := round.AddVector(sum, p); err != nil {
				return nil, fmt.Errorf("%w: a masked sum of sending %s: %w", ledger.ErrDamaged, s.ID, err)
			}
		}
		return round.AppendVector(make([]byte, 0, 8*len(sum)), sum), nil
	}
	f := round.NewFold(t.Rules)
	for _, p := range s.Parts {
		if _, _, err := f.AddSums(int(s.Version), t.Shared, p); err != nil {
			return nil, err
		}
	}
	if f.Len() != len(s.Shares) {
		return nil, fmt.Errorf("sending %s is a sum of %d updates, but has %d receipts", s.ID, f.Len(), len(s.Shares))
	}
	return round.AppendSums(nil, &f.Sums()[0])
}

// verdict stores the hub's verdict on a sending if it is final. closed lists the clients
// whose turns the hub has closed.
func (r *relay) verdict(ctx context.Context, run string, s *ledger.Sending, o v1.Outcome, closed []string, reason string) (err error) {
	var outcome string
	switch o {
	case v1.Outcome_OUTCOME_COUNTED:
		outcome = "counted"
		err = r.Ledger.Relay.Decided(ctx, r.lead, run, s.ID, true)
	case v1.Outcome_OUTCOME_CLOSED:
		outcome = "closed"
		err = r.Ledger.Relay.Closed(ctx, r.lead, run, s, closed)
	case v1.Outcome_OUTCOME_REJECTED:
		outcome = "rejected"
		level := slog.LevelError
		if len(s.Masks) == 1 {
			level = slog.LevelWarn // it is the result of one agent, as a keeper that checks results requires
		}
		r.Log.Log(ctx, level, "the hub rejected a result", "run", run, "round", s.Round+1, "reason", reason)
		err = r.Ledger.Relay.Decided(ctx, r.lead, run, s.ID, false)
	case v1.Outcome_OUTCOME_UNKNOWN:
		delete(r.sent, run+s.ID)
		return nil
	default:
		return nil
	}
	if err != nil {
		return err
	}
	delete(r.sent, run+s.ID)
	r.sums.WithLabelValues(outcome).Inc()
	r.Log.Info("the hub decided a result", "run", run, "round", s.Round+1, "clients", len(s.Shares), "outcome", outcome)
	return nil
}

// checkIn reports the region's turns to the hub, stores the verdicts on sendings, and
// returns new tasks.
func (r *relay) checkIn(ctx context.Context, now time.Time) ([]*v1.Task, error) {
	leased, err := r.Ledger.Relay.Leased(ctx)
	if err != nil {
		return nil, err
	}
	training, pushed := byRound(leased), map[roundKey][]string{}
	var open []*undecided
	owner := map[ledger.Turn]*undecided{}
	runs, err := r.Ledger.Relay.Adopted(ctx)
	if err != nil {
		return nil, err
	}
	for _, run := range runs {
		all, err := r.Ledger.Relay.Sendings(ctx, run)
		if err != nil {
			return nil, err
		}
		for i := range all {
			s := &all[i]
			k := roundKey{run, s.Round}
			u := &undecided{run, s, map[v1.Outcome][]string{}}
			open = append(open, u)
			for _, share := range s.Shares {
				if r.sent[run+s.ID] {
					pushed[k] = append(pushed[k], share.Client)
				} else {
					training[k] = append(training[k], share.Client)
				}
				owner[ledger.Turn{Run: run, Round: s.Round, Client: share.Client}] = u
			}
		}
		unsent, err := r.Ledger.Relay.Ungathered(ctx, run)
		if err != nil {
			return nil, err
		}
		for _, u := range unsent {
			k := roundKey{run, u.Round}
			training[k] = append(training[k], u.Client)
		}
	}
	reports, err := r.Ledger.Relay.PendingReports(ctx, reportsAtOnce)
	if err != nil {
		return nil, err
	}
	messages, err := toReports(reports)
	if err != nil {
		return nil, err
	}
	q := &v1.ExchangeRequest{Training: toTurns(training), Pushed: toTurns(pushed), Reports: messages}
	for k, clients := range pushed {
		training[k] = append(training[k], clients...)
	}
	r.named = toTurns(training)
	if now.After(r.nextReleases) {
		q.Releases = &r.releases
	}
	answer, err := r.hub.Exchange(ctx, q)
	if err != nil {
		return nil, err
	}
	if len(reports) > 0 {
		if err := r.Ledger.Relay.ReportsSent(ctx, r.lead, reports); err != nil {
			return nil, err
		}
	}
	r.adoptReleases(ctx, answer.Releases, now)
	if answer.Announce && !r.refused {
		r.announced = time.Time{}
	}
	r.next = now.Add(time.Duration(answer.NextContactMs) * time.Millisecond)
	return answer.Tasks, r.settle(ctx, answer.Verdicts, owner, open)
}

// settle stores the hub's verdicts. owner maps each turn to the sending that contains it, and
// open lists all undecided sendings.
func (r *relay) settle(ctx context.Context, verdicts []*v1.Verdict, owner map[ledger.Turn]*undecided, open []*undecided) error {
	for _, v := range verdicts {
		var over []string
		for _, c := range v.Clients {
			if u := owner[ledger.Turn{Run: v.Run, Round: v.Round, Client: c}]; u != nil {
				u.verdicts[v.Outcome] = append(u.verdicts[v.Outcome], c)
			} else if v.Outcome == v1.Outcome_OUTCOME_CLOSED || v.Outcome == v1.Outcome_OUTCOME_COUNTED {
				over = append(over, c)
			}
		}
		// These clients are in no sending, so they are still training. The hub has closed
		// their turns, so their results can no longer count.
		if len(over) > 0 {
			if err := r.Ledger.Relay.Withdraw(ctx, r.lead, v.Run, v.Round, over); err != nil {
				return err
			}
		}
	}
	for _, u := range open {
		if err := r.decide(ctx, u); err != nil {
			return err
		}
	}
	return nil
}

// undecided is a sending with the hub's verdicts on its clients.
type undecided struct {
	run      string
	sending  *ledger.Sending
	verdicts map[v1.Outcome][]string
}

// decide derives the verdict on a sending from the verdicts on its clients. The hub counts
// either all clients of a sending or none. It counts none if the turn of one of them is closed.
func (r *relay) decide(ctx context.Context, u *undecided) error {
	for _, o := range []v1.Outcome{v1.Outcome_OUTCOME_COUNTED, v1.Outcome_OUTCOME_CLOSED, v1.Outcome_OUTCOME_UNKNOWN} {
		if clients := u.verdicts[o]; len(clients) > 0 {
			return r.verdict(ctx, u.run, u.sending, o, clients, "")
		}
	}
	return nil
}

// adopt opens a round in the region for a task of the hub.
func (r *relay) adopt(ctx context.Context, t *v1.Task, now time.Time) error {
	plan, err := r.fetch(ctx, t.Plan, planBytes)
	if err != nil {
		return fmt.Errorf("fetching the plan: %w", err)
	}
	known, err := terms.Read(string(plan), t.Plan, t.Fleet)
	if err != nil {
		return r.refuse(ctx, t, err)
	}
	var privacy []byte
	if known.Private() {
		if privacy, err = proto.Marshal(t.Privacy); err != nil || len(privacy) == 0 {
			return r.refuse(ctx, t, errors.New("the plan is private, and the task has no statements of keepers"))
		}
	}
	most := int64(4 * known.Shared)
	for _, b := range []string{t.Weights, t.Control} {
		if b == "" {
			continue
		}
		if _, err := r.fetch(ctx, b, most); err != nil {
			return fmt.Errorf("fetching weights: %w", err)
		}
	}
	limits, err := terms.EncodeLimits(terms.LimitsOf(t.Limits))
	if err != nil {
		return err
	}
	a := ledger.Adoption{
		Run:   ledger.Run{ID: t.Run, Name: known.Plan.Name, Plan: string(plan), PlanBlob: t.Plan, Fleet: t.Fleet},
		Round: t.Round, Version: t.Version, Blobs: ledger.Version{Weights: t.Weights, Control: t.Control, Limits: limits},
		Clients: t.Clients, Until: now.Add(time.Duration(t.LeaseMs) * time.Millisecond), Privacy: privacy,
	}
	gone, retired, err := r.Ledger.Relay.Adopt(ctx, r.lead, a, now)
	if err != nil {
		return err
	}
	r.Wake(t.Run)
	if r.WakeAgents != nil {
		r.WakeAgents(t.Run)
	}
	blob.DeleteAll(ctx, r.Blobs, retired, r.Log)
	var back []ledger.Task
	for _, c := range gone {
		back = append(back, ledger.Task{Turn: ledger.Turn{Run: t.Run, Round: t.Round, Client: c}})
	}
	return r.decline(ctx, back, "", "the clients can no longer take part")
}

// mostReason is less than the hub's limit on a reason.
const mostReason = 1000

func (r *relay) refuse(ctx context.Context, t *v1.Task, why error) error {
	r.Log.Error("cannot use a task of the hub", "run", t.Run, "error", why)
	reason := "the region cannot use the plan: " + why.Error()
	err := r.giveBack(ctx, &v1.Decline{Turns: &v1.Turns{Run: t.Run, Round: t.Round, Clients: t.Clients}, Reason: reason[:min(len(reason), mostReason)]})
	if err != nil {
		return fmt.Errorf("declining the task: %w", err)
	}
	return nil
}

// fetch returns a blob and makes sure that the region's store has it. If the store lacks the
// blob, fetch copies it from the hub. Otherwise, fetch stores the blob again, because it may be
// only in this process's cache after another process has deleted it.
func (r *relay) fetch(ctx context.Context, hash string, most int64) ([]byte, error) {
	b, err := r.Blobs.Get(ctx, hash)
	if err != nil {
		if b, err = protocol.FetchBlob(ctx, r.Client, r.Hub, hash, most); err != nil {
			return nil, err
		}
	}
	if _, err = r.Blobs.Put(ctx, b); err != nil {
		return nil, fmt.Errorf("storing a blob: %w", err)
	}
	return b, nil
}
