package main

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"loadstar/agent/identity"
	"loadstar/cmd/loadstar/cli"
	"loadstar/cmd/loadstar/operate"
	"loadstar/internal/service"
	"loadstar/nn/kernel"
	"loadstar/server"
	"loadstar/server/config"
	"loadstar/server/examine"
	"loadstar/server/keepers"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// serveOptions are the flags of the command.
type serveOptions struct {
	given serverSource
	print bool
}

func newServe() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a server for a fleet of agents",
		Long: `Run a server for a fleet of agents. It sends out tasks and weights, counts each
result exactly once, and merges the results into new shared weights.

By default one process does everything, with a SQLite ledger and weights as
files, all in one folder. For larger fleets the roles can run on separate
machines, with PostgreSQL and an S3 store:

  gateway      serves agents and operators, on one port with mutual TLS, and
               counts results
  coordinator  opens and closes rounds; if there are several, one leads

With --hub the process is the server of a region. It joins the hub like an
agent, relays the hub's tasks to the agents of the region, and returns one sum
of their results. If the hub is unreachable, the region continues with the tasks
that it already has.

Settings come from server.yaml, from the environment (LOADSTAR_SERVE_STORE_BLOBS
is store.blobs), from --set and from the other flags. Later sources take
precedence. --print-config prints all keys. See docs/reference/server-yaml.md.

With --web a gateway also serves the dashboard, a page for browsers. 'loadstar
user login' prints a link that signs in. See docs/dashboard.md.

A new server creates a certificate authority in DIR/pki. Move the root's key,
DIR/pki/root-key.pem, to a safe place offline, because no server needs it.
Gateways share one issuer, so copy the rest of DIR/pki from the first gateway to
the others. Coordinators need no certificates. See 'loadstar pki'. DIR/operator
holds the credentials for operator commands on this machine.

The server checks the settings that prevent counted updates from being lost
or counted twice, and does not start if one of them is wrong. See
docs/how-to/postgresql.md.`,
		Example: "  loadstar serve --dir loadstar-data --host server.example.org\n" +
			"  loadstar serve --roles coordinator --database postgres://… --blobs s3://HOST/BUCKET\n" +
			"  loadstar serve --set rounds.lease=30m --print-config > server.yaml",
		Args: cobra.NoArgs,
		RunE: o.run,
	}
	f := cmd.Flags()
	o.given.add(f)
	f.BoolVar(&o.print, "print-config", false, "print the configuration that results from these flags and files, with the meaning of each key, and exit")
	d := config.Default()
	for _, x := range serveFlags {
		x.add(f, d)
	}
	return cmd
}

func (o *serveOptions) run(cmd *cobra.Command, _ []string) error {
	c, err := o.given.read(cmd.Flags())
	if err != nil {
		return err
	}
	if o.print {
		return c.Print(cmd.OutOrStdout())
	}
	return runServer(cmd, c)
}

// serveFlag is a flag for a key of server.yaml.
type serveFlag struct{ name, key, usage string }

// The flags cover the most common settings. All other settings have only keys.
var serveFlags = []serveFlag{
	{"roles", "roles", "roles of this process"},
	{"listen", "listen", "address for agents and operators"},
	{"host", "hosts", "names and IP addresses of the server, for its certificate"},
	{"watch", "watch", "address for /metrics, /healthz, /readyz and /limited; empty to disable"},
	{"notify", "notify", "`address` that is notified when faults begin and end: https://HOST/PATH gets JSON, ntfy:https://HOST/TOPIC gets the format of ntfy"},
	{"web", "web.listen", "address for the dashboard, such as 127.0.0.1:7445; empty to disable"},
	{"database", "store.database", "sqlite:PATH or postgres://… (default SQLite in DIR)"},
	{"blobs", "store.blobs", "folder for weights, or s3://HOST/BUCKET/PREFIX with keys from the environment (default in DIR)"},
	{"hub", "region.hub", "run as a region's server, with the agent `folder` that 'loadstar agent join' created for the hub"},
	{"log-format", "log.format", "log format: text or json"},
	{"log-level", "log.level", "log level: debug, info, warn or error"},
}

// add adds the flag with the default of its key.
func (x serveFlag) add(f *pflag.FlagSet, d config.Config) {
	switch x.key {
	case "roles":
		f.StringSlice(x.name, d.Roles, x.usage)
	case "hosts":
		f.StringSlice(x.name, d.Hosts, x.usage)
	default:
		f.String(x.name, map[string]string{"listen": d.Listen, "watch": d.Watch, "log.format": d.Log.Format, "log.level": d.Log.Level}[x.key], x.usage)
	}
}

// serverSource lists the sources of a server's configuration.
type serverSource struct{ config.Source }

func (s *serverSource) add(f *pflag.FlagSet) {
	f.StringVar(&s.Dir, "dir", "", "the server's folder (default \"loadstar-data\")")
	f.StringVar(&s.File, "config", "", "`file` with settings (default DIR/server.yaml, if there is one)")
	f.StringArrayVar(&s.Set, "set", nil, "set a `KEY=VALUE` of server.yaml; may be repeated")
}

// read reads the configuration with the given flags.
func (s *serverSource) read(f *pflag.FlagSet) (*config.Config, error) {
	all := s.Source
	all.Environ = os.Environ()
	all.Set = slices.Clone(all.Set)
	for _, x := range serveFlags {
		if at := f.Lookup(x.name); at != nil && at.Changed {
			value := at.Value.String()
			if list, ok := at.Value.(pflag.SliceValue); ok {
				value = strings.Join(list.GetSlice(), ",")
			}
			all.Set = append(all.Set, x.key+"="+value)
		}
	}
	c, err := config.Read(all)
	if err != nil {
		return nil, cli.Usagef("%w", err)
	}
	return c, nil
}

// runServer runs a server until it is stopped.
func runServer(cmd *cobra.Command, from *config.Config) (err error) {
	keepPrivate()
	c := serverConfig(from)
	if c.Log, err = service.Logger(cmd.ErrOrStderr(), from.Log.Format, from.Log.Level); err != nil {
		return err
	}
	if c.Keys, err = operate.Keys(cmd.Context(), from.Keys.PassphraseFile, from.Keys.Signers); err != nil {
		return err
	}
	if hub := from.Region.Hub; hub != "" {
		i, err := identity.Open(hub)
		if err != nil {
			return err
		}
		c.Hub = &server.Hub{Address: i.Server(), Name: i.ID(), Client: i.HTTPClient(), Renew: i.RenewIfDue}
	}
	if data := from.Rounds.Data; data != "" {
		d, closer, err := cli.OpenPlausible(cmd.ErrOrStderr(), data, from.Rounds.Root)
		if err != nil {
			return fmt.Errorf("rounds.data: %w", err)
		}
		defer closer.Close()
		k, err := kernel.Default()
		if err != nil {
			return err
		}
		c.Data = terms.NewOwnData(d, k)
		c.Log.Info("opened the coordinator's dataset", "data", c.Data.Fingerprint())
	}
	page := ""
	if c.Web, err = webConfig(from.Web); err != nil {
		return err
	}
	if c.Web != nil {
		c.Web.Ready = func(url string) { page = url }
	}
	if from.Notify != "" {
		if c.Notify, err = examine.NewNotifier(from.Notify); err != nil {
			return err
		}
	}
	c.Ready = func(address string) {
		if _, port, err := net.SplitHostPort(address); err == nil {
			printServing(cmd.OutOrStdout(), c, "https://"+net.JoinHostPort(c.Hosts[0], port), page)
		}
		service.Ready(cmd.Context(), c.Log)
	}
	return server.Run(cmd.Context(), c)
}

// serverConfig returns the settings that can be set before anything is opened.
func serverConfig(from *config.Config) server.Config {
	c := server.Config{
		Dir: from.Dir, Roles: from.Roles, Listen: from.Listen, Operators: from.Operators, Hosts: from.Hosts, Watch: from.Watch, Version: version,
		Database: from.Store.Database, Blobs: from.Store.Blobs, BlobsCA: from.Store.BlobsCA, AllowLoss: from.Store.AllowLoss, Revocations: from.Store.Revocations,
		Keep:    ledger.Retention{Receipts: time.Duration(from.Store.KeepReceipts), Audit: time.Duration(from.Store.KeepAudit)},
		Explain: explainFleet,
		Poll:    time.Duration(from.Agents.Poll), MaxPoll: time.Duration(from.Agents.MaxPoll), FleetSeen: time.Duration(from.Agents.Seen),
		Certificates: time.Duration(from.Agents.Certificates), Grace: time.Duration(from.Agents.Grace),
		Rate: from.Limits.Rate, AddressRate: from.Limits.AddressRate, AgentClients: from.Limits.AgentClients,
		Lease: time.Duration(from.Rounds.Lease), LongestTurn: time.Duration(from.Rounds.LongestTurn), Lead: time.Duration(from.Rounds.Lead),
		Linger: time.Duration(from.Region.Linger),
	}
	for _, k := range from.Keepers {
		if a, err := keepers.Parse(k); err == nil { // the configuration was checked
			c.Keepers = append(c.Keepers, a)
		}
	}
	for _, at := range []string{c.Listen, c.Operators} {
		if host, _, err := net.SplitHostPort(at); err == nil && host != "" && host != "0.0.0.0" && host != "::" && !slices.Contains(c.Hosts, host) {
			c.Hosts = append(slices.Clip(c.Hosts), host)
		}
	}
	return c
}
