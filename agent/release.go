package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"loadstar/agent/release"
	"loadstar/agent/state"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/internal/backoff"
	loadstarv1 "loadstar/proto/loadstar/v1"
)

// Limits on what the server may send and what the agent sends.
const (
	maxReleases   = 64 // more than a server offers
	reportsAtOnce = 50 // the server's limit for one check-in
	// maxReach limits the number of steps of a release's forecast, and maxWork its number of
	// multiplications. An agent makes hundreds of forecasts to compare a release.
	maxReach = 1 << 14
	maxWork  = 1 << 27
)

// follower keeps the host's releases in step with the server's. The goroutine that calls the
// server uses reports and news, and news has its own lock. The goroutine that runs follow uses
// the other fields.
type follower struct {
	*Config
	store *state.Store
	blobs *blobs // of releases
	retry backoff.Backoff
	news  news
	// reports have not been sent yet. sent must be called once the server has them.
	reports []release.Report
	sent    func()
}

// news contains the newest list of releases. The check-ins set it, and follow applies it.
type news struct {
	mu      sync.Mutex
	list    *loadstarv1.ReleaseList // nil before the first one arrives
	changed chan struct{}
}

func (n *news) newest() *loadstarv1.ReleaseList {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.list
}

// hear stores a list that the server sent. It ignores nil, which means that there is no newer
// list.
func (n *news) hear(list *loadstarv1.ReleaseList) {
	if list == nil {
		return
	}
	n.mu.Lock()
	n.list = list
	n.mu.Unlock()
	wake(n.changed)
}

// add adds to a check-in the agent's list of releases, and the reports that the server does not
// have yet.
func (f *follower) add(q *loadstarv1.ExchangeRequest) {
	if f.Releases == nil {
		return
	}
	q.Releases = proto.Uint64(f.news.newest().GetRevision())
	if len(f.reports) == 0 {
		f.reports, f.sent = f.Releases.Reports()
	}
	for _, r := range f.reports[:min(len(f.reports), reportsAtOnce)] {
		q.Reports = append(q.Reports, reportMessage(r))
	}
}

// reportMessage encodes a report. Sources are sorted, so equal reports have equal
// bytes.
func reportMessage(r release.Report) *loadstarv1.ClientReport {
	m := &loadstarv1.ClientReport{
		Client: r.Client, Day: r.Day, Release: r.Release, RelativeMae: known(r.RelativeMAE), Coverage: known(r.Coverage), Findings: r.Findings,
		Drift: r.Drift, WantsRound: r.WantsRound, Interim: r.Interim,
	}
	for source, share := range r.Shares {
		m.Shares = append(m.Shares, &loadstarv1.SourceShare{Source: source, Share: share})
	}
	slices.SortFunc(m.Shares, func(x, y *loadstarv1.SourceShare) int {
		if x.Source < y.Source {
			return -1
		}
		return 1
	})
	return m
}

func known(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}

// done drops the reports of a check-in, because the server has received or refused them.
func (f *follower) done(n int) {
	if n == 0 {
		return
	}
	if f.reports = f.reports[n:]; len(f.reports) == 0 && f.sent != nil {
		f.sent()
		f.sent = nil
	}
}

// follow passes the releases on the server's list to the host until ctx ends. It runs in its
// own goroutine, because downloads may take a long time.
func (f *follower) follow(ctx context.Context) error {
	if f.Releases == nil {
		return nil
	}
	retry := f.retry
	unusable := map[string]bool{} // releases that this version cannot use
	for ctx.Err() == nil {
		select {
		case <-f.news.changed:
		case <-ctx.Done():
			return nil
		}
		for {
			err := f.apply(ctx, f.news.newest(), unusable)
			if errors.Is(err, errStore) {
				return err
			}
			if err == nil || ctx.Err() != nil {
				retry.Reset()
				break
			}
			wait := retry.Next()
			f.Log.Warn("cannot adopt the server's releases", "error", err, "next", wait.Round(time.Millisecond))
			pause(ctx, wait, f.news.changed)
		}
	}
	return nil
}

// apply makes the host's releases equal to a list. It removes releases before it fetches
// others, because clients must stop using a withdrawn release immediately. A release that
// fails does not affect the others.
func (f *follower) apply(ctx context.Context, list *loadstarv1.ReleaseList, unusable map[string]bool) error {
	var ids, runs []string
	all := list.GetReleases()
	if len(all) > maxReleases {
		f.Log.Warn("the server offers too many releases", "releases", len(all))
		all = all[:maxReleases]
	}
	for _, r := range all {
		ids = append(ids, r.GetId())
		if state.CheckName(r.GetRun()) == nil && !slices.Contains(runs, r.GetRun()) {
			runs = append(runs, r.GetRun())
		}
	}
	maps.DeleteFunc(unusable, func(id string, _ bool) bool { return !slices.Contains(ids, id) })
	// Pin first, so that these runs still have their personal layers when the release arrives.
	if err := f.store.Pin(runs); err != nil {
		return storeError(err)
	}
	if err := f.Releases.Retain(ids); err != nil {
		return fmt.Errorf("removing releases: %w", err)
	}
	var failed error
	for _, r := range all {
		if unusable[r.GetId()] || f.Releases.Has(r.GetId()) {
			continue
		}
		x, personal, err := f.fetch(ctx, r)
		var no *unfit
		switch {
		case errors.As(err, &no):
			unusable[r.GetId()] = true
			f.Log.Warn("cannot use a release", "release", fmt.Sprintf("%s@%d", r.GetName(), r.GetNumber()), "reason", no.reason)
			continue
		case err == nil:
			err = f.Releases.Offer(*x, f.loader(x.Run, personal))
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("release %s@%d: %w", r.GetName(), r.GetNumber(), err))
			continue
		}
		f.Log.Info("received a release", "release", fmt.Sprintf("%s@%d", x.Name, x.Number), "run", x.Run, "version", x.Version)
		f.blobs.drop(r.GetPlan())
		f.blobs.drop(r.GetWeights())
	}
	return failed
}

// fetch fetches the plan and the weights of a release and checks them. It also
// returns the number of personal weights. The error is an [unfit] if this agent can never
// use the release.
func (f *follower) fetch(ctx context.Context, r *loadstarv1.Release) (*release.Release, int, error) {
	x := &release.Release{
		ID: r.GetId(), Name: r.GetName(), Number: int(r.GetNumber()), Run: r.GetRun(), Version: int(r.GetVersion()), Role: release.Role(r.GetRole()),
	}
	for _, name := range []string{x.ID, x.Name, x.Run} {
		// Commands print names, so a server could otherwise send control characters to a
		// user's terminal.
		if state.CheckName(name) != nil || !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return nil, 0, unfitf("a name is not valid")
		}
	}
	if r.GetNumber() < 1 || r.GetNumber() > math.MaxInt32 || r.GetVersion() < 0 || r.GetVersion() > math.MaxInt32 {
		return nil, 0, unfitf("number %d or version %d is out of range", r.GetNumber(), r.GetVersion())
	}
	var err error
	if x.Plan, err = f.blobs.get(ctx, r.GetPlan(), maxPlan, false); err != nil {
		return nil, 0, err
	}
	p, err := recipe.Read(x.Plan)
	if err != nil {
		return nil, 0, unfitf("this version cannot read the plan: %v", err)
	}
	if p, err = recipe.Stated(p); err != nil {
		return nil, 0, unfitf("the plan does not fit together: %v", err)
	}
	q, err := recipe.Frame(p, nil)
	if err != nil {
		return nil, 0, unfitf("the plan does not fit together: %v", err)
	}
	if need := footprint(p, q, 1); need > f.Memory {
		return nil, 0, unfitf("the model takes %d MB, this agent may use %d", need>>20, f.Memory>>20)
	}
	net := q.Model.Net()
	horizon, targets := p.Model.Horizon.Steps(), p.Model.Targets.Steps()
	if horizon > maxReach || targets > maxReach {
		return nil, 0, unfitf("it forecasts %d steps from step %d on, at most %d are possible", targets, horizon, maxReach)
	}
	if work := int64(net.Weights()) * int64(max(net.Lookback(), targets)); work > maxWork {
		return nil, 0, unfitf("a forecast takes about %d million multiplications, at most %d are possible", work>>20, maxWork>>20)
	}
	personal := q.Partition.PersonalLen()
	if want := map[bool]release.Role{true: release.Personal, false: release.Generic}[personal > 0]; x.Role != want {
		return nil, 0, unfitf("the role is %.40q, but the plan is for a %s model", x.Role, want)
	}
	data, err := f.blobs.get(ctx, r.GetWeights(), 4*int64(q.SharedLen()), true)
	if err != nil {
		return nil, 0, err
	}
	// The blob may also contain moments, which forecasts do not need.
	x.Weights = slices.Clone(q.SharedWeights(round.ReadFloats(nil, data)))
	for _, w := range x.Weights {
		if math.IsNaN(float64(w)) || math.IsInf(float64(w), 0) {
			return nil, 0, unfitf("a weight is not finite")
		}
	}
	return x, personal, nil
}

// loader returns a function that reads a client's results from a run.
func (f *follower) loader(run string, personal int) func(client string) (release.Kept, bool, error) {
	return func(client string) (release.Kept, bool, error) {
		values, scaling, found, err := f.store.Read(run, client)
		if err != nil || !found {
			return release.Kept{}, false, err
		}
		if len(values) < personal {
			return release.Kept{}, false, fmt.Errorf("client %s has %d personal weights of run %s, but the plan needs %d", client, len(values), run, personal)
		}
		return release.Kept{Personal: values[:personal:personal], Scaling: scaling}, true, nil
	}
}
