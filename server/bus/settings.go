package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"loadstar/internal/finding"
)

// Sync says how a server can know that NATS syncs every message before it acknowledges it. The
// protocol for clients does not show this setting; the monitoring port of each NATS server
// does.
type Sync struct {
	// Monitors are the addresses of monitoring ports, such as http://n1.example.org:8222.
	Monitors []string
	// Stated means that the operator says that it is so.
	Stated bool
}

// Versions of NATS that lose what they have acknowledged, according to the reports of
// Jepsen. Streams disappeared after kills before 2.10.23 (nats-server issue 6888), and
// messages after changes of a cluster's members before 2.12.3 (issue 7545).
var lossy = []struct {
	before [3]int
	why    string
}{
	{[3]int{2, 10, 23}, "loses whole streams if its processes are killed"},
	{[3]int{2, 12, 3}, "can lose messages when members of a cluster are replaced"},
}

const bestVersion = "2.12.3"

// Settings checks the settings of the queue, and whether all its nodes are there. A result
// that the queue loses is sent again by its agent, so none of this is necessary for exact
// counting. It decides how long a round waits after a fault.
func (b *Bus) Settings(ctx context.Context, sync Sync) (all finding.List) {
	if b.server != nil {
		v := b.server.JetStreamConfig()
		if v == nil || !v.SyncAlways {
			all.Fail("queue's sync", "report this: the embedded server is started with it", "the embedded NATS server does not sync every message")
		} else {
			all.OK("queue's sync", "the embedded NATS server syncs every message")
		}
		b.sayDepth(ctx, &all)
		return all
	}
	look(ctx, b.conn, b.js, &all, sync)
	b.sayDepth(ctx, &all)
	return all
}

const depthText = "%d messages wait, %d are being counted"

// sayDepth says how many results wait.
func (b *Bus) sayDepth(ctx context.Context, all *finding.List) {
	waiting, taken, err := b.Depth(ctx)
	if err != nil {
		all.Fail("queue", "check that NATS runs and that JetStream has a leader", "%v", err)
		return
	}
	all.OK("queue", depthText, waiting, taken)
}

// Look connects to a cluster, says what Settings says, and changes nothing.
func Look(ctx context.Context, c Config, sync Sync) (all finding.List) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	const do = "check the addresses of --nats, the credentials, the network, and that NATS runs"
	c, err := c.withDefaults()
	if err != nil {
		all.Fail("queue", do, "%v", err)
		return all
	}
	conn, err := nats.Connect(strings.Join(c.URLs, ","), append(c.security(), nats.Name("loadstar doctor"), nats.Timeout(5*time.Second), nats.NoReconnect())...)
	if err != nil {
		all.Fail("queue", do, "cannot connect to NATS: %v", err)
		return all
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if c.Domain != "" {
		js, err = jetstream.NewWithDomain(conn, c.Domain)
	}
	if err != nil {
		all.Fail("queue", do, "%v", err)
		return all
	}
	look(ctx, conn, js, &all, sync)
	if waiting, taken, _, err := depth(ctx, js); err == nil { // without a stream, look has said so
		all.OK("queue", depthText, waiting, taken)
	}
	return all
}

func look(ctx context.Context, conn *nats.Conn, js jetstream.JetStream, all *finding.List, sync Sync) {
	version := conn.ConnectedServerVersion()
	if why := loses(version); why != "" {
		all.Warn("queue's version", "upgrade all NATS servers to "+bestVersion+" or newer", "NATS %s %s", version, why)
	} else {
		all.OK("queue's version", "NATS %s", version)
	}
	lookSync(ctx, all, sync)
	stream, err := js.Stream(ctx, streamName)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		all.Warn("queue's stream", "start a server, which makes it", "there is no stream %s", streamName)
		return
	case err != nil:
		all.Fail("queue's stream", "check that JetStream is on and has a leader", "%v", err)
		return
	}
	i := stream.CachedInfo()
	if c := i.Config; c.Storage != jetstream.FileStorage || c.Retention != jetstream.WorkQueuePolicy || c.Discard != jetstream.DiscardNew {
		all.Fail("queue's stream", "stop all servers, delete the stream "+streamName+" and start them: agents send again what waits there",
			"the stream has storage %s, retention %s and discard %s; it needs file, WorkQueue and DiscardNew", c.Storage, c.Retention, c.Discard)
	} else {
		all.OK("queue's stream", "results are kept in files until they are counted")
	}
	lookNodes(all, i, len(conn.Servers()))
}

// lookNodes checks the nodes that keep the stream. known is the number of servers that this
// process was told of, by its settings or by NATS.
func lookNodes(all *finding.List, i *jetstream.StreamInfo, known int) {
	const check = "queue's nodes"
	if n := i.Config.Replicas; n < 3 {
		if known >= 3 {
			all.Warn(check, "name at least three servers in --nats", "results are kept on %d of %d servers: if it fails, the queue stops until it is back", n, known)
		} else {
			all.OK(check, "results are kept on %d server; if it fails, the queue stops until it is back", n)
		}
		return
	}
	var bad []string
	for _, r := range i.Cluster.Replicas {
		if r.Offline || !r.Current {
			bad = append(bad, fmt.Sprintf("%s (%d messages behind, seen %s ago)", r.Name, r.Lag, r.Active.Round(time.Second)))
		}
	}
	switch {
	case i.Cluster.Leader == "":
		all.Fail(check, "start the NATS servers that are down", "the stream has no leader")
	case len(bad) > 0:
		all.Warn(check, "start the NATS servers that are down; a server that has lost its disk must be replaced", "of %d nodes, these do not follow: %s", i.Config.Replicas, strings.Join(bad, ", "))
	default:
		all.OK(check, "all %d nodes have all results", i.Config.Replicas)
	}
}

// lookSync asks each monitoring port whether its server syncs every message.
func lookSync(ctx context.Context, all *finding.List, sync Sync) {
	const check, do = "queue's sync", "set jetstream { sync_interval: always } in the configuration of every NATS server"
	if len(sync.Monitors) == 0 {
		if sync.Stated {
			all.OK(check, "--nats-synced says that NATS syncs every message; nobody checks it")
		} else {
			all.Warn(check, do+"; then give serve --nats-monitor with the addresses of the monitoring ports, or --nats-synced",
				"a client cannot see whether NATS syncs messages before it acknowledges them, and by default it does not: results can be lost with the power, and their agents send them again")
		}
		return
	}
	for _, at := range sync.Monitors {
		version, always, err := varz(ctx, at)
		switch {
		case err != nil:
			all.Warn(check, "check the address of --nats-monitor, and http_port in the configuration of NATS", "%s does not answer: %v", at, err)
			return
		case !always:
			all.Warn(check, do, "the NATS server at %s acknowledges messages before they are on disk: results can be lost with the power, and their agents send them again", at)
			return
		case loses(version) != "":
			all.Warn(check, "upgrade all NATS servers to "+bestVersion+" or newer", "NATS %s at %s %s", version, at, loses(version))
			return
		}
	}
	all.OK(check, "all %d NATS servers sync every message", len(sync.Monitors))
}

// varz asks a monitoring port for the server's version and whether it syncs every message.
func varz(ctx context.Context, at string) (version string, always bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(at, "/")+"/varz", nil)
	if err != nil {
		return "", false, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", false, err
	}
	defer answer.Body.Close()
	var v struct {
		Version   string `json:"version"`
		JetStream struct {
			Config *struct {
				SyncAlways bool `json:"sync_always"`
			} `json:"config"`
		} `json:"jetstream"`
	}
	if answer.StatusCode != http.StatusOK {
		return "", false, errors.New(answer.Status)
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, answer.Body, 1<<20)).Decode(&v); err != nil {
		return "", false, err
	}
	if v.JetStream.Config == nil {
		return v.Version, false, errors.New("its server does not run JetStream")
	}
	return v.Version, v.JetStream.Config.SyncAlways, nil
}

// loses says why a version of NATS loses messages, or nothing.
func loses(version string) string {
	var v [3]int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &v[0], &v[1], &v[2]); err != nil {
		return ""
	}
	for _, l := range lossy {
		for i, n := range l.before {
			if v[i] != n {
				if v[i] < n {
					return l.why
				}
				break
			}
		}
	}
	return ""
}
