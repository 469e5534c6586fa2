package command

import (
	"context"
	"flag"
	"fmt"

	"loadstar/agent"
	"loadstar/agent/identity"
	"loadstar/fed/policy"
	"loadstar/internal/service"
	"loadstar/nn/kernel"
)

// hosting holds the flags of the command run.
type hosting struct {
	program    *Program
	c          agent.Config
	data, part string
	policy     list
	live       Options
	// format and level are the format and the level of the log.
	format, level string
}

func (p *Program) run() *Command {
	h := &hosting{program: p}
	return &Command{
		Name:  "run",
		Short: "Host clients until stopped",
		Long: `Host clients until stopped. With --config, the agent ingests the readings of its
clients and forecasts, alone or with a server; see docs/agent.md. With --data,
it only trains for a server, and every meter in the dataset is a client.
Readings and personal layers never leave this machine; docs/privacy.md explains
what the updates can reveal. The agent declines plans that its policy does not
allow. With --data, the agent uses the default policy, which --policy changes.
If the server is unreachable, the agent waits and reconnects. After a restart it
continues where it stopped.

While the agent trains, it logs one line per minute. With --log-level debug it
logs every round.`,
		Example: "  AGENT run --config agent.yaml\n  AGENT run --data site.prepared\n  AGENT run --data site.prepared --part 1/2",
		Flags:   h.add,
		Run:     func(ctx context.Context, _ []string) error { return h.run(ctx) },
	}
}

func (h *hosting) add(f *flag.FlagSet) {
	f.StringVar(&h.c.Dir, "dir", folder, "the agent's folder")
	f.StringVar(&h.live.Config, "config", "", "the agent's configuration `file`; the agent then ingests readings and forecasts")
	f.StringVar(&h.data, "data", "", h.program.Data)
	f.StringVar(&h.part, "part", "", "host only part `K/N` of the meters, such as 1/20")
	f.Var(&h.policy, "policy", "change which plans the agent trains: `KEY=VALUE` with a key of policy in agent.yaml, trial (for small fleets), or none (any plan); may be repeated")
	f.StringVar(&h.c.Invitations, "invitations", "", "`file` with the invitations of keepers for private plans; with --config, use train.invitations instead")
	f.StringVar(&h.live.Join.Server, "join", "", "`URL` of the server to join at the first start")
	f.StringVar(&h.live.Join.TokenFile, "join-token-file", "", "`file` with the join token for --join")
	f.IntVar(&h.c.Workers, "workers", h.program.Workers, "number of clients to train in parallel")
	f.StringVar(&h.format, "log-format", "text", "log format: text or json")
	f.StringVar(&h.level, "log-level", "info", "log level: debug, info, warn or error")
}

// run hosts the clients of a configuration or of a dataset.
func (h *hosting) run(ctx context.Context) error {
	usual := policy.Default()
	for _, text := range h.policy {
		if err := usual.Set(text); err != nil {
			return usageError{err}
		}
	}
	switch {
	case h.live.Config != "" && h.data != "":
		return Usagef("use either --config or --data")
	case h.live.Config == "" && h.data == "":
		return Usagef("no configuration and no dataset: use --config or --data")
	}
	log, err := service.Logger(h.program.Err, h.format, h.level)
	if err != nil {
		return err
	}
	if h.live.Config != "" {
		h.live.Log, h.live.Policy = log, h.policy
		return Run(ctx, h.program.options(h.live))
	}
	h.c.Log, h.c.Policy = log, &usual
	return h.train(ctx)
}

// train trains on a dataset for a server.
func (h *hosting) train(ctx context.Context) error {
	collectOften()
	if err := h.live.Join.Once(ctx, h.c.Dir, hostname()); err != nil {
		return err
	}
	i, err := identity.Open(h.c.Dir)
	if err != nil {
		return err
	}
	d, closer, err := h.program.Open(h.data)
	if err != nil {
		return err
	}
	defer closer.Close()
	if h.part != "" {
		var k, n int
		if _, err := fmt.Sscanf(h.part, "%d/%d", &k, &n); err != nil {
			return Usagef("--part must have the form K/N, such as 1/20, not %q", h.part)
		}
		if d, err = d.Part(k, n); err != nil {
			return err
		}
	}
	if h.c.Kernel, err = kernel.Default(); err != nil {
		return err
	}
	h.c.Dataset, h.c.Name, h.c.Server, h.c.Client, h.c.Renew, h.c.Version = d, i.ID(), i.Server(), i.HTTPClient(), i.RenewIfDue, h.program.Version
	h.c.Log.Info("hosting clients", "agent", i.ID(), "server", i.Server(), "clients", d.Len())
	service.Ready(ctx, h.c.Log)
	return agent.Run(ctx, h.c)
}
