package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"loadstar/agent/identity"
	"loadstar/agent/mqtt"
	"loadstar/series"
)

// Program is a program with the commands of an agent.
type Program struct {
	Name    string // the words before the name of a command
	Version string
	Workers int // default number of clients to train in parallel
	// Open opens the dataset of the flag --data.
	Open     func(path string) (*series.Dataset, io.Closer, error)
	Data     string // describes --data
	In       io.Reader
	Out, Err io.Writer
}

// Command is a command of an agent.
type Command struct {
	Name      string // contains a space if the command is in a group
	Arguments string // shown in the help, such as "SERVER [TOKEN]"
	Min, Max  int    // number of arguments; no maximum if Max is negative
	// Short, Long and Example are the help texts.
	Short, Long, Example string
	Flags                func(f *flag.FlagSet)
	// Run is called after the flags have been parsed. It is nil for a group of commands.
	Run func(ctx context.Context, args []string) error
}

// ErrUsage is wrapped by all errors that report an invalid command line.
var ErrUsage = errors.New("wrong command line")

type usageError struct{ error }

func (e usageError) Is(target error) bool { return target == ErrUsage }
func (e usageError) Unwrap() error        { return e.error }

// Usagef returns an error that wraps ErrUsage.
func Usagef(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

// Commands returns the commands. Their streams are read from p when they run.
func (p *Program) Commands() []*Command {
	all := []*Command{
		p.join(), p.run(), p.check(), p.status(), p.audit(), p.discover(), p.importing(), p.accept(),
		{Name: "model", Short: "Keep, release or roll back the model of a client"},
		p.model("pin", "Keep the client's model until it is unpinned"),
		p.model("unpin", "Let the client choose its model again"),
		p.model("rollback", "Return to the previous model, and refuse the current one"),
	}
	for _, c := range all {
		c.Example = strings.ReplaceAll(c.Example, "AGENT", p.Name)
	}
	return all
}

// list is a flag that may be repeated.
type list []string

// String implements flag.Value.
func (l *list) String() string { return strings.Join(*l, ",") }

// Set implements flag.Value.
func (l *list) Set(text string) error {
	*l = append(*l, text)
	return nil
}

// Type implements pflag.Value, which loadstar uses.
func (l *list) Type() string { return "stringArray" }

// configured adds the flag --config.
func configured(f *flag.FlagSet, o *Options) {
	f.StringVar(&o.Config, "config", "agent.yaml", "the agent's configuration")
}

// options fills in the options that all commands need.
func (p *Program) options(o Options) Options {
	o.Version, o.Out = p.Version, p.Out
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(p.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	return o
}

// folder is the default of the agent's folder.
const folder = "loadstar-agent"

// hostname returns the name of the machine. If it is unknown, operators see no name.
func hostname() string {
	name, _ := os.Hostname()
	return name
}

func (p *Program) join() *Command {
	var dir, name, file string
	return &Command{
		Name: "join", Arguments: "SERVER [TOKEN]", Min: 1, Max: 2,
		Short: "Join a server with a join token",
		Long: `Join a server with a join token. Give the token in a file or on standard input.
A token on the command line is visible to other users of this machine and stays
in the shell's history.`,
		Example: "  AGENT join https://server.example.org:7443 --token-file join.token\n" +
			"  loadstar token create | AGENT join https://localhost:7443 -",
		Flags: func(f *flag.FlagSet) {
			f.StringVar(&dir, "dir", folder, "the agent's folder")
			f.StringVar(&name, "name", hostname(), "name of the machine, shown to operators")
			f.StringVar(&file, "token-file", "", "`file` with the join token, or - for standard input")
		},
		Run: func(ctx context.Context, args []string) error {
			if len(args) == 1 && file == "" {
				return Usagef("missing argument TOKEN: use --token-file FILE, or - to read the token from standard input")
			}
			token, err := identity.Token(strings.Join(args[1:], ""), file, p.In)
			if err != nil {
				return err
			}
			i, err := identity.Join(ctx, dir, args[0], token, name)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(p.Out, "joined %s as agent %s; certificate valid until %s\n", i.Server(), i.ID(), i.Expires().Format("2006-01-02 15:04"))
			return err
		},
	}
}

func (p *Program) check() *Command {
	var o Options
	var plans list
	return &Command{
		Name:  "check",
		Short: "Check an agent's configuration, its model, its broker and its server",
		Long: `Check an agent's configuration, its model, its broker and its server, and print
its policy, which determines the plans that the agent trains. With --plan, also
check whether the agent would train a given plan.`,
		Example: "  AGENT check --plan plan.yaml",
		Flags: func(f *flag.FlagSet) {
			configured(f, &o)
			f.Var(&plans, "plan", "`file` with a plan to check against the policy; may be repeated")
		},
		Run: func(ctx context.Context, _ []string) error { return Check(ctx, p.options(o), plans...) },
	}
}

func (p *Program) status() *Command {
	var o Options
	return &Command{
		Name:  "status",
		Short: "Print the readings, forecasts and scores of an agent's clients",
		Flags: func(f *flag.FlagSet) { configured(f, &o) },
		Run:   func(ctx context.Context, _ []string) error { return Status(ctx, p.options(o)) },
	}
}

func (p *Program) audit() *Command {
	var o Options
	var client string
	var asJSON bool
	return &Command{
		Name:  "audit",
		Short: "Attack a client's own updates and show what they reveal",
		Long: `Attack the newest updates of an agent's clients, and show what an attacker could
compute from them: the mean load by hour of the day, and single readings. The
results are compared with the true values. The simulated attacker knows
everything except the agent's secret and the readings that it tries to guess. No
data leaves this machine. The attack takes minutes, and training pauses in the
meantime. A failed attack does not prove that updates reveal nothing;
docs/privacy.md explains what remains.`,
		Example: "  AGENT audit --client main-panel",
		Flags: func(f *flag.FlagSet) {
			configured(f, &o)
			f.StringVar(&client, "client", "", "`name` of the client (default all)")
			f.BoolVar(&asJSON, "json", false, "print JSON")
		},
		Run: func(ctx context.Context, _ []string) error { return Audit(ctx, p.options(o), client, asJSON) },
	}
}

func (p *Program) discover() *Command {
	var o Options
	var c mqtt.Config
	var listen time.Duration
	return &Command{
		Name: "discover", Arguments: "[BROKER]", Max: 1,
		Short:   "List the topics of an MQTT broker that look like meters",
		Example: "  AGENT discover mqtt://broker.local",
		Flags: func(f *flag.FlagSet) {
			configured(f, &o)
			f.DurationVar(&listen, "for", 30*time.Second, "duration for which the command listens")
			f.StringVar(&c.User, "user", "", "user name for the broker")
			f.StringVar(&c.PasswordFile, "password-file", "", "`file` with the password")
			f.StringVar(&c.CAFile, "ca-file", "", "`file` with the certificate authorities that sign the broker's certificate")
		},
		Run: func(ctx context.Context, args []string) error {
			c.Broker = strings.Join(args, "")
			return Discover(ctx, p.options(o), c, listen)
		},
	}
}

func (p *Program) importing() *Command {
	var o Options
	return &Command{
		Name: "import", Arguments: "DATA.prepared...", Min: 1, Max: -1,
		Short: "Import earlier readings into an agent that is not running",
		Flags: func(f *flag.FlagSet) { configured(f, &o) },
		Run:   func(_ context.Context, args []string) error { return Import(p.options(o), args) },
	}
}

func (p *Program) accept() *Command {
	var o Options
	return &Command{
		Name: "accept", Arguments: "CLIENT", Min: 1, Max: 1,
		Short: "Accept a client's new scale: use readings that were marked as impossible",
		Long: `Use the client's readings of the last 28 days that were marked bad because they
are far beyond its earlier readings. Later readings of the same scale are then
used, too. Run this command if the client's load has really changed, for example
because of a new boiler. Without the command, the agent accepts a new scale when
half of the readings of the last 28 days have this scale.`,
		Example: "  AGENT accept main-panel",
		Flags:   func(f *flag.FlagSet) { configured(f, &o) },
		Run:     func(ctx context.Context, args []string) error { return Accept(ctx, p.options(o), args[0]) },
	}
}

func (p *Program) model(action, short string) *Command {
	var o Options
	return &Command{
		Name: "model " + action, Arguments: "CLIENT", Min: 1, Max: 1,
		Short: short,
		Flags: func(f *flag.FlagSet) { configured(f, &o) },
		Run:   func(ctx context.Context, args []string) error { return Model(ctx, p.options(o), action, args[0]) },
	}
}
