package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"loadstar/internal/backoff"
	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/blob"
	"loadstar/server/directory"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// RegionConfig configures a relay.
type RegionConfig struct {
	Ledger *ledger.Ledger
	Blobs  blob.Store
	Terms  *terms.Cache
	// Hub is the hub's address. Client presents the region's certificate to it, and Renew
	// renews the certificate if it is due.
	Hub    string
	Client *http.Client
	Renew  func(ctx context.Context, now time.Time) (bool, error)
	// Name must be unique among the relays of one ledger. Lead is the duration of the lead.
	// After a relay dies, the other relays wait for at most this long.
	Name string
	Lead time.Duration
	// Version is the program's version, which the hub shows for this region.
	Version string
	// Linger is the time for which the region waits for further results of a round before it
	// sends a sum.
	Linger time.Duration
	// Poll is the interval at which the relay reads the ledger if it receives no
	// notification.
	Poll time.Duration
	// Wake notifies other processes of a change in a run, and Woken receives notifications from
	// them.
	Wake  func(run string)
	Woken <-chan string
	// WakeAgents notifies gateways of new leases in a run. It may be nil.
	WakeAgents func(run string)
	Log        *slog.Logger
	Metrics    prometheus.Registerer
	// Rand returns a random number in [0, n) for the delay before a retry. If it is nil,
	// math/rand/v2 is used.
	Rand func(n int64) int64
}

// roundKey identifies a round of a run.
type roundKey struct {
	run   string
	round int64
}

// relay is the state of a running relay.
type relay struct {
	RegionConfig
	hub           v1.AgentServiceClient
	lead          ledger.Lead
	renew         time.Time              // time to renew the lead
	next          time.Time              // time of the next check-in with the hub
	announced     time.Time              // time of the last announcement of the clients
	clients       int64                  // number of announced clients
	refused       bool                   // the hub refused an announcement, and would refuse it again
	sent          map[string]bool        // sendings that the hub has accepted, by run and ID
	waits         map[string]time.Time   // runs whose results the hub cannot count now, and the time to offer them again
	since         map[roundKey]time.Time // time at which a round's first unsent result was seen
	retry         backoff.Backoff        // delays while the hub cannot be reached
	nextIdleCheck time.Time              // time of the next search for idle runs
	releases      uint64                 // revision of the hub's list of releases that was adopted; 0 if none
	nextReleases  time.Time              // time of the next request for the list after it could not be adopted
	named         []*v1.Turns            // turns of the last check-in, so that the hub does not assign them again
	sums          *prometheus.CounterVec
}

const (
	announceEvery  = 10 * time.Minute
	idleCheckEvery = 10 * time.Minute
	idleAfter      = time.Hour // a run without a new round is idle after this time
	minRetryDelay  = 500 * time.Millisecond
	// maxRetryDelay is the longest delay before a retry. It is less than the time after which a
	// hub discards an incomplete upload.
	maxRetryDelay = time.Minute
	callTimeout   = 2 * time.Minute
	chunk         = 1 << 20
	answerBytes   = 64 << 20 // a response to a check-in may list all clients of the region
	planBytes     = 1 << 20
	reportsAtOnce = 50 // the hub's limit for one check-in
	// announcedKinds is the maximum number of concurrent announcements. It is below the
	// hub's limit for one agent.
	announcedKinds = 4
	retryReleases  = time.Minute
	// offerEvery is the time after which results are offered again that the hub could not count.
	offerEvery = 5 * time.Second
)

// RunRegion relays tasks and results between the hub and the region until ctx ends.
func RunRegion(ctx context.Context, c RegionConfig) error {
	// Set a timeout for each call rather than for a series of calls, because a series may take
	// long over a slow link.
	limited := *c.Client
	limited.Timeout = callTimeout
	c.Client = &limited
	r := &relay{
		RegionConfig: c, sent: map[string]bool{}, waits: map[string]time.Time{}, since: map[roundKey]time.Time{}, retry: backoff.Backoff{Base: minRetryDelay, Cap: maxRetryDelay, Rand: c.Rand},
		hub: v1.NewAgentServiceClient(c.Client, c.Hub, connect.WithReadMaxBytes(answerBytes), protocol.Client()),
		sums: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadstar_region_sendings_total", Help: "Sums and updates on which the hub has decided, by outcome.",
		}, []string{"outcome"}),
	}
	c.Metrics.MustRegister(r.sums)
	for {
		if err := r.tick(ctx); err != nil && ctx.Err() == nil {
			wait := r.retry.Next()
			r.next = r.Ledger.Now().Add(wait)
			c.Log.Warn("cannot reach the hub or the ledger, retrying", "error", err, "next", wait)
		}
		if !backoff.Poll(ctx, c.Poll, &c.Woken) {
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			if err := r.Ledger.Resign(end, r.lead); err != nil {
				c.Log.Warn("cannot resign", "error", err) // another relay waits until the lead ends
			}
			return nil
		}
	}
}

// tick does all work that is due now.
func (r *relay) tick(ctx context.Context) error {
	now := r.Ledger.Now()
	if now.After(r.renew) {
		lead, err := r.Ledger.Lead(ctx, r.Name, r.Lead, now)
		if errors.Is(err, ledger.ErrRefused) {
			return nil // another relay leads
		} else if err != nil {
			return err
		}
		r.lead, r.renew = lead, now.Add(r.Lead/3)
	}
	if err := r.gather(ctx, now); err != nil {
		return fmt.Errorf("gathering results: %w", err)
	}
	if now.Before(r.next) {
		return nil
	}
	if r.Renew != nil {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		if _, err := r.Renew(call, now); err != nil {
			r.Log.Warn("cannot renew the certificate", "error", err)
		}
	}
	if err := r.announce(ctx, now); err != nil {
		return fmt.Errorf("announcing clients to the hub: %w", err)
	}
	if err := r.declineExpired(ctx, now); err != nil {
		return err
	}
	// Check in before sending sums, because sending may take a long time. The check-in extends
	// leases, and its verdicts may show that some sums need not be sent.
	tasks, err := r.checkIn(ctx, now)
	if err != nil {
		return fmt.Errorf("calling the hub: %w", err)
	}
	for _, t := range tasks {
		if failed := r.adopt(ctx, t, now); failed != nil {
			err = errors.Join(err, fmt.Errorf("adopting the task of round %d of run %s: %w", t.Round+1, t.Run, failed))
		}
	}
	// Send sums even if a task could not be adopted, because the two are independent.
	if err := errors.Join(err, r.push(ctx)); err != nil {
		return err
	}
	r.retry.Reset()
	return r.endIdleRuns(ctx, now)
}

// endIdleRuns ends runs for which the hub has sent no task for idleAfter. A new task
// resumes them.
func (r *relay) endIdleRuns(ctx context.Context, now time.Time) error {
	if now.Before(r.nextIdleCheck) {
		return nil
	}
	retired, err := r.Ledger.Relay.EndIdleRuns(ctx, r.lead, now.Add(-idleAfter), now)
	if err != nil {
		return err
	}
	r.nextIdleCheck = now.Add(idleCheckEvery)
	blob.DeleteAll(ctx, r.Blobs, retired, r.Log)
	return nil
}

// announce sends the list of the region's clients to the hub if it may have changed. It makes
// one call for each kind of client, so that a client that lacks an input does not prevent the
// others from using it.
func (r *relay) announce(ctx context.Context, now time.Time) error {
	n, err := r.Ledger.Directory.CountClients(ctx, time.Time{})
	if err != nil || n == 0 || n == r.clients && now.Sub(r.announced) < announceEvery {
		return err
	}
	kinds, err := r.Ledger.Directory.Kinds(ctx, time.Time{})
	if err != nil {
		return err
	}
	if len(kinds) > announcedKinds {
		r.Log.Warn("clients of this region have too many different inputs or intervals; only the most frequent kinds take part", "kinds", len(kinds), "announced", announcedKinds)
		kinds = kinds[:announcedKinds]
	}
	of, all := map[string]*v1.AnnounceRequest{}, make([]*v1.AnnounceRequest, len(kinds))
	key := func(inputs []string, step time.Duration) string { return fmt.Sprint(step, inputs) }
	generated := slices.ContainsFunc(kinds, func(k directory.Kind) bool { return k.Generated })
	for i, k := range kinds {
		all[i] = &v1.AnnounceRequest{Inputs: k.Inputs, StepSeconds: int64(k.Step / time.Second), Version: r.Version, Now: now.UnixMilli(), Generated: generated}
		of[key(k.Inputs, k.Step)] = all[i]
	}
	for after := ""; ; {
		page, err := r.Ledger.Directory.Clients(ctx, directory.ClientQuery{After: after, Limit: 1000})
		if err != nil {
			return err
		}
		if len(page) == 0 {
			break
		}
		for _, c := range page {
			if q := of[key(c.Inputs, c.Step)]; q != nil && !c.Revoked {
				q.Clients = append(q.Clients, c.Name)
			}
		}
		after = page[len(page)-1].Name
	}
	r.refused = false
	for _, q := range all { // the most frequent kinds first, because the hub limits the number of clients
		if len(q.Clients) == 0 {
			continue // the clients have changed since the count
		}
		s, err := r.hub.Announce(ctx, q)
		if connect.CodeOf(err) == connect.CodeInvalidArgument {
			// An agent of the region can cause this with too many clients. The clients that the hub
			// knows still take part.
			r.Log.Error("the hub refused the list of the region's clients", "clients", len(q.Clients), "error", err)
			r.refused = true
			continue
		} else if err != nil {
			return err
		}
		if len(s.Refused) > 0 {
			r.Log.Warn("the hub refused clients", "clients", len(s.Refused), "first", s.Refused[0], "reason", s.Reason)
		}
	}
	r.clients, r.announced = n, now
	return nil
}

// gather groups counted results into sendings to the hub. The sum of a round waits up to
// Linger for clients that are still training.
func (r *relay) gather(ctx context.Context, now time.Time) error {
	runs, err := r.Ledger.Relay.Adopted(ctx)
	if err != nil || len(runs) == 0 {
		return err
	}
	leased, err := r.Ledger.Relay.Leased(ctx)
	if err != nil {
		return err
	}
	open := map[roundKey]bool{}
	for _, l := range leased {
		open[roundKey{l.Run, l.Round}] = true
	}
	for _, run := range runs {
		t, err := r.Terms.Of(ctx, run)
		if err != nil {
			return err
		}
		by := ledger.ByRound
		switch {
		case !t.Folds():
			by = ledger.ByUpdate
		case t.Checks(): // keepers judge each result, and the hub asks them
			by = ledger.ByBatch
		}
		err = r.Ledger.Relay.Gather(ctx, r.lead, run, by, func(n int64) bool {
			k := roundKey{run, n}
			if _, seen := r.since[k]; !seen {
				r.since[k] = now
			}
			ready := by != ledger.ByRound || !open[k] || now.Sub(r.since[k]) >= r.Linger
			if ready {
				delete(r.since, k)
			}
			return ready
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// push sends the sendings that the hub does not have yet. After callTimeout it stops until
// the next tick, so that check-ins can extend leases in between. A run whose results cannot be sent
// does not stop the others.
func (r *relay) push(ctx context.Context) error {
	begun := time.Now()
	runs, err := r.Ledger.Relay.Adopted(ctx)
	if err != nil {
		return err
	}
	var failed error
	for _, run := range runs {
		if r.Ledger.Now().Before(r.waits[run]) {
			continue
		}
		all, err := r.Ledger.Relay.Sendings(ctx, run)
		if err != nil {
			return err
		}
		for i := range all {
			if r.sent[run+all[i].ID] {
				continue
			}
			if time.Since(begun) > callTimeout {
				return failed
			}
			err := r.send(ctx, run, &all[i])
			if errors.Is(err, errNotNow) { // the hub answers, so the relay must not back off
				r.wait(run, err)
				break
			}
			delete(r.waits, run)
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("sending %s of run %s to the hub: %w", all[i].ID, run, err))
				break
			}
			// The hub is reachable, so ask for its verdict soon.
			r.retry.Reset()
			r.next = time.Time{}
		}
	}
	return failed
}

// wait makes a run's results wait, because the hub cannot count them now.
func (r *relay) wait(run string, why error) {
	if _, again := r.waits[run]; !again {
		r.Log.Warn("results of a run wait in this region", "run", run, "reason", why)
	}
	r.waits[run] = r.Ledger.Now().Add(offerEvery)
}

// declineExpired withdraws the region's expired leases, and declines their turns at the hub.
func (r *relay) declineExpired(ctx context.Context, now time.Time) error {
	gone, err := r.Ledger.Relay.WithdrawExpired(ctx, r.lead, now)
	if err != nil {
		return err
	}
	return r.decline(ctx, gone, ledger.CodeLost, "the region did not hear from the agent before the lease expired")
}

func (r *relay) decline(ctx context.Context, gone []ledger.Task, code, reason string) error {
	for _, t := range toTurns(byRound(gone)) {
		if err := r.giveBack(ctx, &v1.Decline{Turns: t, Code: code, Reason: reason}); err != nil {
			// No retry is needed, because the hub's own leases expire.
			return fmt.Errorf("declining clients of run %s: %w", t.Run, err)
		}
	}
	return nil
}

// giveBack declines turns at the hub.
func (r *relay) giveBack(ctx context.Context, d *v1.Decline) error {
	_, err := r.hub.Exchange(ctx, &v1.ExchangeRequest{Training: r.named, Declines: []*v1.Decline{d}})
	return err
}

func byRound(all []ledger.Task) map[roundKey][]string {
	by := map[roundKey][]string{}
	for _, t := range all {
		k := roundKey{t.Run, t.Round}
		by[k] = append(by[k], t.Client)
	}
	return by
}

func toTurns(by map[roundKey][]string) (all []*v1.Turns) {
	for k, clients := range by {
		slices.Sort(clients)
		all = append(all, &v1.Turns{Run: k.run, Round: k.round, Clients: slices.Compact(clients)})
	}
	slices.SortFunc(all, func(a, b *v1.Turns) int { return cmp.Or(cmp.Compare(a.Run, b.Run), cmp.Compare(a.Round, b.Round)) })
	return all
}
