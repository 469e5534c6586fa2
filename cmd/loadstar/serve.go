package main

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"loadstar/agent/identity"
	"loadstar/server"
)

func newServe() *cobra.Command {
	var (
		c       server.Config
		hub     string
		logging logFlags
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a fleet of agents",
		Long: `Serve a fleet of agents: hand out tasks and weights, take in results, count each once,
and move the shared weights.

Without further flags one process does everything, with a SQLite ledger, an embedded
NATS server and blobs as files in one folder. On a larger scale the roles run on
machines of their own, against a NATS cluster, PostgreSQL and an S3 store:

  gateway      talks to agents and operators, on one port with mutual TLS
  aggregator   counts results
  coordinator  opens and closes rounds; of several, one leads

With --hub this is the server of a region: it has joined a hub as an agent does, hands
its tasks on to the agents of the region, and sends back one sum of their results. It
goes on while the hub is away.

All processes need the same certificate authority: copy DIR/pki from the first.
Operators on this machine use DIR/operator. All servers of a NATS cluster must run
JetStream with sync_interval: always.`,
		Example: "  loadstar serve --dir loadstar-data --host server.example.org\n" +
			"  loadstar serve --roles aggregator --database postgres://… --nats nats://n1:4222,nats://n2:4222,nats://n3:4222",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.Lease < time.Second || c.Poll < time.Millisecond || c.MaxPoll < c.Poll || c.Rate <= 0 || c.Lead < time.Second || c.Aggregators < 1 || c.AgentClients < 1 || c.Certificates < time.Minute {
				return usageError{fmt.Errorf("--lease and --lead are at least 1s, --poll 1ms and at most --max-poll, --certificates a minute, --rate, --aggregators and --agent-clients above 0"), "serve "}
			}
			var err error
			if c.Log, err = logging.logger(cmd.ErrOrStderr()); err != nil {
				return err
			}
			if hub != "" {
				i, err := identity.Open(hub)
				if err != nil {
					return err
				}
				c.Hub = &server.Hub{Address: i.Server(), Client: i.HTTPClient(), Renew: i.RenewIfDue}
			}
			if host, _, err := net.SplitHostPort(c.Listen); err == nil && host != "" && host != "0.0.0.0" && host != "::" && !slices.Contains(c.Hosts, host) {
				c.Hosts = append(c.Hosts, host)
			}
			c.Ready = func(address string) {
				if _, port, err := net.SplitHostPort(address); err == nil {
					fmt.Fprintf(cmd.OutOrStdout(), "agents and operators: https://%s\n", net.JoinHostPort(c.Hosts[0], port))
				}
			}
			return server.Run(cmd.Context(), c)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Dir, "dir", "loadstar-data", "the server's folder")
	f.StringSliceVar(&c.Roles, "roles", server.Roles(), "what this process does")
	f.StringVar(&c.Listen, "listen", ":7443", "address for agents and operators")
	f.StringSliceVar(&c.Hosts, "host", []string{"localhost", "127.0.0.1"}, "names and addresses under which they reach it")
	f.StringVar(&c.Watch, "watch", "127.0.0.1:7444", "address of /metrics, /healthz and /readyz; empty for none")
	f.StringVar(&c.Database, "database", "", "sqlite:PATH or postgres://… (default sqlite in the folder)")
	f.StringSliceVar(&c.NATS, "nats", nil, "servers of a NATS cluster (default an embedded one)")
	f.StringVar(&c.Blobs, "blobs", "", "folder of weights, or s3://HOST/BUCKET/PREFIX with keys in the environment (default in the folder)")
	f.StringVar(&hub, "hub", "", "serve a region: folder of an identity by which it has joined its hub")
	f.DurationVar(&c.Linger, "linger", 30*time.Second, "how long a region's sum waits for the rest of its round")
	f.IntVar(&c.AgentClients, "agent-clients", 10_000, "how many clients an agent or a region may host")
	f.IntVar(&c.Aggregators, "aggregators", 2, "how many count side by side in this process")
	f.DurationVar(&c.Lease, "lease", 10*time.Minute, "how long an agent that says nothing may take over a turn")
	f.DurationVar(&c.Lead, "lead", 10*time.Second, "how long a dead coordinator keeps another from going on")
	f.DurationVar(&c.Poll, "poll", time.Second, "how often an agent of a small fleet checks in")
	f.DurationVar(&c.MaxPoll, "max-poll", time.Hour, "how often an agent of a large fleet checks in at least")
	f.Float64Var(&c.Rate, "rate", 500, "check-ins a second that a large fleet is paced to")
	f.DurationVar(&c.Certificates, "certificates", 7*24*time.Hour, "how long agents' certificates are valid")
	logging.add(f)
	return cmd
}

// logFlags say how a process that runs for long writes its log.
type logFlags struct{ format, level string }

func (l *logFlags) add(f interface {
	StringVar(p *string, name, value, usage string)
},
) {
	f.StringVar(&l.format, "log-format", "text", "text or json")
	f.StringVar(&l.level, "log-level", "info", "debug, info, warn or error")
}

func (l *logFlags) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return nil, fmt.Errorf("--log-level is debug, info, warn or error, not %q", l.level)
	}
	o := &slog.HandlerOptions{Level: level}
	switch l.format {
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	}
	return nil, fmt.Errorf("--log-format is text or json, not %q", l.format)
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}
