package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/cmd/loadstar/demo"
)

func newDemo() *cobra.Command {
	c := demo.Defaults()
	var (
		noBrowser, asJSON bool
		today             string
	)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show a whole fleet on this machine in a minute",
		Long: `Show a whole fleet on this machine in a minute, without network or data of your
own. A server and four agents run in this process and talk over mutual TLS. They
train a model for 42 generated buildings. One agent is killed during training
and restarts. Then days arrive that were not used for training, and the
federated model is compared with last week's profile, the median of 28 days,
ridge regression, and each building alone.

The readings are GENERATED. No meter measured them. The table shows the result
even if it is bad. All files are in a temporary folder, which is removed at the
end unless --keep names one.`,
		Example: "  loadstar demo\n  loadstar demo --no-browser --json\n  loadstar demo --seed 7 --keep demo-files",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			day, err := time.Parse(time.DateOnly, today)
			if err != nil {
				return cli.Usagef("--today is %q: want a day such as 2026-05-01", today)
			}
			c.Today = day.Add(12 * time.Hour) // the same day at the buildings
			if err := c.Check(); err != nil {
				return cli.Usage(err)
			}
			if !noBrowser {
				c.Browse = demo.OpenBrowser
			}
			c.Out, c.Version = cmd.OutOrStdout(), version
			bar := cli.Stages{To: cmd.ErrOrStderr()}
			c.Bar = func(done, total int, note string) {
				if total == 0 {
					bar.Stop()
					return
				}
				bar.Show(done, total, note)
			}
			c.Stay = func(r *demo.Result) {
				stay := !noBrowser || !asJSON
				if stay {
					fmt.Fprintln(c.Out, "\nThe pages stay up until you press Ctrl-C.")
				}
				if asJSON {
					_ = cli.PrintLine(c.Out, r) // nobody reads it
				}
				if stay {
					<-cmd.Context().Done()
				}
			}
			_, err = demo.Run(cmd.Context(), c)
			return err
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Clients, "clients", c.Clients, "number of buildings")
	f.IntVar(&c.Agents, "agents", c.Agents, "number of agents")
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "number of training rounds")
	f.IntVar(&c.Port, "port", c.Port, "port of the page; the next free one if it is in use")
	f.BoolVar(&noBrowser, "no-browser", false, "do not open the page in a browser")
	f.StringVar(&c.Keep, "keep", "", "new `folder` for all files, which stay there")
	f.Uint64Var(&c.Seed, "seed", c.Seed, "random seed of the buildings")
	f.StringVar(&today, "today", c.Today.Format(time.DateOnly), "day after the last reading")
	f.BoolVar(&asJSON, "json", false, "print the result as JSON in the last line")
	return cmd
}
