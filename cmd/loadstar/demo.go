package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/cmd/loadstar/demo"
)

// demoOptions are the flags of the command.
type demoOptions struct {
	c                 demo.Config
	noBrowser, asJSON bool
	today             string
}

func newDemo() *cobra.Command {
	var o demoOptions
	o.c = demo.Defaults()
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show a whole fleet on this machine in a minute",
		Long: `Show a whole fleet on this machine in a minute, without a network and without
your own data. A server and four agents run in this process and talk over
mutual TLS. They train a model for 42 generated buildings. One agent is killed
during training and restarts. Then the readings of days that were not used for
training arrive, and the federated model is compared with last week's profile,
the median of 28 days, ridge regression, and each building alone.

The readings are GENERATED. No meter measured them. The table shows the result
even if it is bad. All files are in a temporary folder, which is removed at the
end unless --keep names one.`,
		Example: "  loadstar demo\n  loadstar demo --no-browser --json\n  loadstar demo --seed 7 --keep demo-files",
		Args:    cobra.NoArgs,
		RunE:    o.run,
	}
	f := cmd.Flags()
	f.IntVar(&o.c.Clients, "clients", o.c.Clients, "number of buildings")
	f.IntVar(&o.c.Agents, "agents", o.c.Agents, "number of agents")
	f.IntVar(&o.c.Rounds, "rounds", o.c.Rounds, "number of training rounds")
	f.IntVar(&o.c.Port, "port", o.c.Port, "port of the page; if it is in use, the next free port")
	f.BoolVar(&o.noBrowser, "no-browser", false, "do not open the page in a browser")
	f.StringVar(&o.c.Keep, "keep", "", "new `folder` for all files, which is not removed at the end")
	f.Uint64Var(&o.c.Seed, "seed", o.c.Seed, "random seed of the buildings")
	f.StringVar(&o.today, "today", o.c.Today.Format(time.DateOnly), "day after the last reading")
	f.BoolVar(&o.asJSON, "json", false, "print the result as JSON in the last line")
	return cmd
}

func (o *demoOptions) run(cmd *cobra.Command, _ []string) error {
	day, err := time.Parse(time.DateOnly, o.today)
	if err != nil {
		return cli.Usagef("--today is %q: want a day such as 2026-05-01", o.today)
	}
	o.c.Today = day.Add(12 * time.Hour) // the same day at the buildings
	if err := o.c.Check(); err != nil {
		return cli.Usage(err)
	}
	if !o.noBrowser {
		o.c.Browse = demo.OpenBrowser
	}
	o.c.Out, o.c.Version = cmd.OutOrStdout(), version
	bar := cli.Stages{To: cmd.ErrOrStderr()}
	o.c.Bar = func(done, total int, note string) {
		if total == 0 {
			bar.Stop()
			return
		}
		bar.Show(done, total, note)
	}
	o.c.Stay = func(r *demo.Result) {
		stay := !o.noBrowser || !o.asJSON
		if stay {
			fmt.Fprintln(o.c.Out, "\nThe pages are served until you press Ctrl-C.")
		}
		if o.asJSON {
			_ = cli.PrintLine(o.c.Out, r) // if writing fails, nobody reads the output
		}
		if stay {
			<-cmd.Context().Done()
		}
	}
	_, err = demo.Run(cmd.Context(), o.c)
	return err
}
