// Command loadstar-agent hosts clients on small devices: it ingests their readings, makes
// forecasts, and trains for a server. It contains no server or simulator code, to keep the
// binary small.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"loadstar/agent"
	"loadstar/agent/command"
	"loadstar/agent/identity"
	"loadstar/agent/mqtt"
	"loadstar/fed/policy"
	"loadstar/internal/service"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// version is set by the Makefile.
var version = "0.1.0-dev"

const usage = `Host clients: forecast their load, and train on their data.

  loadstar-agent join [-dir DIR] [-name NAME] -token-file FILE SERVER
  loadstar-agent run -config agent.yaml [-join SERVER -join-token-file FILE]
  loadstar-agent run [-dir DIR] [-workers N] DATA.prepared
  loadstar-agent check [-config agent.yaml] [-plan FILE]
  loadstar-agent status [-config agent.yaml]
  loadstar-agent audit [-config agent.yaml] [-client NAME] [-json]
  loadstar-agent discover [-for 30s] [-user USER] [-password-file FILE] [BROKER]
  loadstar-agent import [-config agent.yaml] DATA.prepared...
  loadstar-agent accept [-config agent.yaml] CLIENT
  loadstar-agent model pin|unpin|rollback [-config agent.yaml] CLIENT
  loadstar-agent version

With a configuration, the agent ingests readings and forecasts, alone or with a
server. Without one, it trains on a prepared file for a server. Create prepared
files with 'loadstar data prepare'.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := execute(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "loadstar-agent:", err)
		code := 1
		if errors.Is(err, errUsage) {
			code = 2
		}
		os.Exit(code)
	}
}

var errUsage = errors.New("see loadstar-agent -h")

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		args = []string{"-h"}
	}
	name, args := args[0], args[1:]
	f := flag.NewFlagSet("loadstar-agent "+name, flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprint(stderr, usage)
		f.PrintDefaults()
	}
	o := command.Options{Version: version, Out: stdout, Log: slog.New(slog.NewTextHandler(stderr, nil))}
	withConfig := func(usual string) { f.StringVar(&o.Config, "config", usual, "the agent's configuration") }
	const file = "agent.yaml"
	switch name {
	case "join":
		return join(ctx, f, args, stdout)
	case "run":
		return host(ctx, f, args, o)
	case "check":
		withConfig(file)
		var plans []string
		f.Func("plan", "`file` of a plan to check against the policy; may be repeated", func(path string) error {
			plans = append(plans, path)
			return nil
		})
		if err := parse(f, args, 0); err != nil {
			return err
		}
		return command.Check(ctx, o, plans...)
	case "status":
		withConfig(file)
		if err := parse(f, args, 0); err != nil {
			return err
		}
		o.Log = slog.New(slog.DiscardHandler)
		return command.Status(ctx, o)
	case "audit":
		withConfig(file)
		client := f.String("client", "", "`name` of the client; without it, all")
		asJSON := f.Bool("json", false, "print JSON")
		if err := parse(f, args, 0); err != nil {
			return err
		}
		o.Log = slog.New(slog.DiscardHandler)
		return command.Audit(ctx, o, *client, *asJSON)
	case "discover":
		return discover(ctx, f, args, o, withConfig)
	case "import":
		withConfig(file)
		if err := parse(f, args, -1); err != nil {
			return err
		}
		if f.NArg() == 0 {
			return fmt.Errorf("name at least one prepared file: %w", errUsage)
		}
		return command.Import(o, f.Args())
	case "accept":
		withConfig(file)
		if err := parse(f, args, 1); err != nil {
			return err
		}
		o.Log = slog.New(slog.DiscardHandler)
		return command.Accept(ctx, o, f.Arg(0))
	case "model":
		if len(args) == 0 {
			return fmt.Errorf("name an action: pin, unpin or rollback: %w", errUsage)
		}
		withConfig(file)
		if err := parse(f, args[1:], 1); err != nil {
			return err
		}
		o.Log = slog.New(slog.DiscardHandler)
		return command.Model(ctx, o, args[0], f.Arg(0))
	case "version":
		fmt.Fprintln(stdout, version)
		return nil
	}
	if !strings.HasPrefix(name, "-") {
		return fmt.Errorf("%q is not a command: %w", name, errUsage)
	}
	return parse(f, append([]string{name}, args...), 0)
}

// folder is the agent's folder unless the caller names another one.
const folder = "loadstar-agent"

// host hosts the clients of a configuration or of a prepared file until it is stopped.
func host(ctx context.Context, f *flag.FlagSet, args []string, o command.Options) error {
	f.StringVar(&o.Config, "config", "", "the agent's configuration")
	dir := f.String("dir", folder, "the agent's folder, without a configuration")
	workers := f.Int("workers", 1, "number of clients to train in parallel, without a configuration")
	f.StringVar(&o.Join.Server, "join", "", "`URL` of the server to join at the first start")
	f.StringVar(&o.Join.TokenFile, "join-token-file", "", "`file` with the join token for -join")
	usual := policy.Default()
	f.Func("policy", "change which plans the agent trains: `KEY=VALUE` with a key of policy in agent.yaml, trial for small fleets, or none; may be repeated", func(text string) error {
		o.Policy = append(o.Policy, text)
		return usual.Set(text)
	})
	if err := parse(f, args, -1); err != nil {
		return err
	}
	if o.Config != "" {
		if err := arguments(f, 0); err != nil {
			return err
		}
		return command.Run(ctx, o)
	}
	if f.NArg() != 1 {
		return fmt.Errorf("name a configuration with -config, or a prepared file: %w", errUsage)
	}
	name, _ := os.Hostname() // without a name, operators see none
	if err := o.Join.Once(ctx, *dir, name); err != nil {
		return err
	}
	return run(ctx, *dir, f.Arg(0), *workers, &usual, o.Log)
}

func join(ctx context.Context, f *flag.FlagSet, args []string, stdout io.Writer) error {
	host, _ := os.Hostname() // without a name, operators see none
	dir := f.String("dir", folder, "the agent's folder")
	name := f.String("name", host, "name of the machine, shown to operators")
	file := f.String("token-file", "", "file with the join token, or - for standard input")
	if err := parse(f, args, -1); err != nil {
		return err
	}
	if f.NArg() < 1 || f.NArg() > 2 {
		return fmt.Errorf("name the server, such as https://server.example.org:7443, and a token with -token-file: %w", errUsage)
	}
	token, err := identity.Token(f.Arg(1), *file, os.Stdin)
	if err != nil {
		return err
	}
	i, err := identity.Join(ctx, *dir, f.Arg(0), token, *name)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "joined %s as agent %s; certificate valid until %s\n", i.Server(), i.ID(), i.Expires().Format("2006-01-02 15:04"))
	return nil
}

func discover(ctx context.Context, f *flag.FlagSet, args []string, o command.Options, withConfig func(string)) error {
	withConfig("agent.yaml")
	var c mqtt.Config
	listen := f.Duration("for", 30*time.Second, "how long to listen")
	f.StringVar(&c.User, "user", "", "user name at the broker")
	f.StringVar(&c.PasswordFile, "password-file", "", "file with the password")
	f.StringVar(&c.CAFile, "ca-file", "", "file with the certificate authorities of the broker")
	if err := parse(f, args, -1); err != nil {
		return err
	}
	if f.NArg() > 1 {
		return arguments(f, 1)
	}
	c.Broker = f.Arg(0)
	return command.Discover(ctx, o, c, *listen)
}

// parse parses flags, and checks the number of arguments unless it is negative.
func parse(f *flag.FlagSet, args []string, want int) error {
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil {
		return fmt.Errorf("%w: %w", err, errUsage)
	}
	if want < 0 {
		return nil
	}
	return arguments(f, want)
}

func arguments(f *flag.FlagSet, want int) error {
	if f.NArg() != want {
		return fmt.Errorf("got %d arguments, want %d: %w", f.NArg(), want, errUsage)
	}
	return nil
}

func run(ctx context.Context, dir, data string, workers int, allow *policy.Policy, log *slog.Logger) error {
	command.CollectOften()
	i, err := identity.Open(dir)
	if err != nil {
		return err
	}
	d, closer, err := series.OpenPrepared(data)
	if err != nil {
		return err
	}
	defer closer.Close()
	k, err := kernel.Default()
	if err != nil {
		return err
	}
	log.Info("hosting clients", "agent", i.ID(), "server", i.Server(), "clients", d.Len())
	service.Ready(ctx, log)
	return agent.Run(ctx, agent.Config{
		Dir: dir, Name: i.ID(), Server: i.Server(), Client: i.HTTPClient(), Renew: i.RenewIfDue, Dataset: d, Kernel: k, Workers: workers, Policy: allow, Version: version, Log: log,
	})
}
