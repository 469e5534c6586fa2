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
	"os"
	"os/signal"
	"strings"
	"syscall"

	"loadstar/agent/command"
	"loadstar/series"
)

// version is set by the Makefile.
var version = "0.1.0-dev"

const about = `Host clients: forecast their load, and train on their data.

With a configuration, the agent ingests readings and forecasts, alone or with a
server. Without a configuration, it trains on a prepared file for a server.
Create prepared files with 'loadstar data prepare'.

Commands:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	p := &command.Program{
		Name: "loadstar-agent", Version: version, Workers: 1, Data: "prepared file",
		Open: func(path string) (*series.Dataset, io.Closer, error) { return series.OpenPrepared(path) },
		In:   os.Stdin, Out: os.Stdout, Err: os.Stderr,
	}
	err := execute(ctx, p, os.Args[1:])
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "loadstar-agent:", err)
	code := 1
	if errors.Is(err, command.ErrUsage) {
		fmt.Fprintln(os.Stderr, "Try 'loadstar-agent -h'.")
		code = 2
	}
	os.Exit(code)
}

// execute runs a command line.
func execute(ctx context.Context, p *command.Program, args []string) error {
	if len(args) == 0 || args[0] == "-h" || args[0] == "-help" || args[0] == "--help" || args[0] == "help" {
		return list(p)
	}
	if args[0] == "version" {
		_, err := fmt.Fprintln(p.Out, version)
		return err
	}
	for _, c := range p.Commands() {
		rest, ok := named(c.Name, args)
		if !ok || c.Run == nil {
			continue
		}
		f := flag.NewFlagSet(c.Name, flag.ContinueOnError)
		f.SetOutput(io.Discard) // the caller prints errors
		c.Flags(f)
		rest, err := parse(f, rest)
		switch {
		case errors.Is(err, flag.ErrHelp):
			return help(p, c, f)
		case err != nil:
			return command.Usagef("%w", err)
		case len(rest) < c.Min:
			return command.Usagef("missing arguments: want %s", c.Arguments)
		case c.Max >= 0 && len(rest) > c.Max:
			return command.Usagef("unexpected argument %q", rest[c.Max])
		}
		return c.Run(ctx, rest)
	}
	return command.Usagef("%q is not a command", strings.Join(args[:min(len(args), 2)], " "))
}

// named returns the arguments that follow the name of a command.
func named(name string, args []string) (rest []string, ok bool) {
	words := strings.Fields(name)
	if len(args) < len(words) || strings.Join(args[:len(words)], " ") != name {
		return nil, false
	}
	return args[len(words):], true
}

// parse parses flags before, between and after arguments, and returns the arguments.
func parse(f *flag.FlagSet, args []string) (rest []string, err error) {
	for err = f.Parse(args); err == nil && f.NArg() > 0; err = f.Parse(args) {
		rest, args = append(rest, f.Arg(0)), f.Args()[1:]
	}
	return rest, err
}

// list lists the commands.
func list(p *command.Program) error {
	fmt.Fprint(p.Out, about)
	for _, c := range p.Commands() {
		if c.Run != nil {
			fmt.Fprintf(p.Out, "  %-24s %s\n", strings.TrimSpace(c.Name+" "+c.Arguments), c.Short)
		}
	}
	_, err := fmt.Fprintf(p.Out, "  %-24s %s\n\nRun '%s COMMAND -h' for the flags of a command.\n", "version", "Print the version", p.Name)
	return err
}

// help describes a command.
func help(p *command.Program, c *command.Command, f *flag.FlagSet) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nUsage:\n  %s\n\n", c.Short, strings.TrimSpace(p.Name+" "+c.Name+" "+c.Arguments))
	if c.Long != "" {
		fmt.Fprintf(&b, "%s\n\n", c.Long)
	}
	if c.Example != "" {
		fmt.Fprintf(&b, "Examples:\n%s\n\n", c.Example)
	}
	b.WriteString("Flags:\n")
	f.SetOutput(&b)
	f.PrintDefaults()
	_, err := io.WriteString(p.Out, b.String())
	return err
}
