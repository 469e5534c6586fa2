package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"loadstar/internal/finding"
)

// patroniPort is the port on which Patroni reports its state.
const patroniPort = "8008"

// judgePatroni warns about a version of Patroni that can lose commits although standbys have
// confirmed them. It reports nothing if no host of the database answers like Patroni.
func (s *Store) judgePatroni(ctx context.Context, all *finding.List) {
	hosts := []string{s.listener.Host}
	for _, f := range s.listener.Fallbacks {
		hosts = append(hosts, f.Host)
	}
	for _, host := range slices.Compact(hosts) { // a host with and without TLS occurs twice
		version, ok := patroniVersion(ctx, "http://"+net.JoinHostPort(host, patroniPort)+"/patroni")
		if !ok {
			continue
		}
		const check = "database's Patroni"
		var major, minor, patch int
		if n, _ := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); n == 3 && (major < 3 || major == 3 && minor == 0 && patch < 3) {
			all.Warn(check, "upgrade Patroni to 3.0.3 or newer; until then configure it with etcd: instead of etcd3:",
				"Patroni %s with version 3 of etcd's interface can give the lead back to a primary that was cut off, which loses counted updates", version)
		} else {
			all.OK(check, "%s", version)
		}
		return
	}
}

func patroniVersion(ctx context.Context, at string) (string, bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return "", false // the host is the path of a socket
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return "", false
	}
	defer r.Body.Close()
	var is struct {
		Patroni struct {
			Version string `json:"version"`
		} `json:"patroni"`
	}
	err = json.NewDecoder(io.LimitReader(r.Body, 1<<16)).Decode(&is)
	return is.Patroni.Version, err == nil && is.Patroni.Version != ""
}
