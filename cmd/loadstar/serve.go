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
	"github.com/spf13/pflag"

	"loadstar/agent/identity"
	"loadstar/cmd/loadstar/cli"
	"loadstar/cmd/loadstar/operate"
	"loadstar/internal/sdnotify"
	"loadstar/nn/kernel"
	"loadstar/server"
	"loadstar/server/owndata"
)

func newServe() *cobra.Command {
	var (
		c          server.Config
		hub        string
		data, root string
		logging    logFlags
		dashboard  webFlags
		keys       operate.KeyFlags
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a server for a fleet of agents",
		Long: `Run a server for a fleet of agents. It hands out tasks and weights, counts each
result exactly once, and merges the results into new shared weights.

By default one process does everything, with a SQLite ledger and weights as
files, all in one folder. For larger fleets the roles can run on separate
machines, with PostgreSQL and an S3 store:

  gateway      serves agents and operators, on one port with mutual TLS, and
               counts results
  coordinator  opens and closes rounds; if there are several, one leads

With --hub the process is the server of a region. It joins the hub like an
agent, relays the hub's tasks to the agents of the region, and returns one sum
of their results. While the hub is unreachable, it keeps working on the tasks
that it already has.

With --server-data the coordinator has a dataset of its own, for plans that
compute on the server (algorithm fedsim, or start: server-data). All meters in
it are the server's. The dataset stays in the coordinator: agents and operators
see neither it nor its path. Give all coordinators the same one. The other
roles do not need it.

With --web a gateway also serves the dashboard, a page for browsers. 'loadstar
web login' prints a link that signs in. See docs/dashboard.md.

A new server makes a certificate authority in DIR/pki. Move its root key,
DIR/pki/root-key.pem, to a safe place offline: no server needs it. Gateways
share one issuer: copy the rest of DIR/pki from the first one. The other roles
need no certificates. See 'loadstar pki'. DIR/operator holds the credentials
for operator commands on this machine.

The server checks the settings that its promise needs (a counted update is never
lost, and never counted twice) and does not start if one of them breaks it. See
docs/reliability.md.`,
		Example: "  loadstar serve --dir loadstar-data --host server.example.org\n" +
			"  loadstar serve --roles coordinator --database postgres://… --blobs s3://HOST/BUCKET",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.Lease < time.Second || c.LongestTurn < 0 || c.LongestTurn > 0 && c.LongestTurn < time.Second || c.FleetSeen < 0 || c.Poll < time.Millisecond || c.MaxPoll < c.Poll || c.Rate <= 0 || c.Lead < time.Second || c.AgentClients < 1 || c.AddressRate < 0 || c.Certificates < time.Minute {
				return cli.Usagef("out of range: --lease, --longest-turn and --lead must be at least 1s, --fleet-seen at least 0s, --poll at least 1ms and at most --max-poll, --certificates at least 1m, --address-rate at least 0, and --rate and --agent-clients above 0")
			}
			keepPrivate()
			var err error
			if c.Log, err = logging.logger(cmd.ErrOrStderr()); err != nil {
				return err
			}
			if c.Keys, err = keys.Keys(cmd.Context()); err != nil {
				return err
			}
			if hub != "" {
				i, err := identity.Open(hub)
				if err != nil {
					return err
				}
				c.Hub = &server.Hub{Address: i.Server(), Client: i.HTTPClient(), Renew: i.RenewIfDue}
			}
			if data != "" {
				switch {
				case hub != "":
					return cli.Usagef("--server-data has no effect in a region, which does not merge: use it at the hub")
				case !slices.Contains(c.Roles, server.Coordinator):
					return cli.Usagef("--server-data is for the role coordinator, which this process does not have")
				}
				d, closer, err := cli.OpenDataset(data, root)
				if err != nil {
					return fmt.Errorf("--server-data: %w", err)
				}
				defer closer.Close()
				k, err := kernel.Default()
				if err != nil {
					return err
				}
				c.Data = owndata.New(d, k)
				c.Log.Info("the coordinator has data of its own", "data", c.Data.Fingerprint())
			}
			for _, at := range []string{c.Listen, c.Operators} {
				if host, _, err := net.SplitHostPort(at); err == nil && host != "" && host != "0.0.0.0" && host != "::" && !slices.Contains(c.Hosts, host) {
					c.Hosts = append(c.Hosts, host)
				}
			}
			c.Version = version
			page := ""
			if c.Web, err = dashboard.config(c.Roles, &page); err != nil {
				return err
			}
			c.Ready = func(address string) {
				if _, port, err := net.SplitHostPort(address); err == nil {
					printServing(cmd.OutOrStdout(), c, "https://"+net.JoinHostPort(c.Hosts[0], port), page)
				}
				sdnotify.Ready(cmd.Context(), c.Log)
			}
			return server.Run(cmd.Context(), c)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Dir, "dir", "loadstar-data", "the server's folder")
	f.StringSliceVar(&c.Roles, "roles", server.Roles(), "roles of this process")
	f.StringVar(&c.Listen, "listen", ":7443", "address for agents and operators")
	f.StringVar(&c.Operators, "operators", "", "`address` for operators alone, where agents and strangers cannot take connections (default the address of --listen)")
	f.Float64Var(&c.AddressRate, "address-rate", 50, "new connections per second of one address; 0 turns off all limits by address, for a proxy that hides addresses")
	f.StringSliceVar(&c.Hosts, "host", []string{"localhost", "127.0.0.1"}, "names and IP addresses of the server, for its certificate")
	f.StringVar(&c.Watch, "watch", "127.0.0.1:7444", "address for /metrics, /healthz, /readyz and /limited; empty to disable")
	storeFlags(f, &c)
	f.BoolVar(&c.AllowLoss, "allow-loss", false, "start although a setting of the database or the disk can lose counted updates")
	f.DurationVar(&c.Keep.Receipts, "keep-receipts", 90*24*time.Hour, "time for which receipts and declines of merged rounds are kept, and members of ended runs; 0 for ever")
	f.DurationVar(&c.Keep.Audit, "keep-audit", 2*365*24*time.Hour, "time for which the audit log is kept; 0 for ever")
	f.StringVar(&c.Revocations, "revocations", "", "`file` with the list of all revocations, which a restore needs (default DIR/revocations.jsonl)")
	f.StringVar(&data, "server-data", "", "the coordinator's own `dataset`: a dataset.yaml, a folder with one, or a prepared file")
	f.StringVar(&root, "root", "", cli.RootUsage)
	f.StringVar(&hub, "hub", "", "run as a region's server, with the agent `folder` that 'loadstar agent join' created for the hub")
	f.DurationVar(&c.Linger, "linger", 30*time.Second, "time that a region waits for more results before it sends a sum")
	f.IntVar(&c.AgentClients, "agent-clients", 10_000, "maximum number of clients of an agent or region")
	f.DurationVar(&c.Lease, "lease", 10*time.Minute, "time without contact after which an agent's task is lost")
	f.DurationVar(&c.LongestTurn, "longest-turn", time.Hour, "longest time for a task, even if its agent stays in contact; 0 means no limit")
	f.DurationVar(&c.FleetSeen, "fleet-seen", 0, "a run asks the clients of agents that were seen within this time (default three check-ins, at least 10m)")
	f.DurationVar(&c.Lead, "lead", 10*time.Second, "time until another coordinator replaces one that crashed")
	f.DurationVar(&c.Poll, "poll", usualPoll, "interval between an agent's check-ins in a small fleet")
	f.DurationVar(&c.MaxPoll, "max-poll", usualMaxPoll, "longest interval between an agent's check-ins")
	f.Float64Var(&c.Rate, "rate", usualRate, "maximum check-ins per second of the whole fleet")
	f.DurationVar(&c.Certificates, "certificates", 7*24*time.Hour, "validity of agents' certificates")
	f.DurationVar(&c.Grace, "grace", 90*24*time.Hour, "time after its expiry in which an agent can still renew its certificate")
	keys.Add(f)
	dashboard.add(f)
	logging.add(f)
	cli.GroupFlags(cmd, "Agents and operators", "listen", "operators", "host", "poll", "max-poll", "lease", "longest-turn", "fleet-seen", "certificates", "grace", "pki-passphrase-file", "pki-signer", "hub", "linger")
	cli.GroupFlags(cmd, "Dashboard", "web", "web-cert", "web-key", "web-behind-proxy", "web-url", "web-read-only",
		"oidc-issuer", "oidc-client-id", "oidc-client-secret-file", "oidc-claim", "oidc-roles")
	cli.GroupFlags(cmd, "Storage", "database", "blobs", "blobs-ca", "revocations", "keep-receipts", "keep-audit", "allow-loss", "server-data", "root")
	cli.GroupFlags(cmd, "Limits", "rate", "address-rate", "agent-clients", "lead")
	return cmd
}

// How often agents check in, unless the flags say otherwise.
const (
	usualPoll, usualMaxPoll = time.Second, time.Hour
	usualRate               = 500
)

// storeFlags adds the flags that say where a server keeps its data.
func storeFlags(f *pflag.FlagSet, c *server.Config) {
	f.StringVar(&c.Database, "database", "", "sqlite:PATH or postgres://… (default SQLite in DIR)")
	f.StringVar(&c.Blobs, "blobs", "", "folder for weights, or s3://HOST/BUCKET/PREFIX with keys from the environment (default in DIR)")
	f.StringVar(&c.BlobsCA, "blobs-ca", "", "`file` with the certificate authorities of the S3 store (default the system's)")
}

// logFlags contains the flags that configure the log of a long-running process.
type logFlags struct{ format, level string }

func (l *logFlags) add(f interface {
	StringVar(p *string, name, value, usage string)
},
) {
	f.StringVar(&l.format, "log-format", "text", "log format: text or json")
	f.StringVar(&l.level, "log-level", "info", "log level: debug, info, warn or error")
}

func (l *logFlags) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return nil, fmt.Errorf("--log-level must be debug, info, warn or error, not %q", l.level)
	}
	o := &slog.HandlerOptions{Level: level}
	switch l.format {
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	}
	return nil, fmt.Errorf("--log-format must be text or json, not %q", l.format)
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}
