package operate

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	v1 "loadstar/proto/loadstar/v1"
)

func newFleet() *cobra.Command {
	cmd := &cobra.Command{Use: "fleet", Short: "List and show agents"}
	cmd.AddCommand(newFleetList(), newFleetShow())
	return cmd
}

func newFleetList() *cobra.Command {
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
				fmt.Fprintln(w, "AGENT\tMACHINE\tCLIENTS\tFINDINGS\tSEEN\tCERTIFICATE UNTIL\tVERSION\tPROTOCOL\tCLOCK AHEAD\tTOKEN\tSTATE\t")
				for _, a := range r.Agents {
					fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", a.Id, a.Name, a.Clients, a.Findings, ago(a.Seen), time.UnixMilli(a.Expires).Format(time.DateOnly),
						cmp.Or(a.Version, "-"), protocolOf(a.Protocol), ahead(a.SkewMs), cmp.Or(a.Token, "-"), agentState(a))
				}
				_ = w.Flush() // the caller's writer reports errors
				fmt.Fprintf(out, "%s with %s: %d quiet, %d silent while training, %d with a certificate that ends within two days; %d revoked\n",
					cli.Count(int(f.Agents), "agent"), cli.Count(int(f.Clients), "client"), f.Quiet, f.Silent, f.Expiring, f.Revoked)
				if n := len(r.Agents); n > 0 && n == int(q.Limit) {
					fmt.Fprintf(out, "more: --after %s\n", r.Agents[n-1].Id)
				}
			}, err
		})
	cmd.Long = `List agents and what they reported about themselves. An agent is quiet if the
server has not seen it for three times the interval between its calls or for two
minutes, whichever is longer. An agent reports its clock and version when it
announces its clients. TOKEN is the token with which the agent last joined. An
agent's state is "copied" if two machines were seen with its certificates.
FINDINGS is the number of the agent's clients that reported problems with their
readings. The agent's own page names these clients.`
	cmd.Flags().StringVar(&q.After, "after", "", "list agents after this `id`")
	cmd.Flags().Int32Var(&q.Limit, "limit", 100, "maximum number of agents, up to 1000")
	cmd.Flags().StringVar(&q.Name, "name", "", "list agents whose name or id begins with this `text`")
	cmd.Flags().StringVar(&q.Token, "token", "", "list agents that joined with the token with this `id`")
	cmd.Flags().BoolVar(&q.Findings, "findings", false, "list agents whose clients reported problems with their readings")
	return cmd
}

func newFleetShow() *cobra.Command {
	cmd := serverCommand("show AGENT", "Show an agent", cobra.ExactArgs(1), func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
		r, err := c.ListAgents(cmd.Context(), &v1.ListAgentsRequest{Name: args[0], Limit: 1000})
		if err != nil {
			return nil, nil, err
		}
		// Look for an id first, because several agents may have the same name.
		i := slices.IndexFunc(r.Agents, func(a *v1.Agent) bool { return a.Id == args[0] })
		switch {
		case i < 0 && len(r.Agents) == 0:
			return nil, nil, fmt.Errorf("there is no agent %s; see loadstar fleet list", args[0])
		case i < 0 && len(r.Agents) > 1:
			return nil, nil, fmt.Errorf("the names or ids of several agents begin with %s; give the id of one, see loadstar fleet list --name %s", args[0], args[0])
		}
		a := r.Agents[max(i, 0)]
		return a, func(out io.Writer) {
			fmt.Fprintf(out, "agent %s (%s), %s, %s\n", a.Id, a.Name, agentState(a), cli.Count(int(a.Clients), "client"))
			if a.Findings > 0 {
				fmt.Fprintf(out, "%s with findings in their readings; the agent's own page shows which\n", cli.Count(int(a.Findings), "client"))
			}
			fmt.Fprintf(out, "joined %s with token %s, seen %s, certificate until %s\n", stamp(a.Joined), cmp.Or(a.Token, "unknown"), ago(a.Seen), stamp(a.Expires))
			fmt.Fprintf(out, "version %s, protocol %s, clock ahead %s\n", cmp.Or(a.Version, "unknown"), protocolOf(a.Protocol), ahead(a.SkewMs))
			if a.Copied != 0 {
				fmt.Fprintf(out, `two machines used its identity at %s: its files were copied, or restored from a backup
what to do: loadstar client revoke --agent %s, join the right machine with a new
token, and let it have the clients: loadstar client free --agent %s
`, stamp(a.Copied), a.Id, a.Id)
			}
		}, nil
	})
	cmd.Long = "Show what an agent reported about itself, the token with which it joined, and\nwhether its identity was copied. AGENT is the id of an agent, or the beginning\nof an id or a name. The beginning must identify a single agent."
	return cmd
}

// ahead formats the time by which a clock is ahead.
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
	}{{a.Revoked, "revoked"}, {a.Copied != 0, "copied"}, {a.Silent, "silent while training"}, {a.Quiet && !a.Silent, "quiet"}, {a.Refused > 0, fmt.Sprintf("%d refused: %s", a.Refused, strings.Join(a.RefusedNames, " "))}, {a.Generated, "generated data"}} {
		if x.is {
			words = append(words, x.word)
		}
	}
	return cmp.Or(strings.Join(words, ", "), "ok")
}

func newClientShow() *cobra.Command {
	cmd := serverCommand("show CLIENT", "Show a client, its agent and its newest turns", cobra.ExactArgs(1),
		func(cmd *cobra.Command, c *operator, args []string) (any, func(io.Writer), error) {
			r, err := c.GetClient(cmd.Context(), &v1.GetClientRequest{Client: args[0]})
			return r, func(out io.Writer) {
				x := r.Client
				fmt.Fprintf(out, "%s on agent %s (%s), %s\n", x.Name, x.Agent, x.AgentName, clientState(x))
				fmt.Fprintf(out, "announced %s, agent seen %s\n", time.UnixMilli(x.Announced).Format(time.DateTime), ago(x.Seen))
				fmt.Fprintf(out, "a reading every %s, inputs: %s\n", time.Duration(x.StepSeconds)*time.Second, cmp.Or(strings.Join(x.Inputs, ", "), "load and calendar"))
				if x.Reported != 0 {
					fmt.Fprintf(out, "reported for the week to %s: release %s\n", time.Unix(x.Reported*86400, 0).UTC().Format(time.DateOnly), releaseOf(x))
				}
				if len(r.Turns) == 0 {
					fmt.Fprintln(out, "no turns in the newest rounds")
					return
				}
				printTurns(out, r.Turns, false)
			}, err
		})
	cmd.Long = `Show a client: its agent, its release, and its turns in the 50 newest rounds of
the three newest runs. The server has no readings and no forecasts. The agent's
own page shows the quality of its forecasts and the problems of its readings.`
	return cmd
}

func clientState(c *v1.Client) string {
	state := "may take part"
	if c.Revoked {
		state = "revoked"
	}
	if len(c.Also) > 0 {
		state += "; also announced by " + strings.Join(c.Also, ", ") + ", which was refused"
	}
	return state
}

// printTurns prints a table of turns, with columns for the clients or for runs and rounds.
func printTurns(out io.Writer, turns []*v1.Turn, ofRound bool) {
	w := cli.NewTable(out, 0)
	head := "RUN\tROUND"
	if ofRound {
		head = "CLIENT\tAGENT"
	}
	fmt.Fprintln(w, head+"\tSTATE\tVERSION\tEXAMPLES\tSTEPS\tNORM\tWHEN\t")
	for _, t := range turns {
		of := fmt.Sprintf("%s\t%d", t.Run, t.Round+1)
		if ofRound {
			of = t.Client + "\t" + cmp.Or(t.Agent, "-")
		}
		at := "-"
		if t.Counted > 0 {
			at = time.UnixMilli(t.Counted).Format(time.DateTime)
		}
		switch t.State {
		case "counted":
			if t.Examples == 0 { // a counted turn without examples belongs to a private plan
				fmt.Fprintf(w, "%s\t%s\t%d\thidden\thidden\thidden\t%s\t\n", of, t.State, t.Version, at)
				continue
			}
			norm := fmt.Sprintf("%.4g", t.Norm)
			if t.Clipped {
				norm += " clipped"
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t\n", of, t.State, t.Version, t.Examples, t.Steps, norm, at)
		case "asked":
			fmt.Fprintf(w, "%s\t%s\t%d\t-\t-\t-\t-\t\n", of, t.State, t.Version)
		default:
			fmt.Fprintf(w, "%s\t%s: %s\t-\t-\t-\t-\t%s\t\n", of, t.State, cmp.Or(t.Reason, "no reason given"), at)
		}
	}
	_ = w.Flush() // the caller's writer reports errors
}

func newRunTurns() *cobra.Command {
	var number int64
	q := &v1.ListTurnsRequest{}
	cmd := serverCommand("turns RUN", "List the clients that a round asked to train, and the outcomes", cobra.ExactArgs(1),
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
					fmt.Fprintln(out, "no turns: the round has not begun, or has closed without turns")
					return
				}
				printTurns(out, r.Turns, true)
				if n := len(r.Turns); n == int(q.Limit) {
					fmt.Fprintf(out, "more: --round %d --after %s\n", q.Round+1, r.Turns[n-1].Client)
				}
			}, err
		})
	cmd.Long = `List the turns of a round: the clients that the round asked to train, and
whether each turn is still open, counted, declined or lost. NORM is the size of
a client's update after clipping. The table marks clipped updates. Rounds are
numbered from 1, but in JSON from 0 as in the API.`
	cmd.Example = "  loadstar run turns @last\n  loadstar run turns k3v --round 12 --csv"
	cmd.Flags().Int64Var(&number, "round", 0, "`number` of the round, from 1 (default the newest)")
	cmd.Flags().StringVar(&q.After, "after", "", "list turns after this `client`")
	cmd.Flags().Int32Var(&q.Limit, "limit", 100, "maximum number of turns, up to 1000")
	return cmd
}

func newClientFindings() *cobra.Command {
	var days int32
	cmd := serverCommand("findings", "Count clients that reported problems with their readings", cobra.NoArgs,
		func(cmd *cobra.Command, c *operator, _ []string) (any, func(io.Writer), error) {
			r, err := c.ListFindings(cmd.Context(), &v1.ListFindingsRequest{Days: days})
			return r, func(out io.Writer) {
				day := func(n int64) string {
					if n == 0 {
						return "now"
					}
					return time.Unix(n*86400, 0).UTC().Format(time.DateOnly)
				}
				if r.Reported > 0 {
					fmt.Fprintf(out, "%s reported for the week to %s\n", cli.Count(int(r.Reported), "client"), day(r.Day))
				} else if len(r.Findings) == 0 {
					fmt.Fprintln(out, "no client has reported")
					return
				}
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
				fmt.Fprintln(out, "their agents: loadstar fleet list --findings")
			}, err
		})
	cmd.Flags().Int32Var(&days, "days", 7, "number of weeks with reports, newest first, up to 12")
	return cmd
}

// protocolOf formats the version of the protocol that an agent uses. It is unknown for an agent
// that has not announced its clients since the server's upgrade.
func protocolOf(version int64) string {
	if version == 0 {
		return "-"
	}
	return strconv.FormatInt(version, 10)
}
