package operate

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	v1 "loadstar/proto/loadstar/v1"
)

func newAgents() *cobra.Command {
	cmd := &cobra.Command{Use: "agents", Short: "List agents"}
	cmd.AddCommand(newAgentsList())
	return cmd
}

func newAgentsList() *cobra.Command {
	q := &v1.ListAgentsRequest{}
	cmd := serverCommand("list", "List agents, sorted by id", cobra.NoArgs,
		func(cmd *cobra.Command, c *operator, _ []string) (any, func(io.Writer), error) {
			r, err := c.ListAgents(cmd.Context(), q)
			if err != nil {
				return nil, nil, err
			}
			f, err := c.GetFleet(cmd.Context(), &v1.GetFleetRequest{})
			return r, func(out io.Writer) {
				w := cli.NewTable(out, 0)
				fmt.Fprintln(w, "AGENT\tMACHINE\tCLIENTS\tSEEN\tCERTIFICATE UNTIL\tVERSION\tCLOCK AHEAD\tSTATE\t")
				for _, a := range r.Agents {
					fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t\n", a.Id, a.Name, a.Clients, ago(a.Seen), time.UnixMilli(a.Expires).Format(time.DateOnly),
						cmp.Or(a.Version, "-"), ahead(a.SkewMs), agentState(a))
				}
				_ = w.Flush() // the caller's writer reports errors
				fmt.Fprintf(out, "%s with %s: %d quiet, %d with a certificate that ends within two days; %d revoked\n",
					cli.Count(int(f.Agents), "agent"), cli.Count(int(f.Clients), "client"), f.Quiet, f.Expiring, f.Revoked)
				if n := len(r.Agents); n > 0 && n == int(q.Limit) {
					fmt.Fprintf(out, "more: --after %s\n", r.Agents[n-1].Id)
				}
			}, err
		})
	cmd.Long = `List agents with what they said about themselves. An agent is quiet if the server
has not seen it for three times the interval between check-ins, and at least two
minutes. An agent reports its clock and version when it announces its clients.`
	cmd.Flags().StringVar(&q.After, "after", "", "list agents after this `id`")
	cmd.Flags().Int32Var(&q.Limit, "limit", 100, "maximum number of agents, up to 1000")
	cmd.Flags().StringVar(&q.Name, "name", "", "list agents whose name or id begins with this `text`")
	return cmd
}

// ahead formats how far a clock is ahead.
func ahead(ms *int64) string {
	if ms == nil {
		return "-"
	}
	return fmt.Sprintf("%+.1fs", float64(*ms)/1000)
}

func agentState(a *v1.Agent) string {
	var words []string
	for _, x := range []struct {
		is   bool
		word string
	}{{a.Revoked, "revoked"}, {a.Quiet, "quiet"}, {a.Generated, "generated data"}} {
		if x.is {
			words = append(words, x.word)
		}
	}
	return cmp.Or(strings.Join(words, ", "), "ok")
}

func newClientsShow() *cobra.Command {
	cmd := serverCommand("show CLIENT", "Show a client, its agent and its newest turns", cobra.ExactArgs(1),
		func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
			r, err := c.GetClient(cmd.Context(), &v1.GetClientRequest{Client: args[0]})
			return r, func(out io.Writer) {
				x := r.Client
				fmt.Fprintf(out, "%s on agent %s (%s), %s\n", x.Name, x.Agent, x.AgentName, clientState(x))
				fmt.Fprintf(out, "announced %s, agent seen %s\n", time.UnixMilli(x.Announced).Format(time.DateTime), ago(x.Seen))
				fmt.Fprintf(out, "a reading every %s, inputs: %s\n", time.Duration(x.StepSeconds)*time.Second, cmp.Or(strings.Join(x.Inputs, ", "), "load and calendar"))
				if p := x.Report; p != nil {
					fmt.Fprintf(out, "report of %s: release %s, relative MAE %s, coverage %s, findings: %s\n", time.Unix(p.Day*86400, 0).UTC().Format(time.DateOnly),
						cmp.Or(p.Release, "none"), decimal(p.RelativeMae), decimal(p.Coverage), cmp.Or(strings.Join(p.Findings, ", "), "none"))
				}
				if len(r.Turns) == 0 {
					fmt.Fprintln(out, "no turns in the newest rounds")
					return
				}
				printTurns(out, r.Turns, false)
			}, err
		})
	cmd.Long = `Show a client: its agent, its newest report, and its turns in the 50 newest
rounds of the three newest runs. The server has no readings and no forecasts.`
	return cmd
}

func clientState(c *v1.Client) string {
	if c.Revoked {
		return "revoked"
	}
	return "may take part"
}

// printTurns prints a table of turns, with the clients or with runs and rounds.
func printTurns(out io.Writer, turns []*v1.Turn, ofRound bool) {
	w := cli.NewTable(out, 0)
	head := "RUN\tROUND"
	if ofRound {
		head = "CLIENT\tAGENT"
	}
	fmt.Fprintln(w, head+"\tSTATE\tVERSION\tEXAMPLES\tSTEPS\tLOSS\tCOUNTED\t")
	for _, t := range turns {
		of := fmt.Sprintf("%s\t%d", t.Run, t.Round+1)
		if ofRound {
			of = t.Client + "\t" + cmp.Or(t.Agent, "-")
		}
		if t.State != "counted" {
			fmt.Fprintf(w, "%s\t%s\t%d\t-\t-\t-\t-\t\n", of, t.State, t.Version)
			continue
		}
		at := "-"
		if t.Counted > 0 {
			at = time.UnixMilli(t.Counted).Format(time.DateTime)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%.4g\t%s\t\n", of, t.State, t.Version, t.Examples, t.Steps, t.Loss, at)
	}
	_ = w.Flush() // the caller's writer reports errors
}

func newRunsTurns() *cobra.Command {
	var number int64
	q := &v1.ListTurnsRequest{}
	cmd := serverCommand("turns RUN", "List the clients that a round asked, and those that were counted", cobra.ExactArgs(1),
		func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
			id, err := c.run(cmd.Context(), args[0])
			if err != nil {
				return nil, nil, err
			}
			if number < 0 {
				return nil, nil, cli.Usagef("--round must be at least 1")
			}
			if q.Run, q.Round = id, number-1; number == 0 {
				r, err := c.GetRun(cmd.Context(), &v1.GetRunRequest{Run: id, Rounds: 1})
				if err != nil {
					return nil, nil, err
				}
				q.Round = max(r.Run.Round, 0)
				if len(r.Rounds) > 0 {
					q.Round = r.Rounds[0].Round
				}
			}
			r, err := c.ListTurns(cmd.Context(), q)
			return r, func(out io.Writer) {
				fmt.Fprintf(out, "round %d of run %s\n", q.Round+1, id)
				if len(r.Turns) == 0 {
					fmt.Fprintln(out, "no turns: the round has not begun, or it closed without any")
					return
				}
				printTurns(out, r.Turns, true)
				if n := len(r.Turns); n == int(q.Limit) {
					fmt.Fprintf(out, "more: --round %d --after %s\n", q.Round+1, r.Turns[n-1].Client)
				}
			}, err
		})
	cmd.Long = `List the turns of a round: the clients that are asked, and those that were
counted. Turns that were lost or too late are not stored. Rounds are numbered
from 1, in JSON from 0 as in the API.`
	cmd.Example = "  loadstar runs turns @last\n  loadstar runs turns k3v --round 12 --csv"
	cmd.Flags().Int64Var(&number, "round", 0, "`number` of the round, from 1 (default the newest)")
	cmd.Flags().StringVar(&q.After, "after", "", "list turns after this `client`")
	cmd.Flags().Int32Var(&q.Limit, "limit", 100, "maximum number of turns, up to 1000")
	return cmd
}

func newClientsFindings() *cobra.Command {
	var days int32
	cmd := serverCommand("findings", "Count clients that reported problems with their readings", cobra.NoArgs,
		func(cmd *cobra.Command, c *operator, _ []string) (any, func(io.Writer), error) {
			r, err := c.ListFindings(cmd.Context(), &v1.ListFindingsRequest{Days: days})
			return r, func(out io.Writer) {
				if r.Reported == 0 {
					fmt.Fprintln(out, "no client has reported")
					return
				}
				day := func(n int64) string { return time.Unix(n*86400, 0).UTC().Format(time.DateOnly) }
				fmt.Fprintf(out, "%s reported on %s\n", cli.Count(int(r.Reported), "client"), day(r.Day))
				if len(r.Findings) == 0 {
					fmt.Fprintln(out, "no problems")
					return
				}
				w := cli.NewTable(out, 0)
				fmt.Fprintln(w, "DAY\tFINDING\tCLIENTS\tMEANING\tWHAT TO DO\t")
				for _, f := range r.Findings {
					fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t\n", day(f.Day), f.Code, f.Clients, f.Title, f.Advice)
				}
				_ = w.Flush() // the caller's writer reports errors
				fmt.Fprintln(out, "their names: loadstar clients list --finding FINDING")
			}, err
		})
	cmd.Flags().Int32Var(&days, "days", 7, "number of days with reports, newest first, up to 90")
	return cmd
}
