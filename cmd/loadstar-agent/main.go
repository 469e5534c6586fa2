// Command loadstar-agent hosts clients on small devices: it joins a server and trains on
// the clients' data. It contains no server or simulator code, to keep the binary small.
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
	"runtime/debug"
	"syscall"

	"loadstar/agent"
	"loadstar/agent/identity"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// version is set by the Makefile.
var version = "dev"

const usage = `Host clients and train on their data.

  loadstar-agent join [-dir DIR] [-name NAME] SERVER TOKEN
  loadstar-agent run [-dir DIR] [-workers N] DATA.prepared
  loadstar-agent version

Create prepared files with 'loadstar data prepare'.
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
	f := flag.NewFlagSet("loadstar-agent "+args[0], flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprint(stderr, usage)
		f.PrintDefaults()
	}
	dir := f.String("dir", "loadstar-agent", "the agent's folder")
	host, _ := os.Hostname()
	switch args[0] {
	case "join":
		name := f.String("name", host, "name of the machine, shown to operators")
		if err := parse(f, args[1:], 2); err != nil {
			return err
		}
		i, err := identity.Join(ctx, *dir, f.Arg(0), f.Arg(1), *name)
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "joined %s as agent %s; certificate valid until %s\n", i.Server(), i.ID(), i.Expires().Format("2006-01-02 15:04"))
		return nil
	case "run":
		workers := f.Int("workers", 1, "number of clients to train in parallel")
		if err := parse(f, args[1:], 1); err != nil {
			return err
		}
		return run(ctx, *dir, f.Arg(0), *workers, stderr)
	case "version":
		fmt.Fprintln(stdout, version)
		return nil
	}
	return parse(f, args, 0)
}

func parse(f *flag.FlagSet, args []string, want int) error {
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil {
		return fmt.Errorf("%w: %w", err, errUsage)
	}
	if f.NArg() != want {
		return fmt.Errorf("got %d arguments, want %d: %w", f.NArg(), want, errUsage)
	}
	return nil
}

func run(ctx context.Context, dir, data string, workers int, stderr io.Writer) error {
	// Let the heap grow to 1.2 times the live heap before the next garbage collection. Go's
	// default is twice the live heap. Training hardly allocates, so this costs almost no time.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(20)
	}
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
	log := slog.New(slog.NewTextHandler(stderr, nil))
	log.Info("hosting clients", "agent", i.ID(), "server", i.Server(), "clients", d.Len())
	return agent.Run(ctx, agent.Config{
		Dir: dir, Server: i.Server(), Client: i.HTTPClient(), Renew: i.RenewIfDue, Dataset: d, Kernel: k, Workers: workers, Log: log,
	})
}
