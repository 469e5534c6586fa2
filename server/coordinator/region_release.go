package coordinator

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/directory"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// adoptReleases copies the hub's releases and their blobs for the region's agents. It omits a
// release that it cannot copy, and requests the list again later. It only logs errors, because
// they must not prevent the relaying of tasks.
func (r *relay) adoptReleases(ctx context.Context, list *v1.ReleaseList, now time.Time) {
	if list == nil {
		return
	}
	r.nextReleases = now.Add(retryReleases)
	all := make([]ledger.Release, 0, len(list.Releases))
	for _, x := range list.Releases {
		if err := r.fetchRelease(ctx, x); err != nil {
			r.Log.Warn("cannot adopt a release of the hub", "release", fmt.Sprintf("%s@%d", x.Name, x.Number), "error", err)
			continue
		}
		all = append(all, ledger.Release{
			ID: x.Id, Name: x.Name, Number: x.Number, Run: x.Run, Version: x.Version, Role: x.Role, PlanBlob: x.Plan, Weights: x.Weights, Actor: "hub",
		})
	}
	if err := r.Ledger.Relay.AdoptReleases(ctx, r.lead, all, now); err != nil {
		r.Log.Warn("cannot adopt the releases of the hub", "error", err)
		return
	}
	if len(all) == len(list.Releases) {
		r.releases, r.nextReleases = list.Revision, time.Time{}
	}
	r.Log.Info("adopted the releases of the hub", "releases", len(all))
}

// fetchRelease copies the plan and the weights of a release from the hub.
func (r *relay) fetchRelease(ctx context.Context, x *v1.Release) error {
	plan, err := r.fetch(ctx, x.Plan, planBytes)
	if err != nil {
		return fmt.Errorf("fetching the plan: %w", err)
	}
	n, err := terms.SharedLen(plan)
	if err != nil {
		return err
	}
	b, err := r.fetch(ctx, x.Weights, int64(4*n))
	if err == nil && len(b) != 4*n {
		err = fmt.Errorf("the blob has %d bytes, but the plan requires %d", len(b), 4*n)
	}
	if err != nil {
		return fmt.Errorf("fetching the weights: %w", err)
	}
	return nil
}

// toReports decodes the reports of the region's clients, for the hub.
func toReports(reports []directory.Report) ([]*v1.ClientReport, error) {
	all := make([]*v1.ClientReport, len(reports))
	for i, r := range reports {
		all[i] = &v1.ClientReport{}
		if err := proto.Unmarshal(r.Message, all[i]); err != nil {
			return nil, fmt.Errorf("decoding the report of client %s: %w", r.Client, err)
		}
	}
	return all, nil
}
