package operator

import (
	"context"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/terms"
)

// ListVersions lists the stored versions of a run's weights.
func (o *runs) ListVersions(ctx context.Context, r *v1.ListVersionsRequest) (*v1.ListVersionsResponse, error) {
	versions, err := o.Ledger.Versions(ctx, r.Run)
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.ListVersionsResponse{}
	for _, v := range versions {
		x := &v1.Version{Version: v.Version, Weights: v.Weights, Created: millis(v.Created), RolledBack: v.From != nil}
		if v.From != nil {
			x.From = *v.From
		}
		if x.Limits, err = terms.DecodeLimits(v.Limits); err != nil {
			return nil, o.wireError(err)
		}
		answer.Versions = append(answer.Versions, x)
	}
	return answer, nil
}

// RollBackRun makes an earlier version of a run's weights the newest version.
func (o *runs) RollBackRun(ctx context.Context, r *v1.RollBackRunRequest) (*v1.RollBackRunResponse, error) {
	version, err := o.Ledger.RollBack(ctx, r.Run, r.Version, actor(ctx), o.Ledger.Now())
	if err != nil {
		return nil, o.wireError(err)
	}
	o.Wake(r.Run)
	return &v1.RollBackRunResponse{Version: version}, nil
}
