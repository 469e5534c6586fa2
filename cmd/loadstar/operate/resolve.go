package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"loadstar/internal/config"
	v1 "loadstar/proto/loadstar/v1"
)

// lastRun is the name of the newest run.
const lastRun = "@last"

// recent is the number of newest runs among which a name is looked up.
const recent = 200

// run returns the id of the run with the given name, which can be the run's id, a unique prefix
// of the id, the name of its plan (for the newest run), or @last.
func (o *operator) run(ctx context.Context, name string) (string, error) {
	r, err := o.ListRuns(ctx, &v1.ListRunsRequest{Limit: recent})
	if err != nil {
		return "", err
	}
	return pickRun(r.Runs, name)
}

// isRunID reports whether a name has the format of the server's run ids. A name in this format
// is accepted even if the run is not among the newest ones.
func isRunID(name string) bool {
	const length = 8
	return len(name) == length && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// pickRun picks a run from a list, which is sorted from new to old.
func pickRun(all []*v1.Run, name string) (string, error) {
	if name == "" {
		return "", errors.New("the name of the run is empty; use an id from loadstar run list")
	}
	if len(all) == 0 && name == lastRun {
		return "", errors.New("there are no runs yet; start one with loadstar run start PLAN")
	} else if len(all) == 0 {
		return "", fmt.Errorf("there is no run %s, and no other; start one with loadstar run start PLAN", name)
	}
	if name == lastRun {
		return all[0].Id, nil
	}
	var begins []string
	named := ""
	for _, r := range all {
		switch {
		case r.Id == name:
			return name, nil
		case strings.HasPrefix(r.Id, name):
			begins = append(begins, r.Id)
		}
		if r.Name == name && named == "" {
			named = r.Id
		}
	}
	switch {
	case named != "":
		return named, nil
	case len(begins) == 1:
		return begins[0], nil
	case len(begins) > 1:
		return "", fmt.Errorf("the ids of several runs begin with %s: %s; write more of the id", name, strings.Join(begins[:min(len(begins), 5)], ", "))
	case isRunID(name) && len(all) >= recent:
		return name, nil // the name may be that of an older run
	}
	hint := nearest(all, name)
	if strings.HasSuffix(hint, "?") {
		return "", fmt.Errorf("there is no run %s; %s", name, hint)
	}
	return "", fmt.Errorf("there is no run %s; %s; use an id, its beginning, the name of a plan, or %s", name, hint, lastRun)
}

// nearest returns a hint that names the runs that a user may have meant.
func nearest(all []*v1.Run, name string) string {
	known := make([]string, 0, 2*len(all))
	for _, r := range all {
		known = append(known, r.Id, r.Name)
	}
	if hint := config.Suggest(name, known); strings.HasPrefix(hint, "did you mean ") {
		return hint
	}
	var newest []string
	for _, r := range all[:min(len(all), 3)] {
		newest = append(newest, fmt.Sprintf("%s (%s)", r.Id, r.Name))
	}
	return "the newest are " + strings.Join(newest, ", ")
}
