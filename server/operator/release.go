package operator

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"loadstar/fed/recipe"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/directory"
	"loadstar/server/ledger"
)

// The roles of releases.
const (
	personal = "personal"
	generic  = "generic"
)

// releases handles calls about releases, and about the clients' reports on them.
type releases struct{ *Config }

// CreateRelease releases a version of a run's weights to all agents. A region refuses the
// call, because its releases come from the hub.
func (o *releases) CreateRelease(ctx context.Context, r *v1.CreateReleaseRequest) (*v1.CreateReleaseResponse, error) {
	if o.Hub != "" {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("this server is a region; release the model at its hub, %s", o.Hub))
	}
	run, err := o.Ledger.Run(ctx, r.Run)
	if err != nil {
		return nil, o.wireError(err)
	}
	p, err := recipe.Read([]byte(run.Plan))
	if err != nil {
		return nil, o.wireError(err)
	}
	q, err := recipe.Frame(p, nil)
	if err != nil {
		return nil, o.wireError(err)
	}
	role := generic
	if q.Partition.PersonalLen() > 0 {
		role = personal
	}
	x := ledger.Release{ID: strings.ToLower(rand.Text()[:8]), Name: r.Name, Run: r.Run, Version: r.Version, Role: role, Actor: actor(ctx), Created: time.Now()}
	x.Name = cmp.Or(x.Name, p.Name)
	switch {
	case r.Version < 0:
		err = fmt.Errorf("version %d is negative", r.Version)
	case r.Role != "" && r.Role != role:
		err = fmt.Errorf("role %s does not fit; with the partition %s of this plan, a release is %s", r.Role, p.Partition, role)
	case !validName(x.Name):
		err = fmt.Errorf("%q cannot be the name of a release; it needs 1 to 64 letters, digits, dots, hyphens or underscores (--name)", x.Name)
	}
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	if x, err = o.Ledger.AddRelease(ctx, x); err != nil {
		return nil, o.wireError(err)
	}
	return &v1.CreateReleaseResponse{Release: recordOf(x, true)}, nil
}

// validName reports whether a string can be the name of a release. It must not contain @.
func validName(name string) bool {
	return name != "" && len(name) <= 64 && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	})
}

func recordOf(r ledger.Release, offered bool) *v1.ReleaseRecord {
	return &v1.ReleaseRecord{
		Release: &v1.Release{Id: r.ID, Name: r.Name, Number: r.Number, Run: r.Run, Version: r.Version, Role: r.Role, Plan: r.PlanBlob, Weights: r.Weights},
		Parent:  r.Parent, Actor: r.Actor, Created: millis(r.Created), Withdrawn: millis(r.Withdrawn), Offered: offered,
	}
}

// ListReleases returns all releases, or one of them.
func (o *releases) ListReleases(ctx context.Context, r *v1.ListReleasesRequest) (*v1.ListReleasesResponse, error) {
	all, err := o.Ledger.Releases(ctx)
	if err != nil {
		return nil, o.wireError(err)
	}
	offered := ledger.Offered(all)
	wanted := all
	if r.Release != "" {
		x, ok := ledger.FindRelease(all, r.Release)
		for i := len(offered) - 1; i >= 0 && !ok; i-- { // the newest release of a name is its last
			if offered[i].Name == r.Release {
				x, ok = offered[i], true
			}
		}
		if !ok {
			return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("there is no release %s", r.Release))
		}
		wanted = []ledger.Release{x}
	}
	answer := &v1.ListReleasesResponse{}
	for _, x := range wanted[:min(len(wanted), maxPage)] {
		answer.Releases = append(answer.Releases, recordOf(x, slices.Contains(offered, x)))
	}
	return answer, nil
}

// WithdrawRelease makes agents stop using a release.
func (o *releases) WithdrawRelease(ctx context.Context, r *v1.WithdrawReleaseRequest) (*v1.WithdrawReleaseResponse, error) {
	if o.Hub != "" {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("this server is a region; withdraw the release at its hub, %s", o.Hub))
	}
	if err := o.Ledger.WithdrawRelease(ctx, r.Release, actor(ctx), time.Now()); err != nil {
		return nil, o.wireError(err)
	}
	return &v1.WithdrawReleaseResponse{}, nil
}

// ListReports summarises the clients' reports by day.
func (o *releases) ListReports(ctx context.Context, r *v1.ListReportsRequest) (*v1.ListReportsResponse, error) {
	if r.Days < 0 || r.Days > 90 {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("reports are stored for 90 days"))
	}
	days, err := o.Ledger.Reports.ReportDays(ctx, r.Release, page(r.Days, 7))
	if err != nil {
		return nil, o.wireError(err)
	}
	answer := &v1.ListReportsResponse{}
	for _, d := range days {
		answer.Days = append(answer.Days, reportDay(d))
	}
	return answer, nil
}

func reportDay(d directory.ReportDay) *v1.ReportDay {
	return &v1.ReportDay{
		Day: d.Day, Clients: d.Clients, Total: d.Total, Drifting: d.Drifting, Wanting: d.Wanting,
		RelativeMae: known(d.RelativeMAE), Coverage: known(d.Coverage), Fallback: known(d.Fallback),
	}
}

// known returns a number, or nil if it is NaN.
func known(x float64) *float64 {
	if math.IsNaN(x) {
		return nil
	}
	return &x
}

// addReports adds the releases in use to a page of clients, according to their newest reports.
// The rest of a report can indicate an empty house, so users see only its sums by agent, day
// and release.
func (o *fleet) addReports(ctx context.Context, clients []*v1.Client) error {
	names := make([]string, len(clients))
	for i, c := range clients {
		names[i] = c.Name
	}
	reports, err := o.Ledger.Reports.Reports(ctx, names)
	if err != nil || len(reports) == 0 {
		return err
	}
	releases, err := o.Ledger.Releases(ctx)
	if err != nil {
		return err
	}
	for _, c := range clients {
		if reports[c.Name] == nil {
			continue
		}
		report := &v1.ClientReport{}
		if err := proto.Unmarshal(reports[c.Name], report); err != nil {
			return err
		}
		c.Reported = report.Day
		if x, ok := ledger.FindRelease(releases, report.Release); ok {
			c.Release = x.String()
		}
	}
	return nil
}
